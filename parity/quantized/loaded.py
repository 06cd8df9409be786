"""Quantized directories as the library that reads them loads them: the same weights, all of them?"""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np

from ...converters.common.arrays import from_mlx, from_torch, same_bits, to_mlx, to_torch
from ...converters.libraries.transformers import torch_class
from ...converters.models import Model
from ...converters.models.config_fields import read_config
from ...converters.quantization import Blocks, Dequantized, Scheme
from ...converters.quantization.formats.base import METHOD
from ...converters.quantization.formats.compressed_writer import NAME as COMPRESSED_TENSORS
from ...converters.quantization.recipe import COPY
from ...converters.runtimes.blas import mlx_on
from ...converters.runtimes.native.classes import class_config
from ...converters.values import Array
from ..check.verdict import Stage

NAME: Final = "loaded"
LOADERS: Final = {  # library as users write it -> where it loads a directory
    "mlx-lm": "mlx_lm.utils",
    "mlx-embeddings": "mlx_embeddings.utils",
    "mlx-vlm": "mlx_vlm.utils",
}
TOKENS: Final = 8
SHOWN: Final = 3  # weights that a line names
Found = Iterator[tuple[str, str | None]]  # a weight that was loaded, and how it differs


def loaded_stage(model: Model) -> Stage:
    """Return the stage that loads the directory of MODEL by its library and looks at its weights.

    The library reads the files and their configuration by its own code. mlx-lm must hold the same
    codes, scales and schemes; what transformers makes of them must be the canonical values, rounded to
    the dtype that it loads them in.

    Args:
        model: a quantized directory, its weights seen dense.
    """
    tensors = model.tensors
    assert isinstance(tensors, Dequantized)  # noqa: S101  (the job made it)
    name = reader_of(model)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            module, left_out = load(model)
    except Exception as error:
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        return Stage(NAME, "unverified", f"{name} does not load it here: {why}")
    seen: dict[str, str | None] = dict.fromkeys(left_out, "no weight of that name in the files")
    seen |= dict((by_mlx if model.framework == "mlx" else by_torch)(module, tensors))
    texts = name in ("mlx-lm", "transformers")  # others may take images, or sound
    with mlx_on("cpu") if model.framework == "mlx" else contextlib.nullcontext():
        fault = fault_of_run(module, model.framework) if texts else ""
    if fault:
        return Stage(NAME, "fail", f"{name} loads it and cannot run it: {fault}")
    return stage_of(name, seen, tensors)


def reader_of(model: Model) -> str:
    """Return the library that reads the directory of MODEL."""
    if model.framework == "torch":
        return "transformers"
    return model.library.library if model.library else "mlx-lm"


def stage_of(name: str, seen: dict[str, str | None], tensors: Dequantized) -> Stage:
    """Return the stage for the weights of TENSORS that the library NAME has SEEN."""
    wrong = [f"{weight}: {why}" for weight, why in seen.items() if why]
    missing = [weight for weight in tensors.schemes if weight not in seen]
    figures: dict[str, Any] = {"loaded": len(seen), "wrong": wrong, "not_found": missing}
    if wrong:
        return Stage(NAME, "fail", f"loaded by {name}: {'; '.join(wrong[:SHOWN])}", figures)
    if missing:
        some = ", ".join(missing[:SHOWN])
        detail = (
            f"{name} loads it under other names; {len(missing)} weights not found, {some} first"
        )
        return Stage(NAME, "unverified", detail, figures)
    return Stage(
        NAME, "pass", f"{name} loads all {len(seen)} quantized weights as they are", figures
    )


def load(model: Model) -> tuple[Any, list[str]]:
    """Return what the library of MODEL makes of its directory, and parameters left at random."""
    assert model.path  # noqa: S101
    if model.framework == "mlx":
        return mlx_module(model), []
    import transformers

    kind: Any = getattr(transformers, torch_class(model.config))
    module, info = kind.from_pretrained(
        model.path, device_map="cpu", dtype="auto", output_loading_info=True, **dense(model)
    )
    absent = {*info["missing_keys"], *(name for name, *_ in info["mismatched_keys"])}
    heads = tuple(f"{head}." for head in (model.family.optional if model.family else ()))
    return module, sorted(name for name in absent if not name.startswith(heads))


def dense(model: Model) -> dict[str, Any]:
    """Return what lets transformers dequantize MODEL where it would keep codes in another library's layers.

    compressed-tensors 0.20 does not make room there for zero points as they are stored.
    """
    import transformers

    section = read_config(Path(str(model.path))).get(COPY) or {}
    if section.get(METHOD) != COMPRESSED_TENSORS:
        return {}
    return {COPY: transformers.CompressedTensorsConfig(dequantize=True)}


