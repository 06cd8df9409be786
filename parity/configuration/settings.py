"""What both sides' code reads of their configurations, compared after translation."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple

from ...converters.configs import to_mlx
from ...converters.configs.arguments import Arguments, arguments, keys_behind
from ...converters.configs.notes import notes
from ...converters.configs.readers import place
from ...converters.configs.source import Source, plain
from ...converters.configs.special_tokens import KINDS, as_ids, reconciled
from ...converters.configs.to_mlx import derived, known
from ...converters.configs.translation import ABSENT
from ...converters.libraries import Target
from ...converters.models import Model
from ...converters.models.model_files import KEY
from ...converters.models.signature import LENGTHS
from ...converters.runtimes.pretrained import torch_config

Config = Mapping[str, Any]
IDS: Final = tuple(f"{kind}_token_id" for kind in KINDS)
# Names of the kind of rotary scaling and what the class reads beside it, from its own fields.
ROTARY: Final = frozenset(("type", "rope_type", "rope_theta", "partial_rotary_factor"))

TOWER: Final = re.compile(r"(vision|audio|image|video)_")  # no text goes there


class Difference(NamedTuple):
    """A setting that is not the same on both sides.

    Attributes:
        key: of the configuration; keys inside a part are dotted.
        wanted: the reference's value.
        found: the candidate's.
        reader: whose code reads it.
    """

    key: str
    wanted: Any
    found: Any
    reader: str

    def __str__(self) -> str:
        """Print as ``rms_norm_eps: 1e-06 became 0.0001 (read by LlamaForCausalLM)``."""
        return f"{self.key}: {self.wanted!r} became {self.found!r} (read by {self.reader})"


def with_agreed_ids(model: Model) -> Config:
    """Return MODEL's configuration as transformers reads it, ids of special tokens made to agree."""
    config = torch_config(model)
    return {**config, **(reconciled(config, model.folder) if model.folder else {})}


def same(wanted: Any, found: Any) -> bool:
    """Say whether two values of a setting are one: numbers by value, rotary scalings by their parts.

    >>> same(10000, 10000.0), same(None, {"rope_type": "default"}), same([1], (1,)), same(True, 1)
    (True, True, True, False)
    """
    if isinstance(wanted, Mapping) or isinstance(found, Mapping):
        return same_parts(*({} if side is None else side for side in (wanted, found)))
    if isinstance(wanted, list | tuple) and isinstance(found, list | tuple):
        pairs = zip(wanted, found, strict=False)
        return len(wanted) == len(found) and all(same(*pair) for pair in pairs)
    return bool(wanted == found) and isinstance(wanted, bool) == isinstance(found, bool)


def same_parts(wanted: Any, found: Any) -> bool:
    """Say whether two mappings hold the same; a rotary scaling may leave out what is default."""
    if not isinstance(wanted, Mapping) or not isinstance(found, Mapping):
        return False
    kinds = [side.get("rope_type", side.get("type", "default")) for side in (wanted, found)]
    keys = {key for key in wanted.keys() | found.keys() if key not in ROTARY}
    keys |= {key for key in ROTARY - {"type", "rope_type"} if key in wanted and key in found}
    return kinds[0] == kinds[1] and all(same(wanted.get(key), found.get(key)) for key in keys)


def value_at(config: Any, key: str) -> Any:
    """Return the value of the dotted KEY of a configuration object, ``ABSENT`` where there is none."""
    for name in key.split("."):
        config = getattr(config, name, ABSENT)
    return plain(config)


def by_transformers(wanted: Config, found: Config, reads: Collection[str]) -> Iterator[Difference]:
    """Yield which of the keys in READS differ, as transformers' own class fills both sides."""
    one, other = known(wanted), known(found)
    for key in sorted(reads) if one is not None and other is not None else ():
        values = value_at(one, key), value_at(other, key)
        if not same(*values) and ABSENT not in values:
            yield Difference(key, *values, f"transformers' {wanted.get('model_type')}")


def by_library(target: Target, wanted: Config, found: Config) -> Iterator[Difference]:
    """Yield which arguments of TARGET's class are not what the WANTED configuration asks for."""
    mended = {KEY: found[KEY]} if KEY in found else {}  # some classes keep the whole configuration
    expected = list(arguments(target, to_mlx({**wanted, **mended}, target).config))
    for ours, theirs in zip(expected, arguments(target, found), strict=False):
        for name in sorted(ours.read):
            values = ours.values[name], resolved(name, theirs, found)
            if not same(*values):
                yield Difference(dotted(ours, name), *values, str(target))


