"""Pictures of 8 bits a channel, and the numbers that a model is given of them.

What a checkpoint's image processor does to a picture of the right size: it rescales it, subtracts a mean and
divides by a standard deviation, channel by channel. Together that is ``(picture - mean) / std``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from ...errors import BadInputError, MismatchError
from ..documents.fields import FLAG, NUMBER, Field, either, listing, read_fields, record
from ..values import Array

CHANNELS: Final = 3  # at most
FILES: Final = ("preprocessor_config.json", "processor_config.json")
SECTION: Final = "image_processor"  # where a file describes more than that
LAYOUTS: Final[Mapping[str, int]] = {"RGB": 3, "BGR": 3, "GRAY": 1}
LARGEST: Final = 255.0
ROUNDED: Final = 0.02  # how far numbers that were rounded to float32 are from those of a picture


class Picture(NamedTuple):
    """How the numbers of an input follow from a picture whose numbers are 0 to 255.

    Attributes:
        mean: is subtracted, one number a channel.
        std: is divided by, one number a channel.
        layout: what the channels are, one of ``LAYOUTS``.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    layout: str

    def numbers(self, picture: Array) -> Array:
        """Return what a model is given of PICTURE, (..., channels, height, width), in float32."""
        mean, std = (np.reshape(it, (-1, 1, 1)) for it in (self.mean, self.std))
        return np.asarray((picture.astype(np.float64) - mean) / std, np.float32)

    def nearest(self, numbers: Array) -> Array:
        """Return the numbers of the picture that is nearest to NUMBERS.

        >>> Picture((127.5,), (127.5,), "GRAY").nearest(np.float32([[[-3, 1]]])).tolist()
        [[[-1.0, 1.0]]]
        """
        return self.numbers(np.clip(np.round(self._scaled(numbers)), 0, LARGEST))

    def picture(self, name: str, numbers: Array) -> Array:
        """Return the picture, 0 to 255 in float32, that NUMBERS, the input NAME, were made of.

        Raises:
            MismatchError: they were made of none.
        """
        if numbers.ndim != 4 or numbers.shape[1] != len(self.mean):  # rows, channels, height, width
            wanted = f"[rows, {len(self.mean)}, height, width]"
            raise MismatchError(
                "inputs do not fit", [f"{name} has shape {list(numbers.shape)}, expected {wanted}"]
            )
        exact = self._scaled(numbers)
        whole = np.round(exact)
        near = (np.abs(exact - whole) <= ROUNDED) & (whole >= 0) & (whole <= LARGEST)
        if not near.all():
            problem = f"{name} is no picture: (number * std + mean) should be whole, from 0 to 255"
            cure = "give what the model's image processor makes of pictures of this size"
            raise MismatchError("inputs do not fit", [f"{problem}; {cure}"])
        return whole.astype(np.float32)

    def _scaled(self, numbers: Array) -> Array:
        mean, std = (np.reshape(it, (-1, 1, 1)) for it in (self.mean, self.std))
        return np.asarray(numbers.astype(np.float64) * std + mean)

    def agrees(self, other: Picture) -> bool:
        """Say whether OTHER is the same to seven digits."""
        pairs = ((self.mean, other.mean), (self.std, other.std))
        same = all(len(a) == len(b) and np.allclose(a, b, 1e-6, 1e-9) for a, b in pairs)
        return same and self.layout == other.layout


def picture_of(
    mean: Sequence[float], std: Sequence[float], channels: int, layout: str | None = None
) -> Picture:
    """Return the picture whose numbers, divided by 255, have MEAN subtracted and are divided by STD.

    Raises:
        BadInputError: they do not go with so many CHANNELS.
    """
    layout = layout or ("GRAY" if channels == 1 else "RGB")
    if LAYOUTS.get(layout) != channels:
        raise BadInputError(f"a {layout} picture does not have {channels} channels")
    wide = [[*it] * (channels if len(it) == 1 else 1) for it in (mean, std)]
    if any(len(it) != channels for it in wide):
        raise BadInputError(f"mean and std need 1 or {channels} numbers, one a channel")
    if not all(np.isfinite(wide[0])) or not all(np.isfinite(it) and it > 0 for it in wide[1]):
        raise BadInputError("a mean should be finite, and a std above 0")
    scaled = [tuple(float(it) * LARGEST for it in row) for row in wide]
    return Picture(scaled[0], scaled[1], layout)


_NUMBERS: Final = either(NUMBER, listing(NUMBER))
_FIELDS: Final[Mapping[str, Field]] = {
    **dict.fromkeys(("image_mean", "image_std"), _NUMBERS),
    "rescale_factor": NUMBER,
    **dict.fromkeys(
        ("do_rescale", "do_normalize", "do_flip_channel_order", "rescale_offset"), FLAG
    ),
}


def processor_of(folder: Path | None, channels: int) -> Picture | None:
    """Return what the image processor in FOLDER does to a picture; ``None`` where there is none.

    Raises:
        BadInputError: its file is damaged, or says what no mean and standard deviation do.
    """
    for name in FILES if folder else ():
        file = Path(str(folder)) / name
        whole = read_fields(file, {**_FIELDS, SECTION: record(_FIELDS)})
        described = whole.get(SECTION, whole)
        if "image_mean" in described or "rescale_factor" in described:
            return _described(file, described, channels)
    return None


def _described(file: Path, described: Mapping[str, Any], channels: int) -> Picture:
    if described.get("rescale_offset"):
        raise BadInputError(
            f"{file}: rescale_offset is not known here; say what it comes to by --image-mean and --image-std"
        )
    if described.get("do_normalize") and not all(described.get(it) for it in MOMENTS):
        raise BadInputError(f"{file}: it normalizes by numbers that it does not name; add {' and '.join(MOMENTS)}")  # fmt: skip
    factor = 1.0 if described.get("do_rescale") is False else described.get("rescale_factor")
    unit = LARGEST * float(1 / LARGEST if factor is None else factor)
    plain = described.get("do_normalize") is False or "image_mean" not in described
    mean, std = ([0.0], [1.0]) if plain else (_list(described, it) for it in MOMENTS)
    flipped = "BGR" if described.get("do_flip_channel_order") and channels == 3 else None
    if not unit > 0:
        raise BadInputError(f"{file}: rescale_factor should be above 0")
    try:
        return picture_of([it / unit for it in mean], [it / unit for it in std], channels, flipped)
    except BadInputError as error:
        raise BadInputError(f"{file}: {error}") from None


MOMENTS: Final = ("image_mean", "image_std")


def _list(described: Mapping[str, Any], key: str) -> list[float]:
    found = described.get(key)
    return [*found] if isinstance(found, list) else [1.0 if found is None else float(found)]


def of_pictures(pictures: Mapping[str, Picture], inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return INPUTS, those that are to be PICTURES as the numbers of the nearest ones."""
    return {n: pictures[n].nearest(it) if n in pictures else it for n, it in inputs.items()}


def require_pictures(pictures: Mapping[str, Picture], inputs: Mapping[str, Array]) -> None:
    """Refuse INPUTS of a user of which one that is to be of PICTURES is of none.

    Raises:
        MismatchError: one is.
    """
    for name in pictures.keys() & inputs.keys():
        pictures[name].picture(name, inputs[name])
