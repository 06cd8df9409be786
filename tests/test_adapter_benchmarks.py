"""The benchmarks of adapters, in small: they run, and what they are to show holds."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

from weighbridge.tests.support.adapters import (
    made,
    merge_memory,
    merge_orders,
    rounded_training,
    survival,
    survival_merges,
)

EVEN = survival.Layer(
    "normal",
    "even",
    0.02 * np.random.default_rng(0).standard_normal((96, 128)),
    np.random.default_rng(1).standard_normal((2048, 128)),
)


@pytest.mark.parametrize(
    ("dialect", "framework", "dora"), [("peft", "torch", True), ("mlx", "mlx", False)]
)
def test_the_order_of_tensors_in_files_does_not_matter(dialect, framework, dora):
    row = merge_orders.measure(dialect, framework, dora=dora, orders=1)
    assert (row["merges"], row["projections"]) == (3, 24)
    assert merge_orders.passes(row)


@pytest.mark.parametrize("target", survival.TARGETS)
@pytest.mark.parametrize("ratio", [0.02, 0.3, 2.0])
def test_the_verdict_agrees_with_the_functional_error(target, ratio):
    row = survival.case(EVEN, target, ratio, np.random.default_rng(2))
    assert survival.agreement(row) in ("strictly", "agrees"), row


def test_an_update_far_below_the_step_of_4_bits_never_passes():
    found = [
        survival.case(EVEN, (4, 4, "float16"), 0.03, np.random.default_rng(n)) for n in range(3)
    ]
    assert {row["verdict"] for row in found} == {"refuse"}
    assert min(row["functional_error"] for row in found) > 1


def test_what_the_rule_permits_follows_from_gain_and_cosine():
    generator = np.random.default_rng(3)
    change = generator.standard_normal(1000)
    real = 0.8 * change + 0.5 * generator.standard_normal(1000)
    product, norm = change @ real, np.linalg.norm(change)
    gain, cosine = product / norm**2, product / norm / np.linalg.norm(real)
    assert survival.error(gain, cosine) == pytest.approx(np.linalg.norm(real - change) / norm)


def test_a_file_in_any_order_is_read_by_others(tmp_path):
    from safetensors.numpy import load_file

    arrays = {"b": np.arange(6.0).reshape(2, 3), "a": np.ones(2, np.float32)}
    made.write(tmp_path / "x.safetensors", arrays, format="pt")
    found = load_file(tmp_path / "x.safetensors")
    assert all(np.array_equal(found[name], array) for name, array in arrays.items())


def test_processes_that_ran_before_a_merge_do_not_count_as_its_memory():
    sleep = [sys.executable, "-c", "import time; held = bytearray(200_000_000); time.sleep(30)"]
    with subprocess.Popen(sleep) as earlier:
        while merge_memory.resident(psutil.Process(earlier.pid)) < 200e6:
            time.sleep(0.01)
        _took, together = merge_memory.watched([sys.executable, "-c", "sum(range(10**7))"], {})
        earlier.kill()
    assert 1 < together < 150


def test_the_memory_of_a_merge_is_measured(tmp_path):
    config, layout = made.llama(1)
    made.write_base(tmp_path / "base", config, made.random_arrays(layout, 1), "mlx", 1)
    first, again = merge_memory.measure(tmp_path, "mlx", 4, "none")
    assert (first["turn"], again["turn"]) == merge_memory.TURNS
    assert 20 < again["peak_megabytes"] < again["bar_megabytes"]


@pytest.mark.parametrize("bits", [4, 16])
def test_the_verb_refuses_what_the_written_layers_have_lost(bits):
    lost, kept = (survival_merges.measure(bits, ratio) for ratio in (0.05, 2.0))
    assert lost["ok"], lost
    assert kept["ok"], kept
    assert (lost["refused"], kept["refused"]) == (True, False)


def test_an_adapter_of_zeros_leaves_every_byte():
    assert survival_merges.zeros(4)["identical_bytes"]


@pytest.mark.heavy
def test_what_was_trained_by_rounded_weights_is_merged_with_its_loss(tmp_path):
    original = rounded_training.pretrained(tmp_path / "original", 4)
    base = tmp_path / "base"
    rounded_training.run("convert", "torch-to-mlx", original, base, "--quantize", 4)
    row = rounded_training.adapted(
        base, tmp_path / "rounded", "rounded", original, rate=1e-2, seed=0, steps=4
    )
    assert row["merged"] == pytest.approx(row["live"], rel=1e-6)
    assert row["live"] < row["before"]
    assert (row["refused"], row["kept"]) == (False, "14 of 14")
