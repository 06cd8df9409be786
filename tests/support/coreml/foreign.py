"""Packages as somebody else makes them: torch.jit.trace and coremltools.convert, and no record of the export."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from torch import nn

from weighbridge.converters.captures.mlprogram.toolkit import coremltools, quiet
from weighbridge.converters.coreml.writing import save
from weighbridge.converters.models import Port, Signature
from weighbridge.converters.models import open as open_model
from weighbridge.converters.runtimes.torch import build, named_outputs

from .families import source

with quiet():
    import coremltools.optimize.coreml as compression
    from coremltools.converters.mil.frontend.torch import ops

SIZES = {"batch": 1, "sequence": 7, "target": 5, "time": 9}  # of dimensions that have names
PADDING = "attention_mask"
INTEGERS = "int64"
# Families that coremltools 9.0 translates by itself, text with masks of four axes.
ENCODERS = ("BERT", "DistilBERT", "MiniLM", "RoBERTa", "T5 encoder")
DECODERS = (
    *("GPT-2", "Llama", "Mistral", "Qwen2", "Qwen3", "Gemma", "Phi-3"),
    *("Mixtral", "Qwen3-MoE"),
)
VISION = (
    *("ViT", "ResNet", "ConvNeXt", "Segformer", "MobileNet", "UNet"),
    *("DINOv2", "SigLIP", "Swin"),
)
SERIES = ("wav2vec2", "LSTM", "LSTM of two ways", "GRU", "RNN", "Conv1d series")
# Mask -> the ids that it is for, of which a token sees those before it.
CAUSAL = {
    **dict.fromkeys(ENCODERS),
    **dict.fromkeys(DECODERS, (PADDING, "input_ids")),
    **dict.fromkeys(("T5", "Whisper"), ("decoder_attention_mask", "decoder_input_ids")),
}
PLAIN = (
    *(*ENCODERS, *DECODERS, *VISION, *SERIES, "gated GPT", "heads of 16"),
    *("T5", "Whisper", "CLIP"),
)

WAYS = {
    "int8": ("linear_quantize_weights", compression.OpLinearQuantizerConfig(weight_threshold=0)),
    "palette": (
        "palettize_weights",
        compression.OpPalettizerConfig(mode="kmeans", nbits=2, weight_threshold=0),
    ),
    "sparse": (
        "prune_weights",
        compression.OpMagnitudePrunerConfig(target_sparsity=0.5, weight_threshold=0),
    ),
}


class Made(NamedTuple):
    """A package and what it was made of, as the command line names it."""

    source: str
    package: Path


class Masked(nn.Module):
    """A text model that is given masks of four axes, of which coremltools has nothing to compute.

    Its own mask hides padding of ``input_ids``, if it takes one; CAUSAL hides what comes after a token, as
    the name of the mask and of the ids that it is for.
    """

    def __init__(self, module: nn.Module, causal: tuple[str, str] | None) -> None:
        super().__init__()
        self.module, self.causal = module, causal

    def forward(self, **inputs: torch.Tensor) -> object:
        """Call the module, its masks added to scores."""
        masks = {}
        if (mask := inputs.get(PADDING)) is not None:
            masks[PADDING] = (1.0 - mask[:, None, None, :].float()) * -3e4
        if self.causal:
            name, ids = self.causal
            length = inputs[ids].shape[1]
            masks[name] = torch.full((length, length), -3e4).triu(1)[None, None]
        return self.module(**{**inputs, **masks})


class Positional(nn.Module):
    """A module that takes its inputs by position and returns tensors, as a trace needs it."""

    def __init__(self, module: nn.Module, signature: Signature) -> None:
        super().__init__()
        self.module = module
        self.inputs = tuple(port.name for port in signature.inputs)
        self.outputs = tuple(port.name for port in signature.outputs)

    def forward(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Call the module by keyword."""
        result = self.module(**dict(zip(self.inputs, given, strict=True)))
        return tuple(named_outputs(self.module, result, self.outputs).values())


