"""What a package says of its pictures and labels, held against the checkpoint's own files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ...converters.coreml.vision import CONFIG, labels_in
from ...converters.models import Model
from ...converters.models.pictures import processor_of

if TYPE_CHECKING:
    from ...converters.captures.mlprogram.program import Program


def contradicted(program: Program, source: Model) -> Iterator[str]:
    """Yield where what PROGRAM does to pictures, or calls its classes, is not what SOURCE says."""
    from ...converters.captures.mlprogram.names import classes_of, pictures_of

    yield from ill_described(program)
    for name, picture in pictures_of(program.manifest).items():
        own = processor_of(source.folder, len(picture.mean))
        if own is not None and not picture.agrees(own):
            yield f"{name} is said to be normalised otherwise than the source's image processor does"
    labels = program.manifest.get("labels")
    named = labels.get("from") if isinstance(labels, Mapping) else None
    if named == CONFIG and classes_of(program.body) != labels_in(source.config):
        yield "its labels are said to be those of config.json, and are others"


def ill_described(program: Program) -> Iterator[str]:
    """Yield which inputs of PROGRAM ask a device for other pictures than its record has, or none."""
    from ...converters.captures.mlprogram.contents import pictures
    from ...converters.captures.mlprogram.names import COLORS, names_of, pictures_of
    from ...converters.captures.mlprogram.package import read_package

    names, wanted = names_of(program.manifest), set()
    for name, picture in pictures_of(program.manifest).items():
        there, color = names.get(name, name), COLORS.get(picture.layout, picture.layout)
        *_, height, width = program.inputs[there].shape
        wanted.add(f"{there}: {color} of {width} x {height}")
    for words in sorted({*pictures(read_package(program.path))} ^ wanted):
        yield f"it does not agree with its record about {words}"
