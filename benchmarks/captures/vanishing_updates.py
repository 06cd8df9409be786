"""Why torch.compile's losses leave those of PyTorch eager and MLX: updates lost in rounding.

    python benchmarks/captures/vanishing_updates.py

A small Llama with LoRA, four updates on the CPU: in float32, and in bfloat16 eager, compiled, and compiled with the
roundings of eager (``emulate_precision_casts``). What low-rank factors add is summed with outputs that are rounded
already, and what is below half a step of bfloat16 is lost there; torch.compile sums, goes on and rounds later.
Writes ``results/vanishing_updates.json``: by learning rate, how far each variant's loss has come from its first.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import torch
from torch._inductor import config
from transformers import LlamaConfig, LlamaForCausalLM

from weighbridge.benchmarks.captures.workloads import NextWord, Workload, llama, with_lora

RESULT: Final = Path(__file__).parents[1] / "results" / "vanishing_updates.json"
RATES: Final = (1e-5, 1e-3)
UPDATES: Final = 3
VARIANTS: Final = {  # dtype, compiled, rounded as eager
    "float32": (torch.float32, False, False),
    "bfloat16": (torch.bfloat16, False, False),
    "bfloat16, compiled": (torch.bfloat16, True, False),
    "bfloat16, compiled and rounded as eager": (torch.bfloat16, True, True),
}


def workload() -> Workload:
    """Return a Llama of two layers, the same each time, with inputs."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 2000}
    model = LlamaForCausalLM(LlamaConfig(**sizes, **heads, tie_word_embeddings=True))
    ids = torch.randint(0, 2000, (2, 128), generator=torch.Generator().manual_seed(1))
    return llama(tiny=True)._replace(module=NextWord(model).eval(), inputs={"input_ids": ids})


def losses(dtype: torch.dtype, compiled: bool, rounded: bool, rate: float) -> list[float]:
    """Return the losses before each of some updates at RATE."""
    given = workload()
    module = with_lora(given).to(dtype)
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=rate)
    found = []
    torch.compiler.reset()
    with config.patch(emulate_precision_casts=rounded):
        forward = torch.compile(module) if compiled else module
        for _ in range(UPDATES + 1):
            loss = forward(**given.inputs)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
    return found


def main() -> None:
    """Print and write how far the losses came."""
    rows: dict[str, dict[str, list[float]]] = {}
    for rate in RATES:
        for name, variant in VARIANTS.items():
            first, *others = losses(*variant, rate)
            rows.setdefault(f"{rate:g}", {})[name] = [round(loss - first, 5) for loss in others]
            print(f"{rate:g} {name:40} {rows[f'{rate:g}'][name]}", flush=True)
    RESULT.write_text(json.dumps({"torch": torch.__version__, "rates": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
