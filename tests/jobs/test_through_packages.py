"""A model goes through each package of a user: its own functions write what a verb reads, or read what one wrote."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import mlx.core as mx
import numpy as np
import onnx
import pytest
import safetensors.numpy
import torch
import transformers
from click.testing import CliRunner

from weighbridge.cli import main
from weighbridge.converters.captures.mlprogram.toolkit import coremltools
from weighbridge.tests.support.shallow import shallow

UNREAD: Final = "pooler."  # of a file that computes hidden states alone
WEIGHTS: Final = "model.safetensors"
Arrays = Mapping[str, Any]


def run(*words: object) -> None:
    """Run the command of WORDS and require that it passes."""
    result = CliRunner().invoke(main, [str(it) for it in words])
    assert result.exit_code == 0, result.output


def beside(model: Path, folder: Path) -> Path:
    """Return FOLDER, made with the configuration of MODEL."""
    folder.mkdir()
    shutil.copy(model / "config.json", folder)
    return folder


def own(model: Path) -> Arrays:
    """Return the weights of MODEL."""
    return safetensors.numpy.load_file(model / WEIGHTS)


def in_mlx(model: Path, folder: Path) -> tuple[Path, dict[str, mx.array]]:
    """Convert MODEL to MLX; return an empty directory for it and its weights, as MLX reads them."""
    run("convert", "torch-to-mlx", model, folder / "mlx")
    return beside(folder / "mlx", folder / "again"), mx.load(str(folder / "mlx" / WEIGHTS))


def by_torch(model: Path, folder: Path) -> Path:
    """Write MODEL by ``torch.save``."""
    source = beside(model, folder / "source")
    state = {name: torch.from_numpy(it) for name, it in own(model).items()}
    torch.save(state, source / "pytorch_model.bin")
    return source


def by_transformers(model: Path, folder: Path) -> Path:
    """Write MODEL by ``save_pretrained``."""
    transformers.AutoModel.from_pretrained(model).save_pretrained(folder / "source")
    return folder / "source"


def by_safetensors(model: Path, folder: Path) -> Path:
    """Write MODEL by ``save_file``."""
    source = beside(model, folder / "source")
    safetensors.numpy.save_file(dict(own(model)), source / WEIGHTS)
    return source


def by_mlx(model: Path, folder: Path) -> Path:
    """Write MODEL, as MLX has it, by ``mx.save_safetensors``."""
    source, weights = in_mlx(model, folder)
    mx.save_safetensors(str(source / WEIGHTS), weights, metadata={"format": "mlx"})
    return source


def by_numpy(model: Path, folder: Path) -> Path:
    """Write MODEL, as MLX has it, by ``np.savez``."""
    source, weights = in_mlx(model, folder)
    np.savez(source / "weights.npz", **{name: np.array(it) for name, it in weights.items()})
    return source


def by_onnx(model: Path, folder: Path) -> Path:
    """Write MODEL's graph again by ``onnx.save``, once the checker of onnx has passed it."""
    run("export", "onnx", model, folder / "m.onnx")
    graph = onnx.load(folder / "m.onnx")
    onnx.checker.check_model(graph, full_check=True)
    onnx.save(graph, folder / "again.onnx")
    return folder / "again.onnx"


def by_coremltools(model: Path, folder: Path) -> Path:
    """Write MODEL's package again by ``MLModel.save``."""
    run("export", "coreml", model, folder / "m.mlpackage", "--precision", "fp32")
    package = coremltools.models.MLModel(str(folder / "m.mlpackage"), skip_model_load=True)
    package.save(str(folder / "again.mlpackage"))
    return folder / "again.mlpackage"


def read_by_torch(target: Path) -> Arrays:
    """Return the weights in TARGET, as transformers puts them into a module of torch."""
    module = transformers.AutoModel.from_pretrained(target)
    assert isinstance(module, torch.nn.Module)
    return {name: it.numpy() for name, it in module.state_dict().items()}


class Way(NamedTuple):
    """How a package writes a model, what verbs take it back to torch, and how the result is read."""

    write: Callable[[Path, Path], Path]
    verbs: tuple[str, ...]
    read: Callable[[Path], Arrays] = own


BOTH: Final = ("torch-to-mlx", "mlx-to-torch")
WAYS: Final[Mapping[str, Way]] = {
    "torch": Way(by_torch, BOTH),
    "transformers": Way(by_transformers, BOTH, read_by_torch),
    "safetensors": Way(by_safetensors, BOTH),
    "mlx": Way(by_mlx, ("mlx-to-torch",)),
    "numpy": Way(by_numpy, ("mlx-to-torch",)),
    "onnx": Way(by_onnx, ("onnx-to-torch",)),
    "coremltools": Way(by_coremltools, ("coreml-to-torch",)),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return shallow("bert", tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("package", WAYS)
def test_what_a_package_wrote_comes_back_byte_for_byte(package, model, tmp_path):
    way = WAYS[package]
    at, like = way.write(model, tmp_path), beside(model, tmp_path / "like")
    needed = way.verbs[0] in ("onnx-to-torch", "coreml-to-torch")
    for verb in way.verbs:
        target = tmp_path / verb
        run("convert", verb, at, target, *(("--like", like) if needed else ()))
        at = target
    found, wanted = way.read(at), own(model)
    assert all(needed and name.startswith(UNREAD) for name in wanted.keys() - found.keys())
    for name in wanted.keys() & found.keys():
        assert found[name].tobytes() == wanted[name].tobytes(), name


def test_click_runs_the_command_inside_a_command_of_ones_own(model, tmp_path):
    """It is a group of click: a context that another command has made calls it, and gets its result."""
    assert isinstance(main, click.Group)
    tools = click.Group("tools", commands={"weighbridge": main})
    words = ["weighbridge", "convert", "torch-to-mlx", str(model), str(tmp_path / "mlx")]
    result = CliRunner().invoke(tools, words)
    assert result.exit_code == 0, result.output
    run("convert", "mlx-to-torch", tmp_path / "mlx", tmp_path / "back")
    found = own(tmp_path / "back")
    assert all(found[name].tobytes() == it.tobytes() for name, it in own(model).items())
    missing = CliRunner().invoke(
        tools, [*words[:3], str(tmp_path / "nothing"), str(tmp_path / "x")]
    )
    assert missing.exit_code == 3
    assert "Traceback" not in missing.output
