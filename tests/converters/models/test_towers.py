"""Which library's class is to read a checkpoint: the one that has its towers, or the one asked for."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file

from weighbridge.cli import main
from weighbridge.converters.models import open as open_model
from weighbridge.converters.models.manifests import MANIFEST
from weighbridge.converters.models.towers import absent

SEES = {"model_type": "gemma3", "text_config": {"vocab_size": 9}, "vision_config": {"depth": 2}}

SIGLIP = {**SEES, "model_type": "siglip"}


@pytest.fixture
def saved(tmp_path):
    def save(config, *names, form="pt"):
        (tmp_path / "config.json").write_text(json.dumps(config))
        tensors = {name: np.zeros(1, np.float32) for name in names}
        save_file(tensors, tmp_path / "model.safetensors", {"format": form})
        return tmp_path

    return save


@pytest.mark.parametrize("form", ["pt", "mlx"])
@pytest.mark.parametrize(
    ("config", "tensor", "library"),
    [
        (SEES, "vision_tower.encoder.norm.weight", "mlx-vlm"),
        (SEES, "model.visual.norm.weight", "mlx-vlm"),
        (SEES, "language_model.model.norm.weight", "mlx-lm"),  # its tower was left out before
        ({**SEES, "architectures": ["Gemma3Model"]}, "vision_tower.norm.weight", "mlx-vlm"),
        ({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}, "visual.x", "mlx-lm"),
        ({**SIGLIP, "architectures": ["SiglipModel"]}, "vision_model.norm.bias", "mlx-embeddings"),
    ],
)
def test_the_library_that_has_the_towers_of_a_checkpoint_reads_it(
    saved, config, tensor, library, form
):
    assert open_model(saved(config, tensor, form=form)).library.library == library


def test_a_directory_of_ours_is_read_by_the_library_that_it_was_made_for(saved):
    folder = saved(SEES, "vision_tower.norm.weight")
    record = {"framework": "mlx", "library": {"name": "mlx-lm"}}
    (folder / MANIFEST).write_text(json.dumps(record))
    assert open_model(folder).library.library == "mlx-lm"


@pytest.mark.parametrize(
    ("config", "tensor", "said"),
    [
        (SEES, "model.norm.weight", ["config.json names vision_config, and no weights"]),
        (SEES, "vision_tower.norm.weight", []),
        ({"model_type": "qwen3", "text_config": {"vocab_size": 9}}, "model.norm.weight", []),
    ],
)
def test_a_tower_without_weights_is_named(saved, config, tensor, said):
    found = absent(open_model(saved(config, tensor)))
    assert [it.partition(" of it")[0] for it in found] == said


def test_what_a_library_does_not_do_is_refused_in_one_line(saved, tmp_path):
    source, options = saved(SEES, "vision_tower.norm.weight"), ["--library", "mlx-embeddings"]
    said = "has no class for model_type gemma3; mlx-lm and mlx-vlm"
    call = ["convert", "torch-to-mlx", str(source), str(tmp_path / "made"), *options]
    found = CliRunner().invoke(main, call)
    assert found.exit_code == 3
    assert said in found.output.splitlines()[-1]
    assert not (tmp_path / "made").exists()
