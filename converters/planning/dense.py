"""Packed checkpoints whose weights were trained: they go back to PyTorch as dense ones.

Blocks of fp8 cannot be made again out of weights that moved, and a checkpoint is packed or dense as
a whole. So such a model goes back as transformers would write it without ``quantization_config``,
in the dtype that MLX has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from ..checkpoints import Header
from ..configs import Translation
from ..configs.translation import difference
from ..maps import WeightMap
from ..maps.sources.choose import origin_and_map
from ..models import Model
from .manifest import recorded_headers

PACKING: Final = "quantization_config"
METHOD: Final = "quant_method"
DENSE: Final = frozenset({"F16", "F32", "F64", "BF16"})  # dtypes of weights that are not packed
WHOLE: Final = frozenset(
    {"BOOL", "I64"}
)  # dtypes of masks and tables, which say nothing of weights


Headers = Mapping[str, Header]


class Unpacked(NamedTuple):
    """MLX weights that were packed blocks at home.

    Attributes:
        names: all of them.
        changed: how many the blocks of the origin no longer lead to.
        lost: whether blocks are nowhere to be found, rather than trained since.
        left_out: what only the packed checkpoint has, and nobody could read beside dense weights.
    """

    names: tuple[str, ...]
    changed: int
    lost: bool
    left_out: tuple[str, ...]


class Dense(NamedTuple):
    """A model as it goes back to PyTorch when it cannot be packed again.

    Attributes:
        model: without the map that was recorded for the packed checkpoint.
        there: the headers of the dense checkpoint.
        table: the map from it to MLX.
    """

    model: Model
    there: Headers
    table: WeightMap


def can_be_dense(model: Model, there: Headers) -> bool:
    """Say whether MODEL, packed in its origin as THERE, is known to transformers when it is not."""
    if is_dense(there) or model.family is None or model.family.map:
        return False
    return model.library is not None and bool(packings(model.config))


def packings(config: Mapping[str, Any]) -> list[str]:
    """Return how CONFIG, or a part of it, says that weights are packed.

    >>> packings({"text_config": {"quantization_config": {"quant_method": "fp8"}}})
    ['fp8']
    """
    parts = [config, *(part for part in config.values() if isinstance(part, Mapping))]
    found = [part[PACKING] for part in parts if isinstance(part.get(PACKING), Mapping)]
    return [str(settings.get(METHOD, "packed")) for settings in found]


def as_dense(model: Model) -> Dense:
    """Return MODEL as it goes back dense: its origin is what transformers would write for it.

    Raises:
        BadInputError: no checkpoint that transformers knows becomes what the directory holds.
    """
    assert model.library is not None  # noqa: S101  (`can_be_dense` was asked)
    bare = replace(model, map_text=None, sizes={})
    there, table = origin_and_map(bare, model.library)
    return Dense(bare, there, table)


def reason_of(unpacked: Unpacked, model: Model) -> str:
    """Return the line that tells that the weights of MODEL go back dense, and why."""
    dtypes = {model.checkpoint.headers[name].dtype for name in unpacked.names}
    why = (
        "some are nowhere (--original DIR has them)"
        if unpacked.lost
        else f"{unpacked.changed} of them trained since"
    )
    [method, *_] = packings(model.config)
    return (
        f"{len(unpacked.names)} weights were {method} blocks; {why}, so all of them go back as"
        f" {' and '.join(sorted(dtypes))}"
    )


def fitting(translation: Translation | None, model: Model, layout: Headers) -> Translation | None:
    """Return TRANSLATION of MODEL's configuration, packed only if the LAYOUT of the weights is.

    A configuration that says fp8 beside weights without fp8 would not load; but one that a dense
    checkpoint came with is not ours to correct.
    """
    if translation is None or not packings(translation.config) or not is_dense(layout):
        return translation
    recorded = recorded_headers(model)
    if recorded and is_dense(recorded):
        return translation
    config = {
        key: {k: v for k, v in value.items() if k != PACKING} if isinstance(value, dict) else value
        for key, value in translation.config.items()
        if key != PACKING
    }
    return difference(model.config, config, translation.notes)


def is_dense(headers: Headers) -> bool:
    """Say whether no tensor of HEADERS is packed.

    >>> is_dense({"a": Header("BF16", (2, 3))}), is_dense({"a": Header("F8_E4M3", (2, 3))})
    (True, False)
    """
    return all(head.dtype in DENSE | WHOLE for head in headers.values())
