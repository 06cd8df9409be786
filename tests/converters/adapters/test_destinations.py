"""What a program cannot load is said before it is written, and how to run what it can."""

from __future__ import annotations

import json

import mlx.core as mx
import numpy as np
import pytest

from weighbridge.converters.adapters import fit, read_adapter, write_adapter
from weighbridge.converters.adapters.destinations import (
    DESTINATIONS,
    LLAMA_CPP,
    MLX_LM,
    MLX_SWIFT,
    VLLM,
    next_command,
    problems,
    suited,
)
from weighbridge.converters.adapters.mlx import writer as mlx_writer
from weighbridge.converters.checkpoints import Header
from weighbridge.converters.values import LowRank

Q, EMBED, HEAD = "model.layers.0.q.weight", "model.embed_tokens.weight", "lm_head.weight"
EXPERTS = "model.layers.0.mlp.experts.down_proj"
KINDS = {
    "model.layers.0.q": "linear",
    "model.embed_tokens": "embedding",
    "lm_head": "linear",
    EXPERTS: "experts",
}
ALL = tuple(DESTINATIONS)


def lowrank(rank=2, scale=2.0, *, dora=False, lead=()):
    a, b = np.ones((*lead, rank, 5), np.float32), np.ones((*lead, 7, rank), np.float32)
    return LowRank(a, b, scale, np.ones(7, np.float32) if dora else None)


CASES = {
    "linear": ({Q: lowrank()}, {}, {}, ALL),
    "DoRA": ({Q: lowrank(dora=True)}, {}, {}, ("mlx-lm", "mlx-swift")),
    "modules_to_save": ({Q: lowrank()}, {"x": np.ones(1)}, {}, ()),
    "a large rank": ({Q: lowrank(513)}, {}, {}, ("mlx-lm", "mlx-swift", "llama.cpp")),
    "two scales": ({Q: lowrank(), HEAD: lowrank(scale=3.0)}, {}, {}, ()),
    "two ranks": (
        {Q: lowrank(), "model.layers.1.q.weight": lowrank(4)},
        {},
        {"kinds": KINDS | {"model.layers.1.q": "linear"}},
        ("vllm", "mlx-lm", "mlx-swift"),
    ),
    "embedding of Llama": ({EMBED: lowrank()}, {}, {}, ("vllm", "mlx-lm", "llama.cpp")),
    "embedding of Qwen": ({EMBED: lowrank()}, {}, {"type": "qwen3"}, ("mlx-lm", "llama.cpp")),
    "head": ({HEAD: lowrank()}, {}, {}, ("vllm", "mlx-lm", "llama.cpp")),
    "tied head": ({HEAD: lowrank()}, {}, {"tied": True}, ()),
    "experts": ({EXPERTS: lowrank(lead=(3,))}, {}, {}, ("mlx-lm",)),
    "experts without kinds": ({EXPERTS: lowrank(lead=(3,))}, {}, {"kinds": None}, ("mlx-lm",)),
    "Conv1D": ({Q: lowrank()}, {}, {"kinds": {"model.layers.0.q": "conv1d"}}, ()),
    "another parameter": ({Q: lowrank()}, {}, {"kinds": {"model.norm": "linear"}}, ()),
}


@pytest.mark.parametrize("case", CASES)
def test_a_program_takes_what_its_loader_takes(case):
    updates, saved, more, expected = CASES[case]
    config = {
        "model_type": more.get("type", "llama"),
        "tie_word_embeddings": more.get("tied", False),
    }
    kinds = more.get("kinds", KINDS)
    found = {name: problems(it, updates, kinds, saved, config) for name, it in DESTINATIONS.items()}
    assert tuple(name for name, lines in found.items() if not lines) == expected
    assert all(line.startswith(f"{name} ") for name, lines in found.items() for line in lines)


def test_vllm_takes_the_experts_of_some_families():
    config, updates = {"model_type": "qwen3_5_moe"}, {EXPERTS: lowrank(lead=(3,))}
    assert problems(VLLM, updates, KINDS, {}, config) == []


def test_all_that_a_program_cannot_load_is_said():
    updates = {Q: lowrank(600, dora=True), EXPERTS: lowrank(scale=5.0, lead=(2,))}
    lines = problems(VLLM, updates, KINDS, {"norm.weight": np.ones(1)}, {"model_type": "mixtral"})
    assert lines == [
        "vllm loads no modules_to_save tensors, and there are norm.weight",
        f"vllm does not know DoRA ({Q})",
        "vllm takes ranks up to 512, and the largest is 600",
        f"vllm puts no adapter on modules of kind experts of mixtral ({EXPERTS})",
        f"vllm has one scale for all, and {EXPERTS} differ",
    ]


