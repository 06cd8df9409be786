"""A 4-bit base under LoRA and a trainable head: gradients against PyTorch, and codes after training.

    python benchmarks/captures/quantized_base.py [--steps 20]

Tiny models with random weights, captured and quantized. PyTorch and PEFT run the same module on the
canonical values of the codes, in float32, with the same factors and head. ``gradient`` is the largest
difference of a gradient, ``outputs`` of an output, relative to the largest value among them; ``torch``
that of PyTorch's own gradients from those in float64; ``losses`` the largest difference of a loss over
an AdamW run of both. Writes ``results/quantized_base.json``.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import numpy as np
import torch
from mlx import nn as mlx_nn
from mlx import optimizers
from mlx.utils import tree_flatten
from peft import LoraConfig, LoraModel
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

import weighbridge
from weighbridge.converters.values import LowRank

RESULT: Final = Path(__file__).resolve().parents[1] / "results" / "quantized_base.json"
VOCABULARY: Final = 64
COMMON: Final[dict[str, Any]] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}
EXPERTS: Final = {"moe_intermediate_size": 64, "num_experts": 4, "num_experts_per_tok": 2}
GPT2: Final = {
    "vocab_size": VOCABULARY,
    "n_embd": 128,
    "n_head": 4,
    "n_layer": 2,
    "n_positions": 32,
}
MODELS: Final[dict[str, tuple[dict[str, Any], list[str]]]] = {
    "llama": (COMMON, ["q_proj", "v_proj", "down_proj"]),
    "llama, tied": ({**COMMON, "tie_word_embeddings": True}, ["q_proj", "v_proj"]),
    "qwen3": (COMMON, ["q_proj", "o_proj"]),
    "qwen3_moe": ({**COMMON, **EXPERTS}, ["q_proj", "o_proj"]),
    "gpt2": (GPT2, []),
}
SCHEMES: Final[dict[str, dict[str, Any]]] = {
    "4-bit affine": {"bits": 4, "group_size": 64},
    "mxfp4": {"mode": "mxfp4"},
}


class Headed(nn.Module):
    """A language model with a head of its own on its logits."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base, self.head = base, nn.Linear(VOCABULARY, 8)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return eight numbers for each token."""
        return self.head(torch.tanh(self.base(input_ids=input_ids).logits))


def build(name: str) -> Headed:
    """Return a model with weights of the gain that trained ones have."""
    torch.manual_seed(0)
    kind, settings = name.partition(",")[0], MODELS[name][0]
    config = AutoConfig.for_model(kind, **settings, use_cache=False)
    config._experts_implementation = "batched_mm"
    module = Headed(AutoModelForCausalLM.from_config(config)).eval()
    for label, parameter in module.named_parameters():
        with torch.no_grad():
            if parameter.ndim < 2:
                parameter.add_(0.1 * torch.randn_like(parameter))
            else:
                into = parameter.shape[0 if ".c_" in label else -1]
                parameter.normal_(0, 1.5 / into**0.5)
    return module