def with_older_numpy() -> Any:
    """Return a patch of coremltools 9.0, which takes arrays of one number for scalars as numpy < 2.4 did."""
    original = ops._cast

    def cast(context: Any, node: Any, dtype: Any, name: str) -> None:
        scalar = {"__new__": lambda cls, value: dtype(np.asarray(value).squeeze())}
        original(context, node, type(dtype.__name__, (), scalar), name)

    return patch.object(ops, "_cast", cast)


def shape_of(port: Port) -> tuple[int, ...]:
    """Return the fixed shape of PORT."""
    return tuple(SIZES[size] if isinstance(size, str) else size for size in port.shape)


def example(port: Port) -> torch.Tensor:
    """Return an input for the trace."""
    if port.dtype == INTEGERS:
        return torch.ones(shape_of(port), dtype=torch.int64)
    return torch.linspace(-1, 1, int(np.prod(shape_of(port)))).reshape(shape_of(port))


def converted(
    module: nn.Module,
    signature: Signature,
    target: Path,
    precision: str = "float16",
    called: tuple[str, ...] = (),
    most: int = 0,
) -> Path:
    """Write MODULE at TARGET as coremltools converts it by itself; return TARGET.

    CALLED are other names of its inputs; coremltools then names the outputs. Sequences have one length, or
    up to MOST tokens.
    """
    ports = signature.inputs
    names = called or tuple(it.name for it in ports)
    kinds, outputs = {INTEGERS: np.int32}, [it.name for it in signature.outputs]

    def sizes(port: Port) -> tuple[Any, ...]:
        varying = {"sequence": coremltools.RangeDim(1, most, default=7)} if most else {}
        pairs = zip(port.shape, shape_of(port), strict=True)
        return tuple(varying.get(str(name), size) for name, size in pairs)

    with torch.no_grad(), quiet(), with_older_numpy():
        with patch("torch.jit.is_tracing", return_value=False):  # of pictures of one size
            traced = torch.jit.trace(
                Positional(module.eval(), signature), tuple(map(example, ports)), check_trace=False
            )
        made = coremltools.convert(
            traced,
            inputs=[
                coremltools.TensorType(name, sizes(it), dtype=kinds.get(it.dtype, np.float32))
                for name, it in zip(names, ports, strict=True)
            ],
            outputs=None if called else [coremltools.TensorType(n) for n in outputs],
            minimum_deployment_target=coremltools.target.iOS17,
            compute_precision=getattr(coremltools.precision, precision.upper()),
            skip_model_load=True,
        )
    made.save(str(target))
    return target


def move_number(module: nn.Module) -> None:
    """Make the largest number of one of MODULE's matrices, the middle one, a tenth larger."""
    tables = ("embed", "position")  # of which a package of one size may have some rows only
    found = [
        it
        for name, it in module.named_parameters()
        if it.ndim > 1 and not any(table in name for table in tables)
    ]
    values = found[len(found) // 2].data.view(-1)
    values[values.abs().argmax()] *= 1.1


def foreign(name: str, folder: Path, precision: str, *, fault: bool = False) -> Made:
    """Return the family NAME in FOLDER, converted by plain coremltools, with or without a FAULT in a weight."""
    where = source(name, folder)
    code, _, function = where.partition(":")
    if function:
        module, signature = getattr(import_module(code), function)()
    else:
        model = open_model(where)
        module, signature = build(model, "float32")[0], model.signature
    if fault:
        move_number(module)
    if config := getattr(module, "config", None):
        config._experts_implementation = "batched_mm"  # which traces
    if name in CAUSAL:
        module = Masked(module, CAUSAL[name])
    return Made(where, converted(module, signature, folder / "m.mlpackage", precision))


def compressed(package: Path, way: str, target: Path) -> Path:
    """Write PACKAGE, compressed in the WAY of coremltools, to TARGET."""
    function, config = WAYS[way]
    with quiet():
        model = coremltools.models.MLModel(str(package), skip_model_load=True)
        made = getattr(compression, function)(model, compression.OptimizationConfig(config))
    save(made, target)
    return target
