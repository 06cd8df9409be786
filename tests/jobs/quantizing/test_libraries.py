"""``quantize --library``: whose class decides which modules are quantized, and which reads the result."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from safetensors import safe_open

from weighbridge.cli import main
from weighbridge.tests.faults.commands import seeing


@pytest.fixture(scope="module")
def sees(tmp_path_factory):
    """Return the folder of a tiny Qwen2-VL whose language model can be quantized in groups of 32."""
    folder = tmp_path_factory.mktemp("quantized") / "sees"
    seeing(folder)
    return folder


def run(source, target, *words):
    words = ("quantize", source, target, "--group-size", "32", "--check", "none", *words)
    result = CliRunner().invoke(main, [*map(str, words)])
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("library", "towers"), [(None, True), ("mlx-vlm", True), ("mlx-lm", False)]
)
def test_the_class_of_the_library_asked_for_has_the_towers_or_not(sees, tmp_path, library, towers):
    code, said = run(sees, tmp_path / "q", *(("--library", library) if library else ()))
    assert code == 0, said
    record = json.loads((tmp_path / "q" / "weighbridge.json").read_text())
    assert record["library"]["name"] == (library or "mlx-vlm")
    with safe_open(tmp_path / "q" / "model.safetensors", "np") as file:
        names = [*file.keys()]
    assert any(it.endswith(".scales") for it in names)
    assert any("vision" in it for it in names) is towers
    assert not any("vision" in it and it.endswith(".scales") for it in names)


def test_a_library_without_the_class_is_one_line_that_names_those_with_it(sees, tmp_path):
    code, said = run(sees, tmp_path / "q", "--library", "mlx-embeddings")
    assert code == 3
    assert "mlx-embeddings" in said
    assert "mlx-lm" in said
    assert not (tmp_path / "q").exists()