@pytest.mark.parametrize("destination", [VLLM, LLAMA_CPP])
def test_updates_are_brought_to_one_scale_and_mean_the_same(destination):
    updates = {Q: lowrank(2, 2.0), EMBED: lowrank(3, 0.7)}
    found = suited(destination, updates)
    assert problems(destination, found, KINDS, {}, {"model_type": "llama"}) == []
    for name, update in updates.items():
        np.testing.assert_allclose(found[name].delta(), update.delta(), rtol=1e-6)


def test_updates_that_are_alike_stay_as_they_are():
    updates = {Q: lowrank(), EMBED: lowrank()}
    assert suited(VLLM, updates) is updates


def test_mlx_swift_finds_modules_by_their_names_within_layers(tmp_path):
    updates = {f"model.layers.{n}.q.weight": lowrank() for n in range(2)}
    kinds = {f"model.layers.{n}.q": "linear" for n in range(2)}
    write_adapter(tmp_path, updates, config={}, kinds=kinds, layered=MLX_SWIFT.layered)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["lora_parameters"]["keys"] == ["q"]
    assert config["num_layers"] == 2  # Swift's suffix(-1) ends the program
    assert set(mx.load(str(tmp_path / "adapters.safetensors"))) == {
        f"model.layers.{n}.q.lora_{half}" for n in range(2) for half in "ab"
    }


def in_layers(*numbers, kind="q"):
    return {f"model.layers.{n}.{kind}.weight": lowrank() for n in numbers}


DEEP = {f"model.layers.{n}.{kind}": "linear" for n in range(4) for kind in "qv"}


@pytest.mark.parametrize("first", [0, 1, 3])
def test_mlx_swift_gets_the_number_of_the_last_layers(first, tmp_path):
    updates = in_layers(*range(first, 4))
    assert problems(MLX_SWIFT, updates, DEEP, {}, {}) == []
    write_adapter(tmp_path, updates, config={}, kinds=DEEP, layered=True)
    headers = {f"{path}.weight": Header("F32", (7, 5)) for path in DEEP}
    assert len(fit(read_adapter(tmp_path), headers, DEEP).updates) == 4 - first
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["num_layers"] == 4 - first


SCATTERED = {
    "a hole": (in_layers(1, 3), "there is no update of model.layers.2.q"),
    "the first": (in_layers(0, 1), "there is no update of model.layers.2.q, model.layers.3.q"),
    "two modules": (
        in_layers(2, 3) | in_layers(3, kind="v"),
        "there is no update of model.layers.2.v",
    ),
    "two stacks": (
        in_layers(3) | {"vision.blocks.0.q.weight": lowrank()},
        "one stack of layers, not on those of model.layers, vision.blocks",
    ),
}


@pytest.mark.parametrize("case", SCATTERED)
def test_layers_that_are_not_the_last_are_refused_for_mlx_swift(case):
    updates, message = SCATTERED[case]
    kinds = DEEP | {"vision.blocks.0.q": "linear"}
    (line,) = problems(MLX_SWIFT, updates, kinds, {}, {})
    assert line.endswith(message)
    assert problems(MLX_LM, updates, None, {}, {}) == []


COMMANDS = {
    "vllm": "vllm serve 'a base' --enable-lora --max-lora-rank 16 --lora-modules adapter=out",
    "mlx-lm": "mlx_lm.generate --model 'a base' --adapter-path out --prompt 'Hello'",
    "mlx-swift": (
        'let adapter = try LoRAContainer.from(directory: URL(filePath: "out"));'
        " try adapter.load(into: model)"
    ),
    "llama.cpp": ("python convert_lora_to_gguf.py out --base 'a base' --outfile out/adapter.gguf"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_next_command_is_one_that_can_be_pasted(name):
    assert next_command(DESTINATIONS[name], "out", "a base", rank=9) == COMMANDS[name]


def test_the_rank_comes_from_the_adapter(tmp_path):
    text = json.dumps({"r": 8, "rank_pattern": {"q": 20}})
    (tmp_path / "adapter_config.json").write_text(text)
    assert "--max-lora-rank 32 " in next_command(VLLM, tmp_path, "base")


def test_mlx_lm_takes_the_kinds_that_its_writer_writes():
    assert set(MLX_LM.kinds) == set(mlx_writer.KINDS)
