"""A package without a record, held against what the model that it is said to hold is exported as."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ...converters.models import Model, Signature
from ...errors import WeighbridgeError
from ..options import Options
from .gguf import Like, model_like


def record_by_graph(
    source: Path, ported: Callable[[Model], Model], like: Like, options: Options
) -> dict[str, Any]:
    """Return which constant of the package SOURCE is which tensor of LIKE; empty where that is not clear.

    The model of LIKE is exported with drawn weights, whose record says where each went. Where SOURCE has
    the same operations, the constants in the same places are the same tensors.

    Args:
        source: the package.
        ported: says what a model takes where nothing else does.
        like: the model's directory.
        options: see :class:`Options`.
    """
    if source.suffix != ".mlpackage":
        return {}
    from ...converters.captures.mlprogram import load_program
    from ...converters.coreml.export import export_coreml
    from ...converters.recovering.alike import record_from
    from ...converters.recovering.weights import Held

    blank = {name: np.zeros(it.shape, "f4") for name, it in like.headers.items()}
    try:
        model = ported(model_like(source, like, Held(source, blank), options))
        with tempfile.TemporaryDirectory() as folder:
            twin = Path(folder) / "twin.mlpackage"
            export_coreml(drawn(model), with_names(model.signature), twin, compute="float32")
            own, other = load_program(twin), load_program(source)
            return record_from(own.manifest, own.body, other.body) or {}
    except WeighbridgeError:
        return {}


def drawn(model: Model) -> Any:
    """Return the module of MODEL with weights that all differ, between a half and 1.5."""
    import torch

    from ...converters.runtimes.pretrained import empty_pretrained
    from ...converters.runtimes.torch import empty_module

    known = model.factory is not None or model.family is not None
    module: Any = empty_module(model) if known else empty_pretrained(model).eval()
    module.requires_grad_(requires_grad=False)
    generator = torch.Generator().manual_seed(0)
    for tensor in module.state_dict().values():
        if tensor.is_floating_point():
            tensor.uniform_(0.5, 1.5, generator=generator)
    return module


def with_names(signature: Signature) -> Signature:
    """Return SIGNATURE, sizes that a package gives as ranges, ``1..32``, under names."""

    def named(size: int | str) -> int | str:
        return re.sub(r"\W+", "_to_", f"size_{size}") if ".." in str(size) else size

    def of_ports(ports: Any) -> Any:
        return tuple(replace(it, shape=tuple(map(named, it.shape))) for it in ports)

    return Signature(of_ports(signature.inputs), of_ports(signature.outputs))
