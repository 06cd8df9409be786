"""A golden comes back from disk as it went, and says what it was made of."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file

import weighbridge
from weighbridge.cli import main
from weighbridge.converters.models import Model, Port, Signature
from weighbridge.errors import BadInputError
from weighbridge.parity.goldens.golden import MANIFEST, TENSORS, Golden, is_golden
from weighbridge.parity.goldens.recorder import record
from weighbridge.parity.probes.probes import Probe

LOAD_WITHOUT_TORCH = """
import sys
from pathlib import Path
sys.modules["torch"] = sys.modules["transformers"] = sys.modules["mlx"] = None
from weighbridge.parity.goldens.golden import Golden
print(Golden.load(Path(sys.argv[1])).level)
"""


@pytest.fixture(scope="module")
def golden(tiny_bert_dir):
    return record(weighbridge.open(tiny_bert_dir), level="blame", precisions=("float16",))


@pytest.fixture(scope="module")
def saved(golden, tmp_path_factory):
    folder = tmp_path_factory.mktemp("golden")
    golden.save(folder)
    return folder


def assert_rows_equal(one, other):
    assert one.keys() == other.keys()
    for key in one:
        for left, right in zip(one[key], other[key], strict=True):
            assert left.keys() == right.keys()
            assert all(np.array_equal(left[name], right[name]) for name in left)
            assert all(left[name].dtype == right[name].dtype for name in left)


def test_what_is_saved_is_loaded(golden, saved):
    loaded = Golden.load(saved)
    assert is_golden(saved)
    assert loaded.signature == golden.signature
    assert (loaded.errors, loaded.text.to_json()) == (dict(golden.errors), golden.text.to_json())
    assert loaded.provenance == golden.provenance
    for part in ("outputs", "sites", "source_sites"):
        assert_rows_equal(getattr(loaded, part), getattr(golden, part))
    for one, other in zip(loaded.probes, golden.probes, strict=True):
        assert one.name == other.name
        assert all(np.array_equal(one.inputs[name], other.inputs[name]) for name in other.inputs)
    assert {name: it.hashes for name, it in loaded.sketches.items()} == {
        name: it.hashes for name, it in golden.sketches.items()
    }


def test_outputs_are_float64_for_weights_as_stored_and_as_rounded(golden):
    assert golden.outputs.keys() == {"stored", "float16", "float16+constants"}
    (exact, *_), (rounded, *_) = golden.outputs["stored"], golden.outputs["float16"]
    assert exact["last_hidden_state"].dtype == np.float64
    assert 1e-5 < np.abs(exact["last_hidden_state"] - rounded["last_hidden_state"]).max() < 1e-1


def test_the_sources_own_errors_have_the_size_of_their_dtype(golden):
    sizes = {
        "stored/float32": 1e-6,
        "float16/float32": 1e-6,
        "float16+constants/float32": 1e-6,
        "stored/float16": 1e-2,
    }
    assert golden.errors.keys() == sizes.keys()
    for key, size in sizes.items():
        for row in golden.errors[key]:
            assert size / 1000 < row["last_hidden_state"].whole < size, key


def test_provenance_names_versions_hashes_and_what_is_unused(golden):
    about = golden.provenance
    assert about["hashes"].keys() >= {"model.safetensors", "config.json"}
    assert all(it.startswith("xxh3:") for it in about["hashes"].values())
    assert {"torch", "transformers", "numpy"} <= about["libraries"].keys()
    assert "pooler.dense.weight" in about["unused"]


def test_a_golden_is_read_without_torch(saved):
    done = subprocess.run(
        [sys.executable, "-c", LOAD_WITHOUT_TORCH, str(saved)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "blame", done.stderr


def test_a_recording_is_reused_only_while_nothing_changed(tiny_bert_dir, tmp_path):
    model, probes = weighbridge.open(tiny_bert_dir), [small_probe(3)]
    for chosen in (probes, probes, [small_probe(4)]):
        record(model, probes=chosen, precisions=(), cache=tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def small_probe(first):
    ids = np.arange(first, first + 6).reshape(1, 6)
    return Probe("small", {"input_ids": ids, "attention_mask": np.ones_like(ids)})


def test_a_probe_on_which_the_source_gives_nan_is_rejected():
    import torch
    from torch import nn

    class Logarithm(nn.Module):
        """NaN below zero."""

        def forward(self, x):
            return torch.log(x)

    port = Port("x", "float32", (1, 2), "hidden")
    signature = Signature((port,), (Port("y", "float32", (1, 2), "hidden"),))
    model = Model("log", "torch", None, {}, factory=Logarithm(), declared=signature)
    good, bad = (Probe(str(sign), {"x": np.full((1, 2), sign, np.float32)}) for sign in (1.5, -1.5))
    golden = record(model, probes=[good, bad], precisions=())
    assert [probe.name for probe in golden.probes] == ["1.5"]
    assert golden.provenance["rejected_probes"] == ["-1.5"]
    with pytest.raises(BadInputError, match="NaN on every probe"):
        record(model, probes=[bad], precisions=())


@pytest.mark.parametrize("damage", ["schema", "json", "tensors", "missing"])
def test_a_damaged_golden_is_refused(saved, tmp_path, damage):
    manifest = json.loads((saved / MANIFEST).read_text())
    manifest["schema"] = 99 if damage == "schema" else manifest["schema"]
    text = "{" if damage == "json" else json.dumps(manifest)
    (tmp_path / MANIFEST).write_text(text)
    if damage != "missing":
        content = (saved / TENSORS).read_bytes()
        (tmp_path / TENSORS).write_bytes(content[:50] if damage == "tensors" else content)
    with pytest.raises(BadInputError, match="golden"):
        Golden.load(tmp_path)


@pytest.mark.parametrize("lost", [MANIFEST, TENSORS])
def test_a_golden_without_one_of_its_files_is_said_to_lack_it(saved, tiny_bert_dir, tmp_path, lost):
    [kept] = {MANIFEST, TENSORS} - {lost}
    (tmp_path / kept).write_bytes((saved / kept).read_bytes())
    found = CliRunner().invoke(main, ["parity", "check", str(tmp_path), str(tiny_bert_dir)])
    assert found.exit_code == 3
    assert f"{lost} of this golden is missing; record the golden again" in found.output


def test_an_array_that_several_sites_have_is_kept_once(saved):
    kept = load_file(saved / TENSORS)
    assert len({(it.shape, it.dtype.str, it.tobytes()) for it in kept.values()}) == len(kept)


def test_an_unknown_level_is_refused(tiny_bert_dir):
    with pytest.raises(BadInputError, match="verdict, blame"):
        record(weighbridge.open(tiny_bert_dir), level="deep")
