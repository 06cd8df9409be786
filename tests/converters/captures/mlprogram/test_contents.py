"""What a package holds, read from its messages: against what the loaded program says."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from weighbridge.cli import main
from weighbridge.converters.captures.mlprogram import load_program
from weighbridge.converters.captures.mlprogram.contents import constants, described
from weighbridge.converters.captures.mlprogram.package import read_package
from weighbridge.converters.captures.mlprogram.toolkit import coremltools, quiet
from weighbridge.converters.coreml.export import export_coreml
from weighbridge.converters.coreml.writing import save
from weighbridge.tests.support.coreml import modules

with quiet():
    import coremltools.optimize.coreml as compression

WAYS = {
    "int8 per channel": ("linear_quantize_weights", "OpLinearQuantizerConfig", {}),
    "table of 4": ("palettize_weights", "OpPalettizerConfig", {"mode": "uniform", "nbits": 2}),
    "sparse": ("prune_weights", "OpMagnitudePrunerConfig", {"target_sparsity": 0.5}),
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Return a package of one layer of attention."""
    target = tmp_path_factory.mktemp("plain") / "m.mlpackage"
    export_coreml(*modules.heads8(), target)
    return target


@pytest.fixture(params=WAYS)
def compressed(request, plain, tmp_path):
    """Return how a package is compressed, and the package."""
    function, config, options = WAYS[request.param]
    op = getattr(compression, config)(weight_threshold=0, **options)
    with quiet():
        model = coremltools.models.MLModel(str(plain), skip_model_load=True)
        made = getattr(compression, function)(model, compression.OptimizationConfig(op))
    save(made, tmp_path / "m.mlpackage")
    return request.param, tmp_path / "m.mlpackage"


def test_the_census_and_the_constants_are_those_of_the_loaded_program(compressed):
    how, path = compressed
    program, facts = load_program(path), described(path)
    assert facts["operations"] == {"main": dict(program.census)}
    loaded = {name: array.shape for name, array in program.constants().items()}
    found = {it.name: it for it in constants(read_package(path), "main")}
    assert {name: it.shape for name, it in found.items()} == loaded
    assert {name for name, it in found.items() if it.how} == {*program.compressed()}
    assert facts["compressed"] == {how: 3}


def test_compressed_constants_take_the_bytes_of_their_codes(plain, compressed):
    _, path = compressed
    before, after = (
        sum(it.nbytes for it in constants(read_package(p), "main")) for p in (plain, path)
    )
    assert after < before
    assert after < (path / "Data/com.apple.CoreML/weights/weight.bin").stat().st_size


def test_inspect_shows_what_a_package_holds(plain):
    result = CliRunner().invoke(main, ["inspect", str(plain), "--json"])
    facts = json.loads(result.stdout)
    assert result.exit_code == 0
    assert facts["runs on"].startswith("iOS 17, macOS 14")
    assert facts["functions"] == ["main"]
    assert "tokens_weight" in facts["largest"][0]
    assert facts["bytes"] == sum(it.stat().st_size for it in plain.rglob("*") if it.is_file())


def test_inspecting_a_package_imports_no_framework(plain):
    code = (
        "import sys; from weighbridge.cli import main\n"
        f"try: main(['inspect', {str(plain)!r}])\n"
        "except SystemExit: pass\n"
        "print({'torch', 'coremltools', 'mlx', 'transformers'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()", done.stdout
