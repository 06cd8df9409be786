"""What a class of a library makes of a config and of weights."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from weighbridge.converters.checkpoints import Header
from weighbridge.converters.libraries import find, user_target
from weighbridge.converters.libraries.floats import decoded
from weighbridge.converters.libraries.protocols import mlx_vlm
from weighbridge.converters.libraries.target import sanitized
from weighbridge.errors import BadInputError, MismatchError, UnsupportedError

LLAMA = {
    "model_type": "llama",
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "intermediate_size": 40,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "rms_norm_eps": 1e-5,
    "vocab_size": 50,
    "tie_word_embeddings": True,
}
GEMMA3 = {
    **LLAMA,
    "model_type": "gemma3_text",
    "sliding_window_pattern": 2,
    "query_pre_attn_scalar": 8,
}
MIXTRAL = {**LLAMA, "model_type": "mixtral", "num_local_experts": 3, "num_experts_per_tok": 2}


def test_parameters_are_those_of_the_class():
    target = find(LLAMA)
    found = target.parameters(LLAMA)
    assert found["model.layers.1.self_attn.k_proj.weight"] == Header("F32", (8, 24))
    expected = {name: value.shape for name, value in tree_flatten(target.build(LLAMA).parameters())}
    assert {name: header.shape for name, header in found.items()} == expected


def test_a_model_of_70_billion_parameters_takes_no_memory():
    sizes = {"hidden_size": 8192, "num_hidden_layers": 80, "intermediate_size": 28672}
    config = {**LLAMA, **sizes, "num_attention_heads": 64, "head_dim": 128, "vocab_size": 128256}
    before = mx.get_active_memory()
    found = find(config).parameters(config)
    assert sum(header.nbytes for header in found.values()) > 200e9
    assert mx.get_active_memory() - before < 1e6


def test_every_build_is_a_new_object_and_the_config_stays():
    config = dict(LLAMA)
    target = find(config)
    assert target.build(config) is not target.build(config)
    assert config == LLAMA


def test_sanitize_is_the_librarys_own_and_leaves_the_dict_of_the_caller():
    import mlx_lm.models.mixtral as library

    generator = np.random.default_rng(5)
    names = [
        f"model.layers.0.block_sparse_moe.experts.{e}.w{w}.weight"
        for e in range(3)
        for w in (1, 2, 3)
    ]
    weights = {name: mx.array(generator.normal(size=(40, 24))) for name in names}
    before = list(weights)
    found = find(MIXTRAL).sanitize({**MIXTRAL, "num_hidden_layers": 1}, weights)
    args = library.ModelArgs.from_dict({**MIXTRAL, "num_hidden_layers": 1})
    expected = library.Model(args).sanitize(dict(weights))
    assert list(weights) == before
    assert list(found) == list(expected)
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("tied", [True, False])
def test_a_head_that_sanitize_takes_out_is_not_a_parameter(tied):
    config = {**GEMMA3, "tie_word_embeddings": tied}
    assert ("lm_head.weight" in find(config).parameters(config)) is not tied


def test_loading_gives_the_module_its_weights():
    target = find(GEMMA3)
    weights = {
        name: mx.full(header.shape, 0.5) for name, header in target.parameters(GEMMA3).items()
    }
    model = target.load(GEMMA3, weights)
    assert float(model.model.norm.weight[3]) == 0.5
    assert model(mx.array([[1, 2, 3]])).shape == (1, 3, 50)


def test_weights_that_do_not_fit_are_all_listed():
    weights = {name: mx.zeros(head.shape) for name, head in find(LLAMA).parameters(LLAMA).items()}
    weights["model.norm.weight"] = mx.zeros((3,))
    weights["model.norm.bias"] = weights.pop("model.layers.1.input_layernorm.weight")
    with pytest.raises(MismatchError) as refusal:
        find(LLAMA).load(LLAMA, weights)
    assert refusal.value.problems == (
        "model.layers.1.input_layernorm.weight [24] is missing",
        "model.norm.bias [24] is unexpected",
        "model.norm.weight is [3], expected [24]",
    )


def test_a_config_that_misses_keys_is_refused_with_all_of_them():
    with pytest.raises(BadInputError) as refusal:
        find(LLAMA).build({"model_type": "llama", "vocab_size": 50, "num_hidden_layers": 2})
    text = str(refusal.value)
    for name in ("mlx_lm.models.llama", "hidden_size", "intermediate_size", "rms_norm_eps"):
        assert name in text
    assert "vocab_size" not in text.partition(";")[0]


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_size": "many"},
        {"num_hidden_layers": None},
        {"rope_scaling": {"rope_type": "unheard-of", "factor": 2}},
        {"rope_scaling": {"rope_type": "linear"}},
    ],
)
def test_a_config_that_the_class_cannot_build_from_is_refused_in_one_line(change):
    with pytest.raises(BadInputError, match=r"mlx_lm\.models\.llama") as refusal:
        find(LLAMA).build({**LLAMA, **change})
    assert "\n" not in str(refusal.value)


def test_infinity_as_transformers_writes_it_is_read():
    config = {"model_type": "granitemoehybrid", "limits": [0.0, {"__float__": "Infinity"}]}
    assert decoded(config)["limits"] == [0.0, float("inf")]


class Recorder:
    """A part of a made-up mlx-vlm package that writes down whose turn it was."""

    def __init__(self, config=None):
        self.config = config

    @classmethod
    def from_dict(cls, values):
        return SimpleNamespace(**values)

    def sanitize(self, weights):
        turn = f"{type(self).__name__} {getattr(self.config, 'model_type', None)}"
        return {**weights, "turns": [*weights.get("turns", []), turn]}


@pytest.mark.parametrize("missing", [(), ("AudioModel",), ("VisionModel", "AudioModel")])
def test_mlx_vlm_sanitizes_in_the_order_of_its_own_loading(missing):
    parts = ["VisionModel", "LanguageModel", "AudioModel"]
    names = ["ModelConfig", "TextConfig", "VisionConfig", "AudioConfig", "Model", *parts]
    module = SimpleNamespace(**{n: type(n, (Recorder,), {}) for n in names if n not in missing})
    kinds = {"vision_config": "eye", "text_config": "mouth", "audio_config": "ear"}
    config = {"model_type": "all", **{key: {"model_type": kind} for key, kind in kinds.items()}}
    made = dict(zip(parts, ["eye", "mouth", "ear"], strict=True))
    expected = ["Model all", *(f"{name} {made[name]}" for name in parts if name not in missing)]
    assert sanitized(mlx_vlm(module, config), {})["turns"] == expected


PORT = """
import mlx.nn as nn

