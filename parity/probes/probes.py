"""Inputs that show what a model does: real text, structured series and images, padded both ways."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from ...converters.models import Port, Signature
from ...converters.values import Array
from ...errors import MismatchError, UnsupportedError
from ..text.tokenizers import load_tokenizer
from .budget import within
from .sentences import SENTENCES
from .signals import Context, Layout, hidden, pixels, series, spectrogram, waveform
from .thresholds import BEYOND, Threshold
from .thresholds import positions as positions_past

DEFAULT_LIMIT = 256  # size of a dimension that the signature does not bound
LONGEST = 1024  # tokens in a probe, whatever the position range: a check must end
LARGEST = (
    1 << 25
)  # numbers in one row's output: logits of a large vocabulary fill memory in float64
# Settings whose ids stand for a picture or a sound: alone in a text they mean nothing.
STANDS_FOR: Final = re.compile(r".*(image|video|audio|vision|boi|eoi).*_(token_id|token_index)")
SHORTEST = 64  # tokens in the longest probe, however large the vocabulary

# Numbers that an output has at least: one alone is right to its last bit now and then, by chance, and
# then a correct other implementation errs many times as much.
ENOUGH = 16


class Probe(NamedTuple):
    """One set of inputs, by port name.

    Attributes:
        name: in reports.
        inputs: by port.
        rows: the positions whose outputs are compared; empty for all.
    """

    name: str
    inputs: dict[str, Array]
    rows: tuple[int, ...] = ()


Fill = Callable[[Port, Context], Array]


PAST: Final = "past"  # begins the name of a probe that is longer than a threshold
QUICK: Final = (16, 7)  # lengths of the one small probe of a quick check
PADDED: Final = ((16, 7, 7), (False, False, True))  # where masks say so: one row each way


def layouts(limit: int) -> tuple[Layout, ...]:
    """Return the layouts for a position range of LIMIT.

    Short, at least 64 tokens, beyond half of the range, padded right, padded left.

    >>> [max(layout.lengths) for layout in layouts(512)]
    [9, 80, 305, 64, 64]
    """
    beyond = min(limit // 2 + max(1, limit // 16 + limit % 2 + 17), limit, LONGEST)
    padded = tuple(min(length, limit) for length in (64, 23, 41, 7))
    return (
        Layout("short", (min(9, limit),)),
        Layout("long", (min(80, limit),)),
        Layout("beyond-half", (beyond,)),
        Layout("right-padded", padded),
        Layout("left-padded", padded, left=(True,) * len(padded)),
    )


def _fit(length: int, texts: Iterator[list[int]]) -> list[int]:
    """Join texts until there are LENGTH ids; the last id (a separator, often) stays last."""
    ids: list[int] = []
    while len(ids) < length:
        ids += next(texts)
    return [*ids[: length - 1], ids[-1]]


# What a row of so many tokens holds, by role: text, ones, halves of a pair, a count from 0, zeros.
OF_TOKENS: Final[Mapping[str, Callable[[Context, int], Any]]] = {
    "token_ids": lambda context, length: _fit(length, context.texts),
    "attention_mask": lambda _, __: 1,
    "token_types": lambda _, length: np.arange(length) * 2 // length,
    "positions": lambda _, length: np.arange(length),
    "prompt": lambda _, __: 0,
}
TOKEN_ROLES: Final = frozenset(OF_TOKENS)


def rows_of_tokens(port: Port, context: Context) -> Array:
    """Fill a port by its role, row by row; what lies outside of a row is padding, or 0."""
    pad = context.pad if port.role == "token_ids" else 0
    filled, width = np.full(context.shape, pad, port.dtype), context.shape[-1]
    left = context.layout.left or cycle([False])
    for row, (length, ahead) in enumerate(zip(context.layout.lengths, left, strict=False)):
        columns = slice(width - length, None) if ahead else slice(length)
        filled[row, columns] = OF_TOKENS[port.role](context, length)
    return filled


ROLES: Final[Mapping[str, Fill]] = {
    **dict.fromkeys(OF_TOKENS, rows_of_tokens),
    "series": series,
    "pixels": pixels,
    "hidden": hidden,
    "waveform": waveform,
    "spectrogram": spectrogram,
}


def synthetic_texts(
    vocabulary: int, random: np.random.Generator, reserved: Collection[int] = ()
) -> Iterator[list[int]]:
    """Yield ids as unevenly spread as words are, where there is no tokenizer; none of those RESERVED.

    The first eighth of a vocabulary, at most 1000 ids, may be special and is left aside.
    """
    first = min(1000, vocabulary // 8)
    while True:
        spread = random.random(24) ** 3  # small ids are frequent ones
        drawn = [first + int(part * (vocabulary - first)) for part in spread]
        yield [first if it in reserved else it for it in drawn]


def stand_ins(config: Mapping[str, Any]) -> frozenset[int]:
    """Return the ids that stand for a picture or a sound, which mean nothing in a text without one.

    >>> sorted(stand_ins({"image_token_id": 7, "eos_token_id": 2, "text_config": {"audio_token_index": 9}}))
    [7, 9]
    """
    parts = [config, *(it for it in config.values() if isinstance(it, Mapping))]
    named = ((key, value) for part in parts for key, value in part.items())
    return frozenset(it for key, it in named if STANDS_FOR.fullmatch(key) and type(it) is int)


def sequence_limit(signature: Signature) -> int:
    """Return the longest sequence that every input takes."""
    named = [
        port.limit(size, DEFAULT_LIMIT)
        for port in signature.inputs
        for size in port.shape[1:]
        if isinstance(size, str)
    ]
    fixed = [int(p.shape[-1]) for p in signature.inputs if p.role in TOKEN_ROLES and _static(p)]
    return min([*named, *fixed], default=DEFAULT_LIMIT)


def _affordable(signature: Signature) -> int:
    """Return how many tokens a row may have, so that its outputs in float64 can be kept.

    >>> logits = Port("logits", "float32", ("batch", "sequence", 151936), "logits")
    >>> _affordable(Signature((), (logits,)))
    220
    """
    widest = max((int(p.shape[-1]) for p in signature.outputs if _static(p)), default=1)
    return max(SHORTEST, LARGEST // max(widest, 1))


def _static(port: Port) -> bool:
    return bool(port.shape) and isinstance(port.shape[-1], int)


def _fixed_batch(signature: Signature) -> int | None:
    sizes = [port.shape[0] for port in signature.inputs if port.shape]
    fixed = [size for size in sizes if isinstance(size, int)]
    upper = [p.limit(str(p.shape[0]), 1 << 30) for p in signature.inputs if p.shape]
    if fixed:
        return min(fixed)
    most = min(upper, default=1 << 30)
    return most if most < 4 else None


def _rows_needed(signature: Signature) -> int:
    """Return how many rows make every output of SIGNATURE at least ENOUGH numbers, pooled ones too.

    >>> scores = Port("scores", "float32", ("batch", "batch"), "logits")
    >>> _rows_needed(Signature((), (scores,)))
    4
    """
    named = [[size for size in port.shape if isinstance(size, str)] for port in signature.outputs]
    pooled = [
        (ENOUGH / max(1, math.prod(it for it in port.shape if isinstance(it, int))))
        ** (1 / len(sizes))
        for port, sizes in zip(signature.outputs, named, strict=True)
        if sizes and set(sizes) == {port.shape[0]}
    ]
    return math.ceil(max(pooled, default=1))


def _adapt(layout: Layout, signature: Signature) -> Layout:
    """Fit LAYOUT to a fixed batch, to few numbers per row, and to a model that takes no mask."""
    batch = _fixed_batch(signature)
    if batch is None and (rows := _rows_needed(signature)) > len(layout.lengths):
        upper = [p.limit(str(p.shape[0]), rows) for p in signature.inputs if p.shape]
        batch = min([rows, *upper])
    rows = batch or len(layout.lengths)
    lengths = tuple(islice(cycle(layout.lengths), rows))
    left = tuple(islice(cycle(layout.left), rows))
    if not takes_mask(signature):
        lengths = (max(lengths),) * len(lengths)
    return layout._replace(lengths=lengths, left=left)


def takes_mask(signature: Signature) -> bool:
    """Say whether SIGNATURE has an input that says which tokens count."""
    return any(port.role == "attention_mask" for port in signature.inputs)


def small_layout(signature: Signature, limit: int) -> Layout:
    """Return the layout of the one small probe of a quick check, for texts of up to LIMIT tokens."""
    lengths, left = PADDED if takes_mask(signature) else (QUICK, ())
    return Layout("small", tuple(min(length, limit) for length in lengths), left)


def _shape(port: Port, layout: Layout) -> tuple[int, ...]:
    width = max(layout.lengths)
    named = (min(width, port.limit(str(size), DEFAULT_LIMIT)) for size in port.shape)
    sizes = [
        size if isinstance(size, int) else limit
        for size, limit in zip(port.shape, named, strict=True)
    ]
    if sizes and isinstance(port.shape[0], str):
        sizes[0] = len(layout.lengths)
    return tuple(sizes)


def _check_roles(signature: Signature) -> None:
    unknown = [
        f"{port.name}: role {port.role!r}; known are {', '.join(ROLES)}"
        for port in signature.inputs
        if port.role not in ROLES
    ]
    if unknown:
        raise UnsupportedError(
            f"no probe can be made for {'; '.join(unknown)}. Give inputs of your own (--inputs)"
        )


def make_probes(  # noqa: PLR0913  # what a check asks for, by keyword
    signature: Signature,
    *,
    tokenizer: Path | None,
    seed: int = 0,
    quick: bool = False,
    past: Sequence[Threshold] = (),
    reach: int = 0,
    tokens: int | None = None,
    pad: int = 0,
    reserved: Collection[int] = (),
) -> list[Probe]:
    """Return probes for SIGNATURE, the same ones for the same arguments.

    Args:
        signature: whose inputs to fill, each by its role.
        tokenizer: model directory with a tokenizer; without one, ids are drawn at random.
        seed: of everything that is drawn.
        quick: one small probe only, and one that is longer than all of PAST.
        past: lengths that one more probe is to cross.
        reach: if not 0, one more row of so many tokens, or as many as the model takes.
        tokens: how many those of a check that is not quick have together, if not any number.
        pad: the id of padding where no tokenizer says it.
        reserved: ids that are not drawn where there is no tokenizer; see :func:`stand_ins`.

    Raises:
        UnsupportedError: an input has a role that no probe is known for.
        MismatchError: the tokenizer gives ids that the model has no row for.
    """
    _check_roles(signature)
    random, source = np.random.default_rng(seed), load_tokenizer(tokenizer)
    vocabulary = min((p.limit("vocabulary", 256) for p in signature.inputs), default=256)
    pad, probes = source.special.get("pad", 0) if source else pad, dict[str, Probe]()
    for layout in [*ordinary(signature, reach, tokens, quick=quick), *crossing(past, signature)]:
        adapted = _adapt(layout, signature)
        texts = _encoded(source) if source else synthetic_texts(vocabulary, random, reserved)
        inputs = _inputs(signature, Context(adapted, (), texts, random, pad))
        rows = positions_past(past, max(layout.lengths)) if layout.name.startswith(PAST) else ()
        probes.setdefault(f"{_identity(adapted, inputs)} {rows}", Probe(layout.name, inputs, rows))
    return _fitting(tokenizer, [*probes.values()], signature)


def _encoded(source: Any) -> Iterator[list[int]]:
    """Yield the sentences as the tokenizer SOURCE encodes them, again and again."""
    return cycle([source.encode(sentence) for sentence in SENTENCES])


def ordinary(
    signature: Signature, reach: int, tokens: int | None, *, quick: bool
) -> Iterator[Layout]:
    """Yield the layouts of probes that every model gets; see ``make_probes``."""
    limit = min(sequence_limit(signature), _affordable(signature))
    yield from [small_layout(signature, limit)] if quick else within(layouts(limit), tokens)
    if reach:
        yield Layout("far", (min(limit, reach),))


def _fitting(tokenizer: Path | None, probes: list[Probe], signature: Signature) -> list[Probe]:
    """Return PROBES if SIGNATURE has a row for every id that TOKENIZER gave."""
    if problems := [it for probe in probes for it in _unknown_ids(probe, signature)]:
        raise MismatchError(f"{tokenizer}: its tokenizer does not fit the model", problems)
    return probes


def _inputs(signature: Signature, context: Context) -> dict[str, Array]:
    """Return every input of SIGNATURE, filled by its role."""
    found = {}
    for port in signature.inputs:
        layout = _layout_of(port, signature, context.layout)
        given = context._replace(layout=layout, shape=_shape(port, layout))
        found[port.name] = ROLES[port.role](port, given)
    return found


def _layout_of(port: Port, signature: Signature, layout: Layout) -> Layout:
    """Return LAYOUT, its rows shorter where PORT is another text than the first, such as a decoder's."""
    texts = [it.shape[1:2] for it in signature.inputs if it.role in TOKEN_ROLES]
    same = port.role not in TOKEN_ROLES or port.shape[1:2] == texts[0] or _static(port)
    if same or layout.name.startswith(PAST):
        return layout
    return layout._replace(lengths=tuple(max(1, it * 3 // 4) for it in layout.lengths))


def crossing(past: Sequence[Threshold], signature: Signature) -> Iterator[Layout]:
    """Yield the layout of one text that is longer than every threshold of PAST, if there is any."""
    if past:
        longest = max(past, key=lambda it: it.tokens)
        length = min(longest.tokens + BEYOND, sequence_limit(signature))
        yield Layout(f"{PAST} {longest}", (length,))


def _unknown_ids(probe: Probe, signature: Signature) -> Iterator[str]:
    for port in signature.inputs:
        yield from range_problems(probe.name, port, probe.inputs[port.name])


def _identity(layout: Layout, inputs: Mapping[str, Array]) -> str:
    """Return what makes a probe worth its run: layouts that came out alike are run once."""
    shapes = {name: array.shape for name, array in inputs.items()}
    return f"{layout.lengths} {any(layout.left) and len(set(layout.lengths)) > 1} {shapes}"


def range_problems(probe: str, port: Port, array: Array) -> list[str]:
    """Say which ids of ARRAY the model has no row for; a lookup would fail, or read what is not there."""
    rows = port.limit("vocabulary", 0) if port.role == "token_ids" else 0
    if not rows or not array.size or (array.min() >= 0 and array.max() < rows):
        return []
    ends = f"{array.min()} to {array.max()}"
    return [f"{probe}: {port.name} holds ids from {ends}; the model has 0 to {rows - 1}"]


def masks_of(signature: Signature, probe: Probe) -> dict[str, Array | None]:
    """Return for every output the attention mask of PROBE where it says which positions count.

    It does for outputs that the signature gives per token, ``("batch", "sequence", ...)``; a pooled
    output counts whole, even where its sizes happen to be those of the mask.

    >>> ids = Port("mask", "int64", ("batch", "sequence"), "attention_mask")
    >>> outputs = tuple(Port(n, "float32", shape, "hidden")
    ...     for n, shape in {"tokens": ("batch", "sequence", 8), "pooled": ("batch", 8)}.items())
    >>> masks_of(Signature((ids,), outputs), Probe("p", {"mask": np.ones((2, 8))}))["pooled"] is None
    True
    """
    masks = [port for port in signature.inputs if port.role == "attention_mask"]
    if not masks:
        return {port.name: None for port in signature.outputs}
    axes, mask = masks[0].shape, probe.inputs[masks[0].name]
    mask = mask[:, list(probe.rows)] if probe.rows else mask
    return {
        port.name: mask if port.shape[: len(axes)] == axes else None for port in signature.outputs
    }


def compared(signature: Signature, probe: Probe, outputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return of OUTPUTS what is compared: where PROBE chooses positions, these of outputs that have them."""
    tokens = next((it.shape for it in signature.inputs if it.role == "token_ids"), ())
    ports = {it.name for it in signature.outputs if it.shape[: len(tokens)] == tokens}
    rows = tuple(probe.rows)
    fit = {name for name in ports & outputs.keys() if rows and outputs[name].shape[1:2] > rows[-1:]}
    return {name: array[:, rows] if name in fit else array for name, array in outputs.items()}


def describe_probe(probe: Probe) -> dict[str, Any]:
    """Return name, shapes and dtypes, for reports and golden files."""
    inputs = {name: f"{array.dtype}{list(array.shape)}" for name, array in probe.inputs.items()}
    return {"name": probe.name, "inputs": inputs, "rows": list(probe.rows)}
