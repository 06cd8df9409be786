"""An adapter with a record of its base is refused on other weights, whichever framework they lie in."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch  # noqa: F401  (questions to transformers are answered in this process then)
from safetensors.numpy import load_file, save_file

from weighbridge.tests.support.adapters.refused_merges import (
    ELSEWHERE,
    FRAMEWORKS,
    TRAINED,
    WHY,
    Bench,
    elsewhere,
    must,
    refused,
    run,
)

MANIFEST = "weighbridge.json"


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:  # one model type, asked about once
        patch.setenv("WEIGHBRIDGE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield Bench(tmp_path_factory.mktemp("bench"))


def provenance(folder):
    return json.loads((folder / MANIFEST).read_text())["base_provenance"]["status"]


def other_refused(tried):
    return refused(tried, WHY["elsewhere"])


def older(folder, target):
    """Copy the adapter in FOLDER to TARGET, with the record that 0.1.0 wrote: hashes alone."""
    shutil.copytree(folder, target)
    facts = json.loads((target / MANIFEST).read_text())
    del facts["base"]["weights"]
    (target / MANIFEST).write_text(json.dumps(facts))
    return target


@pytest.mark.parametrize("way", ELSEWHERE, ids=[way.told for way in ELSEWHERE])
def test_a_sibling_is_refused_and_the_base_is_taken(bench, way):
    assert other_refused(elsewhere(bench, way))
    tried = elsewhere(bench, way, sibling=False)
    assert tried.code == 0, tried.said
    assert provenance(bench.folder / f"right {way.told}") == "same"


@pytest.mark.parametrize("recorded", FRAMEWORKS)
@pytest.mark.parametrize(
    ("dtype", "then"), [("F32", "BF16"), ("F32", "F16"), ("BF16", "F32"), ("BF16", "F16")]
)
def test_a_record_holds_in_other_dtypes_of_the_other_framework(
    bench, tmp_path, recorded, dtype, then
):
    other = next(it for it in FRAMEWORKS if it != recorded)
    adapter, source = tmp_path / "adapter", bench.adapter("peft")
    must(adapter, "convert", "peft-to-mlx", source, adapter, "--base", bench.base(recorded, dtype))
    out = tmp_path / "out"
    wrong = bench.base(other, then, sibling=True)
    assert other_refused(run("", out, "merge", wrong, adapter, out))
    right = run("", out, "merge", bench.base(other, then), adapter, out)
    assert right.code == 0, right.said
    rounded_twice = (dtype, then) == ("BF16", "F16")  # both of float32: then nobody can be certain
    assert provenance(out) == ("unproven" if rounded_twice else "same")


def test_the_dtype_that_the_base_was_taken_in_is_said(bench, tmp_path):
    out = tmp_path / "out"
    run("", out, "merge", bench.base("mlx", "BF16"), bench.recorded("torch"), out)
    facts = json.loads((out / MANIFEST).read_text())
    assert facts["base_provenance"]["message"].endswith("are those recorded, in BF16")


@pytest.mark.parametrize("recorded", FRAMEWORKS)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_an_older_record_is_read_and_refuses_too(bench, tmp_path, recorded, framework):
    adapter, out = older(bench.recorded(recorded), tmp_path / "older"), tmp_path / "out"
    wrong = bench.base(framework, sibling=True)
    assert other_refused(run("", out, "merge", wrong, adapter, out))
    assert run("", out, "merge", bench.base(framework), adapter, out).code == 0
    assert provenance(out) == "same"


def test_an_older_record_in_another_dtype_is_settled_by_its_base_where_that_lies_still(
    bench, tmp_path
):
    adapter, out = older(bench.recorded("torch"), tmp_path / "older"), tmp_path / "out"
    assert other_refused(
        run("", out, "merge", bench.base("mlx", "BF16", sibling=True), adapter, out)
    )
    facts = json.loads((adapter / MANIFEST).read_text())
    facts["base"]["spec"] = "gone"
    (adapter / MANIFEST).write_text(json.dumps(facts))
    for sibling in (False, True):
        base = bench.base("mlx", "BF16", sibling=sibling)
        assert run("", out, "merge", base, adapter, out).code == 0
        assert provenance(out) == "unproven"


@pytest.mark.parametrize(
    "verb", ["convert --adapter", "convert BASE+ADAPTER", "mlx-to-peft", "export coreml"]
)
def test_every_verb_that_writes_refuses_another_base(bench, tmp_path, verb):
    base, adapter = bench.base("mlx", sibling=True), bench.recorded("torch")
    out = tmp_path / "out.mlpackage"
    arguments = {
        "convert --adapter": ("convert", "mlx-to-torch", base, out, "--adapter", adapter),
        "convert BASE+ADAPTER": ("convert", "mlx-to-torch", f"{base}+{adapter}", out),
        "mlx-to-peft": ("convert", "mlx-to-peft", adapter, out, "--base", base),
        "export coreml": ("export", "coreml", f"{base}+{adapter}", out),
    }
    assert other_refused(run("", out, *arguments[verb]))


def test_a_quantized_base_of_other_weights_is_refused(bench, tmp_path):
    """Of one that lies within its rounding nobody can tell; of one that does not, everybody can."""
    base = shutil.copytree(bench.base("torch"), tmp_path / "other")
    tensors = load_file(base / "model.safetensors")
    noise = np.random.default_rng(9)
    turned = {name: noise.permutation(it, axis=0) for name, it in tensors.items()}
    save_file(turned, base / "model.safetensors", metadata={"format": "pt"})
    adapter, out = tmp_path / "adapter", tmp_path / "out"
    must(adapter, "convert", "peft-to-mlx", bench.adapter("peft"), adapter, "--base", base)
    assert other_refused(run("", out, "merge", bench.quantized(), adapter, out))
    assert run("", out, "merge", bench.quantized(), bench.recorded("torch"), out).code == 0


def test_an_adapter_trained_on_a_quantized_base_is_for_the_original_once_that_is_proven(
    bench, tmp_path
):
    adapter, out = tmp_path / "adapter", tmp_path / "out"
    must(
        adapter,
        "convert",
        "peft-to-mlx",
        bench.adapter("peft"),
        adapter,
        "--base",
        bench.quantized(),
    )
    base = bench.base("torch")
    assert other_refused(run("", out, "merge", base, adapter, out))
    assert run("", out, "merge", base, adapter, out, "--trained-on", bench.quantized()).code == 0
    dense, again = tmp_path / "dense", tmp_path / "again"
    must(dense, "convert", "mlx-to-torch", bench.quantized(), dense, "--dequantize", "bf16")
    must(again, "merge", dense, adapter, again, "--trained-on", bench.quantized())
    assert provenance(again) == "same"


@pytest.mark.parametrize("method", ["gptq", "compressed-tensors"])
def test_codes_of_the_base_are_known_again_in_the_other_framework(bench, tmp_path, method):
    lossy = ("--quant-method", method, "--allow-lossy")
    packed, mlx, out = tmp_path / "packed", tmp_path / "mlx", tmp_path / "out"
    must(packed, "convert", "mlx-to-torch", bench.quantized(), packed, *lossy)
    must(mlx, "convert", "torch-to-mlx", packed, mlx)
    adapter, peft = tmp_path / "adapter", bench.adapter("peft")
    must(adapter, "convert", "peft-to-mlx", peft, adapter, "--base", packed)
    tried = run("", out, "merge", mlx, adapter, out)
    assert tried.code == 0, tried.said
    tensors = load_file(mlx / "model.safetensors")
    other = tensors | {TRAINED: tensors[TRAINED] ^ 1}
    save_file(other, mlx / "model.safetensors", metadata={"format": "mlx"})
    (mlx / MANIFEST).unlink()
    assert other_refused(run("", out, "merge", mlx, adapter, out))


@pytest.mark.parametrize("damage", [5, {"w": 5}, {"w": {"dtype": "F32"}}])
def test_a_damaged_record_of_weights_is_refused_in_words(bench, tmp_path, damage):
    adapter, out = shutil.copytree(bench.recorded("torch"), tmp_path / "adapter"), tmp_path / "out"
    facts = json.loads((adapter / MANIFEST).read_text())
    facts["base"]["weights"] = damage
    (adapter / MANIFEST).write_text(json.dumps(facts))
    tried = run("", out, "merge", bench.base("torch"), adapter, out)
    assert (tried.code, tried.left) == (3, False)
    assert "(weights)" in " ".join(tried.said.split())