def limits(target: Target, wanted: Config) -> list[str]:
    """Return what TARGET's class is known not to do as the WANTED configuration says."""
    return list(notes(target, Source(wanted, known(wanted))))


def unread(target: Target, wanted: Config, reads: Collection[str]) -> list[str]:
    """Return which keys of READS, which the source's code reads, TARGET's class does not read.

    Keys that are off are left out, and those of towers, where no text goes.
    """
    filled = known(wanted)
    source, seen = Source(wanted, filled), set[str]()
    for part in arguments(target, to_mlx(wanted, target).config):
        own = source.part(part.reader.part)
        for field in part.read:
            above = f"{part.reader.part}." if part.reader.part else ""
            seen |= {above + key for key in keys_behind(field, part.reader, own)}
    found = (key for key in sorted(set(reads) - seen) if key.partition(".")[0] not in seen)
    return [key for key in found if not TOWER.match(key) and is_on(value_at(filled, key))]


def is_on(value: Any) -> bool:
    """Say whether VALUE of a setting asks for anything."""
    return bool(value) and value is not ABSENT


def dotted(of: Arguments, name: str) -> str:
    """Return the key of the argument NAME with the part that it is in."""
    return f"{of.reader.part}.{name}" if of.reader.part else name


def resolved(name: str, found: Arguments, config: Config) -> Any:
    """Return the argument NAME; where the configuration leaves it out, what follows from the others."""
    if found.values[name] is not None:
        return found.values[name]
    value = derived(name, Source(place(config, found.reader.part)), found.reader)
    return None if value is ABSENT else value


def beside_arguments(wanted: Config, found: Config, written: Config) -> Iterator[Difference]:
    """Yield differences in what no class computes with: lengths, and ids that end or pad a text.

    Args:
        wanted: the reference's configuration.
        found: the candidate's, with the ids on which its files agree.
        written: the candidate's as it is; it may have some of the ids, and no other.
    """
    pairs = [(wanted, found)]
    if isinstance(wanted.get("text_config"), Mapping):
        pairs.append((wanted["text_config"], found.get("text_config") or {}))
    for ours, theirs in pairs:
        for key in LENGTHS:
            values = ours.get(key), theirs.get(key)
            if all(type(it) is int for it in values) and values[0] != values[1]:
                yield Difference(key, *values, "what feeds the model")
    for key in IDS:
        own, *others = (as_ids(side.get(key)) for side in (wanted, found, written))
        for other in others:
            if own and (set(other) - set(own) or (other is others[0] and other != own)):
                yield Difference(key, own, other, "what generates text with it")


def written_twice(row: Difference, tensors: Mapping[str, Collection[str]]) -> bool:
    """Say whether ROW, of ``tie_word_embeddings``, is of a head that one side ties and the other writes out.

    Args:
        row: a difference.
        tensors: of the side that ties nothing: the hashes of each tensor that may be embedding or head.

    >>> row = Difference("tie_word_embeddings", True, False, "a class")
    >>> written_twice(row, {"embed": {"7f"}, "head": {"7f"}}), written_twice(row, {"embed": {"7f"}})
    (True, False)
    """
    tied = {row.wanted, row.found} == {True, False}
    hashes = list(map(set, tensors.values()))
    return tied and len(hashes) == 2 and bool(hashes[0] & hashes[1])


def differences(
    wanted: Config, reads: Collection[str], candidate: Model, target: Target | None
) -> list[Difference]:
    """Return every setting that code reads and that is another in CANDIDATE than WANTED.

    Args:
        wanted: the reference's configuration, as transformers reads it.
        reads: the keys that the reference's code was seen to read, dotted.
        candidate: what is judged.
        target: the class of an MLX library that runs it; ``None`` where transformers' code does.
    """
    found = with_agreed_ids(candidate)
    if target is None:
        return list(by_transformers(wanted, found, {*reads, *IDS}))
    rows = [
        *by_library(target, wanted, candidate.config),
        *beside_arguments(wanted, found, candidate.config),
    ]
    return list({row.key: row for row in rows}.values())
