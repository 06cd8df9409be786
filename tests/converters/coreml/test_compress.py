"""Exports compressed by the command line: every combination reads back, is weighed, and says what it costs."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

from weighbridge.cli import main
from weighbridge.converters.captures.mlprogram import load_program
from weighbridge.converters.captures.mlprogram.contents import described
from weighbridge.converters.captures.mlprogram.toolkit import coremltools, quiet
from weighbridge.converters.coreml.compress import compress_package, costs, distance, moved
from weighbridge.converters.coreml.compression import Compression
from weighbridge.converters.coreml.export import export_coreml
from weighbridge.errors import BadInputError, UnsupportedError
from weighbridge.tests.support.coreml import modules
from weighbridge.tests.support.coreml.models import make

pytestmark = pytest.mark.filterwarnings("ignore")
SOURCE = f"{modules.__name__}:heads32"
TRIAL = [{"ids": np.arange(9)[None]}]
WAYS = {
    "int8 per channel": Compression(quantize="int8"),
    "int4 in blocks of 16": Compression(quantize="int4", block=16),
    "table of 8": Compression(palettize=3),
    "sparse": Compression(prune=0.5),
    "int4 in blocks of 32, sparse": Compression(prune=0.5, quantize="int4"),
    "table of 16 of int8, sparse": Compression(prune=0.4, palettize=4, quantize="int8"),
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Return a package of one layer of attention, as it is."""
    target = tmp_path_factory.mktemp("plain") / "m.mlpackage"
    export_coreml(*modules.heads32(), target)
    return target


@pytest.fixture
def package(plain, tmp_path):
    """Return a copy of it."""
    import shutil

    return shutil.copytree(plain, tmp_path / "m.mlpackage")


@pytest.mark.parametrize("way", WAYS)
def test_a_combination_reads_back_to_what_coremltools_makes_of_it(way, plain, package, tmp_path):
    compress_package(package, WAYS[way])
    assert described(package)["compressed"] == {way: 3}
    with quiet():
        import coremltools.optimize.coreml as optimize

        model = coremltools.models.MLModel(str(package), skip_model_load=True)
        optimize.decompress_weights(model).save(str(tmp_path / "dense.mlpackage"))
    ours, theirs = load_program(package), load_program(tmp_path / "dense.mlpackage").constants()
    found = {name: array for name, array in ours.constants().items() if name in ours.compressed()}
    for array, other in zip(
        found.values(), (it for name, it in theirs.items() if it.ndim > 1), strict=True
    ):
        np.testing.assert_array_equal(array, other)


def test_what_it_costs_is_measured_against_the_package_before(plain, package):
    compress_package(package, Compression(palettize=4))
    found = costs(plain, package, TRIAL)
    before, after = load_program(plain), load_program(package)
    assert found["compressed"]["bytes"]["after"] < 0.6 * found["compressed"]["bytes"]["before"]
    for name, told in found["compressed"]["weights"].items():
        now = after.constants()[f"{name}_palettized"]
        assert told == {"scheme": "table of 16", "error": distance(now, before.constants()[name])}
    outputs = (it.run(TRIAL[0])["y"] for it in (after, before))
    assert found["outputs"] == {"y": distance(*outputs)}


def test_what_does_not_go_together_is_refused():
    for wrong in (Compression(block=4), Compression(palettize=4, quantize="int4")):
        with pytest.raises(BadInputError, match=r"goes with|are quantized to int8"):
            wrong.require()


def test_weights_too_small_or_of_other_columns_are_refused_and_nothing_changes(package):
    before = sorted((it, it.read_bytes()) for it in package.rglob("*") if it.is_file())
    with pytest.raises(
        UnsupportedError, match="no weight has 2,048 numbers and fits int8 in blocks"
    ):
        compress_package(package, Compression(quantize="int8", block=48))
    assert [it for it, _ in before] == sorted(it for it in package.rglob("*") if it.is_file())


@pytest.mark.heavy
def test_weights_whose_columns_do_not_divide_are_named_by_the_verb(tmp_path):
    wide = {"hidden_size": 64, "head_dim": 16, "intermediate_size": 100, "num_hidden_layers": 1}
    source, target = make("Llama", tmp_path / "source", **wide), tmp_path / "m.mlpackage"
    words = ["export", "coreml", str(source), str(target), "--quantize", "int4", "--check", "none"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    name = "p_module_model_layers_0_mlp_down_proj_weight_to_fp16"
    assert f"1 more stay dense, as their columns do not divide into blocks: {name}" in result.output


@pytest.mark.heavy
def test_the_verb_compresses_prints_what_it_cost_and_weighs_the_result(tmp_path):
    target = tmp_path / "m.mlpackage"
    words = [
        "export",
        "coreml",
        SOURCE,
        str(target),
        "--prune",
        "0.4",
        "--palettize",
        "6",
        "--json",
    ]
    result = CliRunner().invoke(main, words)
    told = json.loads(result.stdout)
    assert (result.exit_code, told["status"]) == (0, "PASS-REFERENCE")
    assert set(told["facts"]["compressed"]["weights"]) == {
        f"p_module_{name}_weight_to_fp16" for name in ("tokens", "attention_qkv", "attention_out")
    }
    assert 0 < told["facts"]["outputs"]["y"] < 1
    assert described(target)["compressed"] == {"table of 64, sparse": 3}


@pytest.mark.parametrize("wrong", [["--palettize", "5"], ["--prune", "1"], ["--block", "1"]])
def test_what_is_no_compression_is_a_usage_error(wrong, tmp_path):
    words = ["export", "coreml", SOURCE, str(tmp_path / "m.mlpackage"), *wrong]
    assert CliRunner().invoke(main, words).exit_code == 2


def test_what_moves_is_measured_without_padding():
    given = {"x": np.ones((1, 3), np.float32), "attention_mask": np.array([[1, 1, 0]])}
    one = SimpleNamespace(manifest={}, run=lambda it: {"y": it["x"]})
    other = SimpleNamespace(manifest={}, run=lambda it: {"y": it["x"] + [[0.1, 0.1, 9]]})
    assert moved(one, other, [given]) == {"y": pytest.approx(0.1)}
