# ruff: noqa: D102 - a layer says what calling it does
"""Three training steps as PyTorch modules that return a loss, with their inputs, at full and at tiny size."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional
from transformers import (
    BertConfig,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5EncoderModel,
)

RANK, SCALE = 16, 2.0


class Workload(NamedTuple):
    """A module that returns a loss, its inputs, and the names of linear layers that LoRA is put at."""

    module: nn.Module
    inputs: dict[str, torch.Tensor]
    adapted: tuple[str, ...]
    examples: int


class InfoNCE(nn.Module):
    """The first half of a batch is to find the second half: cosines, temperature 1 / 20."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, input_ids):
        states = self.model(input_ids=input_ids).last_hidden_state
        vectors = functional.normalize(states.mean(1).float(), dim=-1)
        queries, documents = vectors.chunk(2)
        scores = queries @ documents.T * 20
        return functional.cross_entropy(scores, torch.arange(len(scores), device=scores.device))


class MaxSim(nn.Module):
    """Late interaction: each word of a query takes its nearest word of a document."""

    def __init__(self, model: nn.Module, width: int):
        super().__init__()
        self.model, self.projection = model, nn.Linear(width, 128, bias=False)

    def vectors(self, ids):
        states = self.projection(self.model(input_ids=ids).last_hidden_state)
        return functional.normalize(states.float(), dim=-1).to(states.dtype)

    def forward(self, queries, documents):
        q, d = self.vectors(queries), self.vectors(documents)
        scores = (q.flatten(0, 1) @ d.flatten(0, 1).T).float()
        scores = scores.view(*q.shape[:2], *d.shape[:2]).amax(-1).sum(1)
        return functional.cross_entropy(scores, torch.arange(len(scores), device=scores.device))


class NextWord(nn.Module):
    """The loss of a language model."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, input_ids):
        logits = self.model(input_ids=input_ids, use_cache=False).logits[:, :-1]
        return functional.cross_entropy(logits.flatten(0, 1).float(), input_ids[:, 1:].flatten())


def _ids(words: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, words, shape, generator=generator)


def bert(tiny: bool) -> Workload:
    """BERT-base, all weights, 64 pairs of 128 tokens."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes = sizes | {"intermediate_size": 64, "vocab_size": 99} if tiny else {}
    config = BertConfig(**sizes, attn_implementation="sdpa")
    pairs, length = (4, 16) if tiny else (64, 128)
    module = InfoNCE(BertModel(config, add_pooling_layer=False))
    return Workload(module, {"input_ids": _ids(config.vocab_size, 2 * pairs, length)}, (), pairs)


def t5(tiny: bool) -> Workload:
    """The encoder of T5-base, LoRA of rank 16 at q, k, v, o; 32 queries of 32 and documents of 256."""
    sizes: dict[str, Any] = {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12}
    if tiny:
        sizes = {
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 64,
            "num_layers": 2,
            "num_heads": 4,
            "vocab_size": 99,
        }
    config = T5Config(**sizes)
    queries, documents, count = (8, 16, 4) if tiny else (32, 256, 32)
    inputs = {
        "queries": _ids(config.vocab_size, count, queries),
        "documents": _ids(config.vocab_size, count, documents),
    }
    return Workload(
        MaxSim(T5EncoderModel(config), config.d_model), inputs, ("q", "k", "v", "o"), count
    )


def llama(tiny: bool) -> Workload:
    """The shape of Llama-3.2-1B, LoRA of rank 16 at 7 linear layers, 4 sequences of 1,024."""
    sizes = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16}
    sizes |= {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256}
    if tiny:
        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
        sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 99}
    config = LlamaConfig(**sizes, tie_word_embeddings=True, rope_theta=500000.0)
    shape = (2, 16) if tiny else (4, 1024)
    adapted = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    inputs = {"input_ids": _ids(config.vocab_size, *shape)}
    return Workload(NextWord(LlamaForCausalLM(config)), inputs, adapted, shape[0])


WORKLOADS = {"bert": bert, "t5": t5, "llama": llama}


def made(name: str, tiny: bool, dtype: torch.dtype) -> Workload:
    """Return workload NAME in DTYPE and eval mode, with the same weights each time.

    Its buffers, such as rotary frequencies, stay in float32, as ``from_pretrained`` leaves them.
    """
    torch.manual_seed(0)
    workload = WORKLOADS[name](tiny)
    module = workload.module.eval()
    for parameter in module.parameters():
        parameter.data = parameter.data.to(dtype)
    return workload._replace(module=module)


def adapted_layers(workload: Workload) -> list[str]:
    """Return the paths of the linear layers that LoRA is put at."""
    return [
        path
        for path, child in workload.module.named_modules()
        if isinstance(child, nn.Linear) and path.rpartition(".")[2] in workload.adapted
    ]


class LoRA(nn.Module):
    """A frozen linear layer and its update (Hu et al. 2021, equation 3)."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.linear = linear
        like = {"dtype": linear.weight.dtype, "device": linear.weight.device}
        bound = 1 / linear.in_features**0.5
        self.lora_a = nn.Parameter(
            torch.empty(linear.in_features, RANK, **like).uniform_(-bound, bound)
        )
        self.lora_b = nn.Parameter(torch.zeros(RANK, linear.out_features, **like))

    def forward(self, x):
        return self.linear(x) + SCALE * ((x @ self.lora_a) @ self.lora_b)


def with_lora(workload: Workload) -> nn.Module:
    """Return the module of WORKLOAD with LoRA in PyTorch; all else is frozen."""
    paths = adapted_layers(workload)
    if paths:
        workload.module.requires_grad_(False)
    for path in paths:
        parent, _, name = path.rpartition(".")
        holder = workload.module.get_submodule(parent)
        setattr(holder, name, LoRA(getattr(holder, name)))
    return workload.module