class Port(nn.Module):
    def __init__(self, config={"width": 5}):
        super().__init__()
        self.dense = nn.Linear(3, config["width"])

    def sanitize(self, weights):
        return {name.removeprefix("old."): value for name, value in weights.items()}

def wide(config):
    return Port(config)

def broken():
    raise RuntimeError("no such size")

NUMBER = 3
"""


@pytest.fixture
def port(tmp_path, monkeypatch):
    (tmp_path / "port_of_mine.py").write_text(PORT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield "port_of_mine"
    sys.modules.pop("port_of_mine", None)


@pytest.mark.parametrize(("name", "width"), [("Port", 5), ("wide", 7)])
def test_a_users_class_or_function_is_a_target(port, name, width):
    target = user_target(f"{port}:{name}")
    assert (target.library, target.module) == ("user", f"{port}:{name}")
    assert target.parameters({"width": 7})["dense.weight"].shape == (width, 3)
    assert list(target.sanitize({"width": 7}, {"old.x": mx.ones(2)})) == ["x"]


@pytest.mark.parametrize("name", ["NUMBER", "broken"])
def test_what_a_user_names_must_give_a_module(port, name):
    with pytest.raises(BadInputError, match=port):
        user_target(f"{port}:{name}").build({})


def test_a_library_that_is_not_installed_is_named(monkeypatch):
    from weighbridge.converters.libraries.packages import version

    with pytest.raises(UnsupportedError, match="pip install mlx-nothing"):
        version("mlx-nothing")
