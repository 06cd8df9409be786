"""Where each tensor of a checkpoint to be written goes: shards, offsets, index."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import xxhash

from ..common.dtypes import NUMPY
from .base import Header
from .formats.safetensors import Place, encode_header

INDEX: Final = "{stem}.safetensors.index.json"
SINGLE: Final = "{stem}.safetensors"
SHARD: Final = "{stem}-{number:05d}-of-{count:05d}.safetensors"


class Shard(NamedTuple):
    """One file to be written: its name, its first bytes, and its tensors."""

    file: str
    header: bytes
    places: Mapping[str, Place]

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return len(self.header) + sum(place.header.nbytes for place in self.places.values())


def arrange(
    layout: Mapping[str, Header], metadata: Mapping[str, str], max_shard_size: int, stem: str
) -> tuple[Shard, ...]:
    """Return the shards of LAYOUT, each of at most MAX_SHARD_SIZE bytes of tensors.

    A shard has one tensor at least. The names follow Hugging Face.

    >>> layout = {name: Header("F32", (2,)) for name in "abc"}
    >>> [shard.file for shard in arrange(layout, {}, 16, "model")]
    ['model-00001-of-00002.safetensors', 'model-00002-of-00002.safetensors']
    """
    groups = list(_groups(layout, max_shard_size)) or [{}]
    if len(groups) == 1:
        return (_shard(SINGLE.format(stem=stem), groups[0], metadata),)
    return tuple(
        _shard(SHARD.format(stem=stem, number=number, count=len(groups)), group, metadata)
        for number, group in enumerate(groups, start=1)
    )


def _groups(layout: Mapping[str, Header], limit: int) -> Iterator[dict[str, Header]]:
    """Split LAYOUT, in order, before a tensor that would make a group larger than LIMIT."""
    group: dict[str, Header] = {}
    size = 0
    for name, header in layout.items():
        if group and size + header.nbytes > limit:
            yield group
            group, size = {}, 0
        group[name] = header
        size += header.nbytes
    if group:
        yield group


def _shard(file: str, group: Mapping[str, Header], metadata: Mapping[str, str]) -> Shard:
    """Place the tensors of GROUP: wide dtypes first, so that every tensor is aligned to its own."""
    ordered = dict(sorted(group.items(), key=lambda item: -NUMPY[item[1].dtype].itemsize))
    header = encode_header(ordered, metadata)
    places: dict[str, Place] = {}
    begin = len(header)
    for name, what in ordered.items():
        places[name] = Place(what, begin)
        begin += what.nbytes
    return Shard(file, header, places)


def index_text(shards: Sequence[Shard]) -> str:
    """Return the text of the index of SHARDS, as Hugging Face writes it."""
    places = [(name, shard, place) for shard in shards for name, place in shard.places.items()]
    index = {
        "metadata": {"total_size": sum(place.header.nbytes for _, _, place in places)},
        "weight_map": {name: shard.file for name, shard, _ in places},
    }
    return json.dumps(index, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def fingerprint(shards: Sequence[Shard]) -> str:
    """Return a hash of everything about SHARDS but the tensors' bytes."""
    digest = xxhash.xxh3_64()
    for shard in shards:
        digest.update(shard.file.encode() + shard.header)
    return f"xxh3:{digest.hexdigest()}"
