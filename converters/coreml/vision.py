"""Packages that take pictures and give class labels, as programs for devices expect them.

Core ML hands a program the numbers of a picture, 0 to 255; what a checkpoint's image processor does to them
becomes the program's first operations. Labels are those of ``config.json`` or of a file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from ...errors import BadInputError
from ..documents import Kind, read_text
from ..models import Model
from ..models.pictures import LAYOUTS, Picture, picture_of, processor_of
from ..models.signature import Port, Signature
from .options import PackageOptions

LABELS: Final = Kind("file of labels", 16 * 2**20, "give one label a line")
CONFIG: Final = "config"  # where labels are taken from, if not from a file


@dataclass(frozen=True)
class Vision:
    """What a user asks of pictures and labels.

    Attributes:
        image: the input that takes pictures.
        mean: is subtracted from the numbers of a picture, 0 to 1; by default what the processor says.
        std: is divided by.
        layout: the order of channels, one of ``LAYOUTS``.
        labels: ``config``, or a text file with one label a line.
    """

    image: str | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    layout: str | None = None
    labels: str | None = None

    def __bool__(self) -> bool:
        return bool(self.image or self.labels or self.mean or self.std or self.layout)

    def for_model(
        self, package: PackageOptions, model: Model, *, compressed: bool = False
    ) -> PackageOptions:
        """Return PACKAGE, perhaps COMPRESSED later, with pictures and labels of MODEL, one row at a time.

        Raises:
            BadInputError: what does not go together, or with MODEL.
        """
        if not self:
            return package
        if package.stateful:
            raise BadInputError(
                "a package that goes on with a text takes no pictures, nor gives labels"
            )
        if self.labels and compressed:
            raise BadInputError(
                "coremltools 9.0 compresses no package that gives labels; leave --labels out, or the"
                " compression"
            )
        signature = model.signature
        images = {self.image: self.picture(signature, model.folder)} if self.image else {}
        if not images and (self.mean or self.std or self.layout):
            raise BadInputError(
                "a mean, a std and a layout are of a picture: name its input by --image"
            )
        labels = self.labels_for(signature, model.config) if self.labels else ()
        ports = [it for it in signature.inputs if labels or it.name in images]
        rows = {str(it.shape[0]): (1,) for it in ports if isinstance(it.shape[0], str)}
        sizes = {**package.sizes, **rows}
        return replace(package, images=images, labels=labels, labelled=self.labels, sizes=sizes)

    def picture(self, signature: Signature, folder: Path | None) -> Picture:
        """Return how the image input of SIGNATURE follows from a picture."""
        port = port_of(signature, str(self.image))
        channels = int(port.shape[1])
        own = processor_of(folder, channels)
        if own and (self.mean or self.std or self.layout not in (None, own.layout)):
            raise BadInputError(
                f"{folder}: its image processor says what is done to a picture; leave --image-mean,"
                " --image-std and --image-layout out"
            )
        if own:
            return own
        if not (self.mean and self.std):
            where = folder or "the model"
            raise BadInputError(
                f"{where} has no preprocessor_config.json: say what is done to a picture by"
                " --image-mean and --image-std"
            )
        return picture_of(self.mean, self.std, channels, self.layout)

    def labels_for(self, signature: Signature, config: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the labels of the scores that SIGNATURE gives."""
        count = scores_of(signature).shape[1]
        if self.labels == CONFIG:
            found = labels_in(config)
        else:
            found = distinct(read_text(Path(str(self.labels)), LABELS).splitlines())
        if len(found) != count:
            raise BadInputError(f"{self.labels}: {len(found)} labels for {count} scores")
        return found


def port_of(signature: Signature, name: str) -> Port:
    """Return the input NAME of SIGNATURE, if it may be a picture.

    Raises:
        BadInputError: there is none, or it has other axes.
    """
    port = next((it for it in signature.inputs if it.name == name), None)
    if port is None:
        known = ", ".join(it.name for it in signature.inputs)
        raise BadInputError(f"no input {name}; there are {known}")
    if len(port.shape) != 4 or port.shape[1] not in LAYOUTS.values():
        raise BadInputError(
            f"{name} has shape {list(port.shape)}: a picture has rows, 1 or 3 channels, height and width"
        )
    if not all(isinstance(it, int) for it in port.shape[1:]):
        raise BadInputError(f"{name} has sizes that vary; a picture needs one, in the signature")
    return port


def scores_of(signature: Signature) -> Port:
    """Return the output of SIGNATURE that scores classes.

    Raises:
        BadInputError: there is none, or more than one.
    """
    found = [it for it in signature.outputs if it.role == "logits" and len(it.shape) == 2]
    if len(found) != 1 or not isinstance(found[0].shape[1], int):
        raise BadInputError("labels need one output of scores, of shape [rows, classes]")
    return found[0]


def labels_in(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the labels in CONFIG, by their number; repeated ones get it in brackets.

    >>> labels_in({"id2label": {"1": "b", "0": "a", "2": "b"}})
    ('a', 'b (1)', 'b (2)')

    Raises:
        BadInputError: it has none, or some are missing.
    """
    rows = config.get("id2label")
    if not isinstance(rows, Mapping) or not rows:
        raise BadInputError("config.json has no id2label: name a file of labels by --labels FILE")
    by_number = {str(key): value for key, value in rows.items()}
    found = [by_number.get(str(number)) for number in range(len(rows))]
    if not all(isinstance(it, str) and it for it in found):
        raise BadInputError(
            f"config.json: id2label should name 0 to {len(rows) - 1}, each by a text"
        )
    return distinct([str(it) for it in found])


def distinct(labels: Sequence[str]) -> tuple[str, ...]:
    """Return LABELS, those that are there twice with their numbers: Core ML keeps one score a label.

    Where one has such a number already, all get theirs.

    >>> distinct(["a", "b", "b"]), distinct(["b", "b", "b (1)"])
    (('a', 'b (1)', 'b (2)'), ('b (0)', 'b (1)', 'b (1) (2)'))
    """
    times, numbered = Counter(labels), tuple(f"{it} ({n})" for n, it in enumerate(labels))
    pairs = zip(labels, numbered, strict=True)
    found = tuple(other if times[it] > 1 else it for it, other in pairs)
    return found if len({*found}) == len(found) else numbered
