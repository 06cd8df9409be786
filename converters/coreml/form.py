"""What a package takes and gives, as coremltools is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..captures.mlprogram.texts import Text
from ..captures.mlprogram.toolkit import coremltools
from ..captures.positional import bounds, example, example_sizes
from ..models.signature import Signature
from .options import PackageOptions
from .texts import POSITION, one_text


class Form(NamedTuple):
    """What a package takes and gives, the largest size of each dimension, and its options."""

    signature: Signature
    limits: Mapping[str, int]
    options: PackageOptions

    @property
    def text(self) -> Text | None:
        """The inputs of a package that goes on with a text; ``None`` where it keeps nothing."""
        return Text(self.signature.inputs[0].name, POSITION) if self.options.stateful else None


def form_of(signature: Signature, upper: Mapping[str, int], options: PackageOptions) -> Form:
    """Return the form of a package of a model with SIGNATURE, UPPER the largest sizes."""
    taken = one_text(signature) if options.stateful else signature
    return Form(taken, bounds(taken, upper), options)


def tensor_types(form: Form) -> dict[str, list[Any]]:
    """Return coremltools' descriptions of inputs and outputs."""
    signature, limits = form.signature, form.limits
    sizes = example_sizes(limits)
    ranges: dict[int | str, Any] = {
        name: coremltools.RangeDim(1, limit, default=sizes[name]) if limit > 1 else 1
        for name, limit in limits.items()
    }
    inputs = [
        coremltools.TensorType(
            port.name,
            [ranges.get(size, size) for size in port.shape],
            dtype=example(port, sizes).numpy().dtype,
        )
        for port in signature.inputs
    ]
    outputs = [coremltools.TensorType(port.name, dtype=np.float32) for port in signature.outputs]
    return {"inputs": inputs, "outputs": outputs}
