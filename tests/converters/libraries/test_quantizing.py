"""What a library would quantize is what its own code quantizes in a real model."""

from __future__ import annotations

import contextlib
import copy
import io
import json

import pytest

from weighbridge.converters.configs import to_mlx
from weighbridge.converters.libraries import find
from weighbridge.converters.libraries.quantizing import decide, schemes_of
from weighbridge.converters.quantization import Scheme
from weighbridge.errors import BadInputError
from weighbridge.tests.support.atlas import tiny
from weighbridge.tests.support.quantized_bases import LLAMA, MOE
from weighbridge.tests.support.small_configs import VIT

BERT = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 50,
    "max_position_embeddings": 32,
}


def no_wish(_):
    return True


@pytest.mark.parametrize("config", [LLAMA, MOE], ids=lambda config: config["model_type"])
def test_mlx_lm_decides_for_its_own_classes(config):
    from mlx_lm.utils import quantize_model

    target = find(config)
    model = target.build(config)
    with contextlib.redirect_stdout(io.StringIO()):
        _, expected = quantize_model(model, copy.deepcopy(config), 64, 4)
    made = decide(target, config, Scheme(4, 64), no_wish)
    assert (made.schemes, made.config) == (dict(schemes_of(model)), expected)
    assert len(made.schemes) > 5


@pytest.mark.heavy  # imports mlx-embeddings
def test_mlx_embeddings_decides_for_its_own_classes():
    from mlx_embeddings.convert import quantize_model

    target = find(BERT)
    model = target.build(BERT)
    with contextlib.redirect_stdout(io.StringIO()):
        _, expected = quantize_model(model, copy.deepcopy(BERT), 64, 4)
    made = decide(target, BERT, Scheme(4, 64), no_wish)
    assert (made.schemes, made.config) == (dict(schemes_of(model)), expected)
    assert "encoder.layer.0.output.dense" not in made.schemes  # 96 columns


def test_wishes_are_heard_by_mlx_embeddings_and_recorded():
    def wish(path):
        return Scheme(8, 32) if path.endswith("query") else "pooler" not in path

    made = decide(find(BERT), BERT, Scheme(4, 64), wish)
    query = "encoder.layer.0.attention.self.query"
    assert made.schemes[query] == Scheme(8, 32)
    assert made.config["quantization"][query] == Scheme(8, 32).record
    assert not any("pooler" in path for path in made.schemes)


def test_mlx_vlm_keeps_the_towers(tmp_path):
    tiny.make("qwen2_vl", tmp_path, own={"text_config": {"hidden_size": 64}})
    config = json.loads((tmp_path / "config.json").read_text())
    target = find(config, "mlx-vlm")
    made = decide(target, to_mlx(config, target).config, Scheme(4, 32), no_wish)
    assert "language_model.lm_head" in made.schemes
    assert any("vision_tower" in path for path in made.shapes)
    assert not any("vision_tower" in path for path in made.schemes)


def test_a_class_of_ours_is_quantized_as_mlx_lm_would():
    config = VIT | {"architectures": ["ViTModel"], "model_type": "vit", "hidden_size": 64}
    made = decide(find(config), config, Scheme(4, 32), no_wish)
    assert made.schemes
    assert set(made.schemes.values()) == {Scheme(4, 32)}


def test_a_group_that_does_not_fit_a_wish_is_named():
    with pytest.raises(
        BadInputError, match=r"o_proj \[64, 64\] cannot be quantized as 4-bit affine"
    ):
        decide(
            find(LLAMA),
            LLAMA,
            Scheme(4, 64),
            lambda path: Scheme(4, 128) if "o_proj" in path else True,
        )