def mlx_module(model: Model) -> Any:
    """Return what the MLX library of MODEL makes of its directory."""
    name = reader_of(model)
    if name not in LOADERS:  # a class without a library: what MLX itself offers
        return built(model)
    load_model = importlib.import_module(LOADERS[name]).load_model
    made = load_model(Path(str(model.path)), lazy=True, **mended(model))
    return made[0] if isinstance(made, tuple) else made


def mended(model: Model) -> dict[str, Any]:
    """Return what gives a library's loader the class of MODEL where a ``model.py`` mends it; that is not run."""
    target = model.library
    if target is None or not target.repaired or target.library == "mlx-vlm":
        return {}
    code = target.code()
    classes = (code.Model, code.ModelArgs)
    if target.library == "mlx-embeddings":
        parts = (getattr(code, name, None) for name in ("TextConfig", "VisionConfig"))
        return {"get_model_classes": lambda config, found=(*classes, *parts): found}  # noqa: ARG005
    return {"model_config": {"model_file": None}, "get_model_classes": lambda config: classes}  # noqa: ARG005


def built(model: Model) -> Any:
    """Return the class of MODEL, quantized by MLX as its config says, with its tensors, strictly."""
    from mlx import nn

    tensors, target = model.tensors, model.library
    assert isinstance(tensors, Dequantized)  # noqa: S101
    assert target is not None  # noqa: S101
    module = target.build(class_config(model))

    def scheme_of(path: str, _: Any) -> Any:
        scheme = tensors.schemes.get(f"{path}.weight")
        return scheme.record if scheme else False

    nn.quantize(module, class_predicate=scheme_of)
    raw = tensors.raw
    module.load_weights([(name, to_mlx(raw.read(name))) for name in raw.headers], strict=True)
    return module


def fault_of_run(module: Any, framework: str) -> str:
    """Return what is wrong with what MODULE makes of a few tokens, with its codes as they are."""
    ids = np.arange(TOKENS)[None]
    try:
        if framework == "mlx":
            import mlx.core as mx

            module.set_dtype(
                mx.float32
            )  # on the CPU, where this is, MLX has no 16-bit products of experts
            logits = from_mlx(module(to_mlx(ids)))
        else:
            logits = from_torch(module(input_ids=to_torch(ids))[0])
    except Exception as error:
        return (str(error).strip() or type(error).__name__).splitlines()[0]
    return "" if np.isfinite(logits.astype(np.float32)).all() else "its outputs are not finite"


def by_mlx(module: Any, tensors: Dequantized) -> Found:
    """Yield the quantized weights of MODULE, of MLX, and how they differ from TENSORS."""
    for path, layer in module.named_modules():
        name = f"{path}.weight"
        if "scales" not in layer or name not in tensors.schemes:
            continue
        scheme = Scheme(layer.bits, layer.group_size, layer.mode)
        if scheme != tensors.schemes[name]:
            yield name, f"{scheme}, not {tensors.schemes[name]}"
            continue
        parts = tensors.parts(name)
        other = [
            part for part, array in parts.items() if not same_bits(from_mlx(layer[part]), array)
        ]
        yield name, f"other {' and '.join(other)}" if other else None


def by_torch(module: Any, tensors: Dequantized) -> Found:
    """Yield the quantized weights of MODULE, of PyTorch, and how they differ from TENSORS."""
    for name, tensor in module.state_dict().items():
        if name not in tensors.schemes:
            continue
        loaded = from_torch(tensor)
        if not is_float(loaded):
            yield name, f"still packed, {loaded.dtype}"
            continue
        exact = Blocks(tensors.parts(name), tensors.schemes[name]).values()
        yield name, None if is_rounded(loaded, exact) else "other values"


def is_float(array: Array) -> bool:
    """Say whether ARRAY holds floating-point numbers."""
    return array.dtype.kind == "f" or array.dtype == ml_dtypes.bfloat16


def is_rounded(loaded: Array, exact: Array) -> bool:
    """Say whether LOADED is EXACT, computed in float32 and rounded once to its dtype.

    >>> is_rounded(np.array([1.0], "f4"), np.array([1.0])), is_rounded(np.array([1.1], "f4"), np.array([1.0]))
    (True, False)
    """
    info: Any = ml_dtypes.finfo(loaded.dtype)  # type: ignore[no-untyped-call]
    largest = np.abs(exact).max(axis=-1, keepdims=True, initial=0.0)
    allowed = float(info.eps) / 2 * np.abs(exact) + float(info.smallest_subnormal)
    allowed = allowed + 2 * np.finfo(np.float32).eps * largest
    near: bool = loaded.shape == exact.shape and bool(
        (np.abs(loaded.astype(np.float64) - exact) <= allowed).all()
    )
    return near
