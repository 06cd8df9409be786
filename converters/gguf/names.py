"""Which tensors of a checkpoint become which of a GGUF file: llama.cpp's own table of names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from ...errors import BadInputError, UnsupportedError
from ..checkpoints import Header
from .file import GgufFile
from .library import gguf

EXPERT: Final = re.compile(r"\.experts\.(\d{1,6})\.")
FUSED: Final = re.compile(r"(.*\bexperts\.)gate_up_proj(\.weight)?$")
# What llama.cpp's converter leaves out as well (conversion/base.py and gpt2.py).
BUFFERS: Final = (
    *(".attention.masked_bias", ".attention.bias", ".rotary_emb.inv_freq"),
    *(".attn.bias", ".attn.masked_bias"),
)
# Other parts of models that also see and hear; their place is an mmproj file.
ELSEWHERE: Final = re.compile(
    r"\b(visual|vision_tower|vision_model|audio_tower|multi_modal_projector|mm_projector)\."
)
# Made by the converter from the configuration alone: the base's are right for us too.
FROM_CONFIG: Final = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"
SUFFIXES: Final = (".weight", ".bias")
MOST_GAPS: Final = 20  # experts that are named as missing
MOST_BLOCKS: Final = 512  # LLAMA_MAX_LAYERS
WHOLE: Final = -1  # instead of the number of an expert
Finder = Callable[[str], tuple[tuple[str, ...], int]]


class Pairing(NamedTuple):
    """Which tensors make which.

    Attributes:
        sources: tensor of the GGUF file -> those of the checkpoint: one, or an expert each.
        copied: tensors of the GGUF file that no weight enters.
        dropped: tensors of the checkpoint that do not go there -> why.
        heads: tensors of the checkpoint that the file can do without if they equal its embedding.
        problems: what has no counterpart.
    """

    sources: Mapping[str, tuple[str, ...]]
    copied: tuple[str, ...]
    dropped: Mapping[str, str]
    heads: tuple[str, ...]
    problems: tuple[str, ...]


def pair(like: GgufFile, headers: Mapping[str, Header], where: str) -> Pairing:
    """Pair the tensors HEADERS of the checkpoint WHERE with those of LIKE by llama.cpp's names.

    Raises:
        UnsupportedError: the library does not know the architecture.
    """
    sorter = _Sorter(like, finder(like))
    for name in headers:
        sorter.place(name)
    sources = sorter.sources()
    _lend_embedding(sources, like)
    copied = tuple(name for name in FROM_CONFIG if name in like.tensors and name not in sources)
    absent = [name for name in like.tensors if name not in sources and name not in copied]
    sorter.problems += [
        f"{name} of {like.path.name}: no tensor of {where} is it" for name in absent
    ]
    problems = (*sorter.problems, *sorter.gaps())
    return Pairing(sources, copied, sorter.dropped, tuple(sorter.heads), problems)


class _Sorter:
    """Puts every tensor of a checkpoint where it belongs."""

    def __init__(self, like: GgufFile, find: Finder) -> None:
        self.like, self.find = like, find
        self.members: dict[str, dict[int, str]] = {}
        self.dropped: dict[str, str] = {}
        self.heads: list[str] = []
        self.problems: list[str] = []

    def place(self, name: str) -> None:
        """Note what becomes of the tensor NAME."""
        targets, expert = self.find(name)
        if reason := _left_out(name, targets):
            self.dropped[name] = reason
        elif targets == (OUTPUT,) and OUTPUT not in self.like.tensors:
            self.heads.append(name)
        elif not targets or not set(targets) <= set(self.like.tensors):
            self.problems.append(_unplaced(name, targets, self.like))
        else:
            self._join(name, targets, expert)

    def _join(self, name: str, targets: tuple[str, ...], expert: int) -> None:
        for target in targets:
            first = self.members.setdefault(target, {}).setdefault(expert, name)
            if first != name:
                self.problems.append(f"{first} and {name} would both be {target}")

    def sources(self) -> dict[str, tuple[str, ...]]:
        """Return what makes each tensor of the file, experts in their order."""
        return {
            target: tuple(members[number] for number in sorted(members))
            for target, members in self.members.items()
        }

    def gaps(self) -> list[str]:
        """Return which experts are missing, a line each, between others."""
        found = {target: _gaps(members) for target, members in self.members.items()}
        return [
            f"{target}: experts {missing} are missing"
            for target, missing in found.items()
            if missing
        ]


def _left_out(name: str, targets: tuple[str, ...]) -> str | None:
    if name.endswith(BUFFERS):
        return "a buffer"
    return "belongs to the mmproj file" if not targets and ELSEWHERE.search(name) else None


def _unplaced(name: str, targets: tuple[str, ...], like: GgufFile) -> str:
    if targets:
        return f"{name} would be {' and '.join(targets)}, which {like.path.name} does not have"
    return f"{name} has no name in llama.cpp's table for {like.architecture}"


def _lend_embedding(sources: dict[str, tuple[str, ...]], like: GgufFile) -> None:
    """Let a tied head come from the embedding where the file has a head of its own."""
    if OUTPUT in like.tensors and OUTPUT not in sources and EMBEDDING in sources:
        sources[OUTPUT] = sources[EMBEDDING]


def _gaps(members: Iterable[int]) -> list[int]:
    """Return which numbers are missing below the largest; of many the first."""
    numbers = set(members) - {WHOLE}
    end = min(max(numbers, default=-1) + 1, len(numbers) + MOST_GAPS)
    return sorted(set(range(end)) - numbers)


def finder(like: GgufFile) -> Finder:
    """Return what finds the GGUF names of a checkpoint's tensor, and which expert it is of.

    Raises:
        UnsupportedError: the library does not know the architecture.
    """
    table = _table(like)

    def look_up(name: str) -> str | None:
        found = table.get_name(name, try_suffixes=SUFFIXES)
        return None if found is None else found if found.endswith(SUFFIXES) else f"{found}.weight"

    def first(name: str) -> str | None:
        answers = [answer for variant in _variants(name) if (answer := look_up(variant))]
        there = [answer for answer in answers if answer in like.tensors]
        return next(iter(there or answers), None)

    def find(name: str) -> tuple[tuple[str, ...], int]:
        expert = EXPERT.search(name)
        target = first(EXPERT.sub(".experts.", name))
        fused = FUSED.match(name)
        if fused and target not in like.tensors:
            halves = [first(f"{fused[1]}{half}_proj.weight") for half in ("gate", "up")]
            return tuple(half for half in halves if half), WHOLE
        return (target,) if target else (), int(expert[1]) if expert else WHOLE

    return find


def _variants(name: str) -> list[str]:
    """Return NAME as the heads of the class may write it, as llama.cpp's converters do."""
    bare = name.replace("language_model.", "")
    return [bare, bare.partition(".")[2], f"model.{bare}", f"transformer.{bare}"]


def _table(like: GgufFile) -> gguf.TensorNameMap:
    known = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}
    if like.architecture not in known:
        raise UnsupportedError(
            f"{like.path}: the installed gguf library does not know the architecture"
            f" {like.architecture}; upgrade it, or use llama.cpp's convert_hf_to_gguf.py"
        )
    blocks = like.sized("block_count") or 0
    if blocks > MOST_BLOCKS:
        raise BadInputError(
            f"{like.path}: claims {blocks:,} blocks, and llama.cpp reads up to {MOST_BLOCKS};"
            " download or convert it again"
        )
    return gguf.get_tensor_name_map(known[like.architecture], blocks)
