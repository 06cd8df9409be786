"""What a package takes and gives, as coremltools is told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product, repeat
from typing import Any, Final, NamedTuple

import numpy as np

from ...errors import BadInputError
from ..captures.continuing import POSITION, one_text
from ..captures.mlprogram.names import COLORS
from ..captures.mlprogram.texts import Text
from ..captures.mlprogram.toolkit import coremltools
from ..captures.positional import bounds, example, example_sizes
from ..models.signature import Port, Signature
from .options import PackageOptions, with_sizes

PROBABILITIES: Final = "probabilities"  # of the classes that a package names
MAIN: Final = "main"
PREFILL, DECODE = "prefill", "decode"  # the functions of a package that has two


class Form(NamedTuple):
    """What a function of a package takes and gives, the largest size of each dimension, and its options.

    Attributes:
        signature: its inputs and outputs.
        limits: the largest size of each dimension.
        options: of the package.
        tokens: how many its states have room for; none without states.
    """

    signature: Signature
    limits: Mapping[str, int]
    options: PackageOptions
    tokens: int = 0

    @property
    def functions(self) -> dict[str, Form]:
        """The functions of the package by name, this one first: that for one token has fixed sizes."""
        if not self.options.multifunction:
            return {MAIN: self}
        length = str(self.signature.inputs[0].shape[1])
        rest = {name: limit for name, limit in self.limits.items() if name != length}
        single = with_sizes(self.signature, {length: 1})
        return {PREFILL: self, DECODE: self._replace(signature=single, limits=rest)}

    @property
    def text(self) -> Text | None:
        """The inputs of a package that goes on with a text; ``None`` where it keeps nothing."""
        ids = self.signature.inputs[0].name
        single = DECODE if self.options.multifunction else ""
        return Text(self.name(ids), self.name(POSITION), single) if self.options.stateful else None

    @property
    def pictured(self) -> list[bool]:
        """Which of the inputs are pictures."""
        return [port.name in self.options.images for port in self.signature.inputs]

    def name(self, port: str) -> str:
        """Return what the package calls an input or output that the model calls PORT."""
        return self.options.names.get(port, port)


def form_of(signature: Signature, upper: Mapping[str, int], options: PackageOptions) -> Form:
    """Return the form of a package of a model with SIGNATURE, UPPER the largest sizes.

    Raises:
        BadInputError: options that name what is not there, or leave a size open.
    """
    taken = one_text(signature) if options.stateful else signature
    largest = {name: max(sizes) for name, sizes in options.sizes.items()}
    limits = bounds(taken, {**upper, **largest})
    alone = {name: size for name, size in largest.items() if len(options.sizes[name]) == 1}
    tokens = limits[str(taken.inputs[0].shape[1])] if options.stateful else 0
    form = Form(with_sizes(taken, alone), limits, options, tokens)
    if problems := [*problems_of(form, upper)]:
        raise BadInputError("; ".join(problems))
    return form


def problems_of(form: Form, upper: Mapping[str, int]) -> Iterator[str]:
    """Yield what options name that is not there, or is there twice, and sizes that they leave open."""
    ports = [port.name for port in (*form.signature.inputs, *form.signature.outputs)]
    if strange := sorted(form.options.names.keys() - {*ports}):
        yield f"no input or output {', '.join(strange)}; there are {', '.join(ports)}"
    there = [form.name(port) for port in ports]
    yield from (f"{name} would be the name of two" for name in {*there} if there.count(name) > 1)
    both = sorted(upper.keys() & form.options.sizes.keys())
    yield from (f"{name} has --sizes; leave --upper out" for name in both)
    ranges = [n for n, limit in form.limits.items() if limit > 1 and n not in form.options.sizes]
    if form.options.enumerated and ranges:
        yield f"where a dimension has a list of sizes all need one: --sizes {ranges[0]}=1"


def tensor_types(form: Form, graph: Any) -> dict[str, Any]:
    """Return coremltools' descriptions of inputs and outputs of GRAPH, and of labels."""
    sizes = example_sizes(form.limits)
    images, labels = form.options.images, form.options.labels

    def described(port: Port) -> Any:
        about: dict[str, Any] = {"name": form.name(port.name), "shape": shape_of(form, port)}
        if port.name in images:
            color = COLORS.get(images[port.name].layout, images[port.name].layout)
            return coremltools.ImageType(
                **about, color_layout=getattr(coremltools.colorlayout, color)
            )
        return coremltools.TensorType(**about, dtype=example(port, sizes).numpy().dtype)

    names = [form.name(port.name) for port in form.signature.outputs]
    given = [*names, *([PROBABILITIES] if labels else [])]
    found = {
        "inputs": [described(port) for port in form.signature.inputs],
        "outputs": [*map(coremltools.TensorType, given, repeat(None), output_dtypes(graph))],
    }
    if not labels:
        return found
    made = {"predicted_probabilities_output": PROBABILITIES}
    return {**found, "classifier_config": coremltools.ClassifierConfig([*labels], **made)}


def output_dtypes(graph: Any) -> list[Any]:
    """Return numpy's dtypes of the outputs of GRAPH, floating-point or integers, as a package has them."""
    values = {node.name: node.meta.get("val") for node in graph.graph.nodes}
    outputs = [values.get(name) for name in graph.graph_signature.user_outputs]
    return [np.float32 if it is None or it.is_floating_point() else np.int32 for it in outputs]


def shape_of(form: Form, port: Port) -> Any:
    """Return coremltools' description of the shape of PORT: ranges, or a list of shapes."""
    sizes, lists = example_sizes(form.limits), form.options.sizes
    if not form.options.enumerated:
        ranges: dict[int | str, Any] = {
            name: coremltools.RangeDim(1, limit, default=sizes[name]) if limit > 1 else 1
            for name, limit in form.limits.items()
        }
        return [ranges.get(size, size) for size in port.shape]
    named = [str(size) for size in form.limits]
    shapes = [
        tuple(chosen.get(str(size), size) for size in port.shape)
        for combination in product(*(lists.get(name, (1,)) for name in named))
        for chosen in [dict(zip(named, combination, strict=True))]
    ]
    return coremltools.EnumeratedShapes(shapes) if len({*shapes}) > 1 else shapes[0]