def pair(name: str, scheme: Mapping[str, Any]) -> tuple[Any, Any, dict[str, nn.Parameter]]:
    """Return the capture, PEFT's model on its canonical values, and what is trained, by our names."""
    module, ids = build(name), torch.ones(2, 16, dtype=torch.int64)
    captured = weighbridge.capture(module, inputs={"input_ids": ids})
    captured.quantize(lambda weight, _: weight.startswith("base."), **scheme)
    module.load_state_dict(captured.torch_state_dict(), strict=True)
    trained: dict[str, nn.Parameter] = {}
    updates = {}
    if targets := MODELS[name][1]:
        module = LoraModel(module, LoraConfig(r=4, lora_alpha=8, target_modules=targets), "d").model
        module.head.requires_grad_(True)
    for path, layer in module.named_modules():
        if "d" in getattr(layer, "lora_A", {}):
            a, b = layer.lora_A["d"].weight, layer.lora_B["d"].weight
            nn.init.normal_(b, 0, 0.1)
            updates[f"{path}.weight"] = LowRank(a.detach().numpy(), b.detach().numpy(), 2.0)
            trained |= {f"{path}.lora_a": a, f"{path}.lora_b": b}
    captured.set_adapters(updates, train=["head"])
    trained |= {f"head.{key}": each for key, each in module.head.named_parameters()}
    return captured, module, trained


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and targets, other ones for every step."""
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(1, VOCABULARY, (2, 16), generator=generator)
    return ids, torch.randn(2, 16, 8, generator=generator)


def relative(found: Mapping[str, Any], expected: Mapping[str, np.ndarray]) -> float:
    """Return the largest difference, relative to the largest value expected."""
    scale = max(np.abs(array).max() for array in expected.values())
    worst = max(np.abs(np.array(found[name]) - array).max() for name, array in expected.items())
    return float(worst / scale)


def turned(name: str, tensor: torch.Tensor) -> np.ndarray:
    """Return a tensor as it lies in the capture: factors are the other way round in PEFT."""
    return (tensor.T if "lora_" in name else tensor).detach().numpy()


def compare(name: str, scheme: Mapping[str, Any], steps: int) -> dict[str, Any]:
    """Compare outputs, gradients and an AdamW run; say whether any code changed."""
    captured, module, trained = pair(name, scheme)
    before = stored(captured)
    ids, target = batch(0)
    expected = module(ids)
    outputs = relative({"": captured(input_ids=mx.array(ids.numpy()))}, {"": turned("", expected)})
    exact = exact_gradients(module, trained, ids, target)
    nn.functional.mse_loss(expected, target).backward()
    step = mlx_nn.value_and_grad(captured, loss_of(captured))
    _, gradients = step(*map(to_mlx, (ids, target)))
    wanted = {key: turned(key, each.grad) for key, each in trained.items()}
    found = dict(tree_flatten(gradients))
    assert found.keys() == wanted.keys()
    losses = run(captured, step, module, trained, steps)
    after = stored(captured)
    return {
        "outputs": outputs,
        "gradient": relative(found, wanted),
        "torch": relative(wanted, exact),
        "losses": losses,
        "quantized": len(captured.blocks()),
        "codes identical": before == after,
    }


def exact_gradients(
    module: Any, trained: Mapping[str, nn.Parameter], ids: torch.Tensor, target: torch.Tensor
) -> dict[str, np.ndarray]:
    """Return the gradients in float64."""
    wide = copy.deepcopy(module).double()
    nn.functional.mse_loss(wide(ids), target.double()).backward()
    names = {id(each): name for name, each in module.named_parameters()}
    own = dict(wide.named_parameters())
    return {key: turned(key, own[names[id(each)]].grad) for key, each in trained.items()}


def stored(captured: Any) -> dict[str, bytes]:
    """Return every part of every quantized weight, as bytes."""
    blocks = captured.blocks().items()
    return {f"{n} {part}": a.tobytes() for n, b in blocks for part, a in b.parts.items()}


def to_mlx(tensor: torch.Tensor) -> mx.array:
    """Return TENSOR in MLX."""
    return mx.array(tensor.numpy())


def loss_of(captured: Any) -> Callable[[mx.array, mx.array], mx.array]:
    """Return the function of a batch that is trained."""
    return lambda ids, target: (captured(input_ids=ids) - target).square().mean()


def run(captured: Any, step: Any, module: Any, trained: Mapping[str, Any], steps: int) -> float:
    """Return the largest difference of a loss over an AdamW run in both frameworks."""
    ours = optimizers.AdamW(3e-3, weight_decay=0.01, bias_correction=True)
    theirs = torch.optim.AdamW(list(trained.values()), 3e-3, weight_decay=0.01)
    worst = 0.0
    for number in range(1, steps + 1):
        ids, target = batch(number)
        loss, gradients = step(to_mlx(ids), to_mlx(target))
        ours.update(captured, gradients)
        theirs.zero_grad()
        wanted = nn.functional.mse_loss(module(ids), target)
        wanted.backward()
        theirs.step()
        worst = max(worst, abs(float(loss) - wanted.item()))
    return worst


def main() -> None:
    """Compare every model and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    rows = {
        f"{name}, {label}": compare(name, scheme, arguments.steps)
        for name in MODELS
        for label, scheme in SCHEMES.items()
    }
    for name, row in rows.items():
        numbers = ", ".join(
            f"{key} {row[key]:.1e}" for key in ("outputs", "gradient", "torch", "losses")
        )
        same = "codes identical" if row["codes identical"] else "CODES CHANGED"
        print(
            f"{name}: {numbers}; {row['quantized']} weights, {same} after {arguments.steps} steps"
        )
    worst = max(row["gradient"] for row in rows.values())
    print(f"largest gradient error {worst:.1e}, allowed 1e-5")
    RESULT.write_text(json.dumps({"steps": arguments.steps, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
