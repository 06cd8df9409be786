"""Remedies for an adapter that a quantized base would round away, each with what it costs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from ...converters.adapters.merging.affected import Change
from ...converters.adapters.merging.statistics import ENOUGH, Measured
from ...converters.common.hints import command, unused
from ...converters.models import Model
from ...converters.planning.transcoding import own_dtype
from ...converters.values import LowRank
from .trial import Trials, changes_of

PROMOTE: Final = "--promote without --original: its cost is reported when it is planned (--dry-run)"
CARD: Final = "README.md"
MODEL_OF_CARD: Final = re.compile(r"^base_model:\s*(?:-\s*)?['\"]?([\w.-]+/[\w.-]+)", re.MULTILINE)


def remedies(model: Model, trials: Trials) -> list[str]:
    """Return the remedies for the adapter on MODEL, the one that loses least first.

    ``keep it live``, ``merge into the original``, ``promote``: in that order, with what is known
    of what each costs. Without TRIALS it is the merge into the original that lost it.
    """
    ways = (live(model), original(model), promoted(trials)) if trials else (live(model), PROMOTE)
    return [f"{place}. {line}" for place, line in enumerate(ways, start=1)]


def live(model: Model) -> str:
    """Say how the adapter stays live, and what that costs."""
    size = sum(map(nbytes, changes_of(model).values()))
    assert model.adapter is not None  # noqa: S101  (there are changes)
    path, base = str(model.adapter.path), str(model.path)
    if model.adapter.dialect == "mlx":
        use = command("--model", base, "--adapter-path", path, program="mlx_lm.generate")
    elif model.adapter.saved and model.adapter.updates:  # which mlx-lm does not load together
        way = ("mlx-to-torch", base, unused(base, "-torch"), "--dequantize", own_dtype(model))
        use = f"by PEFT, on the base in PyTorch: {command('convert', *way)}"
    else:
        use = command("convert", "peft-to-mlx", path, unused(path, "-mlx"), "--base", base)
    return f"keep the adapter live: nothing is lost, {megabytes(size)} more to load ({use})"


def original(model: Model) -> str:
    """Say how to merge into the weights that MODEL was made from."""
    known = named_original(model.path)
    fetch = f": hf download {known} --local-dir ORIGINAL" if known else ""
    return (
        "merge into the weights that the base was made from, and quantize the result as the base is:"
        f" --original ORIGINAL (the quantization error is measured then{fetch}); where the rounding is larger than"
        " the update that is refused as well, unless --force"
    )


def promoted(trials: Trials) -> str:
    """Say which layers ``--promote`` keeps at more bits, and what that costs."""
    lost = [found for found in trials.values() if found.own.verdict != ENOUGH]
    if not lost:
        return "--promote: no layer needs more bits"
    chosen = {found.weight.name: found.best for found in lost}
    growth = sum(found.growth(found.best) for found in lost)
    forms = Counter(str(it.form) for it in chosen.values())
    kept = ", ".join(f"{count} at {form}" for form, count in forms.items())
    still = sum(it.verdict != ENOUGH for it in chosen.values())
    least = min(chosen.values(), key=lambda it: it.survival.cosine).survival
    return (
        f"--promote: keep {len(lost)} of {len(trials)} layers at more bits ({kept}):"
        f" {megabytes(growth)} more, gain {least.gain:.2f} and cosine {least.cosine:.3f} in the worst"
        + (f"; {still} stay below the bar even so" if still else "")
    )


def nbytes(change: Change) -> int:
    """Return the bytes of CHANGE."""
    if isinstance(change, LowRank):
        magnitude = 0 if change.magnitude is None else change.magnitude.nbytes
        return change.a.nbytes + change.b.nbytes + magnitude
    return 0 if change is None else change.nbytes


def megabytes(size: float) -> str:
    """Return SIZE as a person reads it.

    >>> megabytes(3_400_000), megabytes(-1200)
    ('3.4 MB', '-1.2 kB')
    """
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(size) >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size:.0f} bytes"


def named_original(folder: Path | None) -> str | None:
    """Return which model the card in FOLDER says that it was made from; ``None`` if none does."""
    card = folder / CARD if folder and folder.is_dir() else None
    if card is None or not card.is_file():
        return None
    found = MODEL_OF_CARD.search(card.read_text(encoding="utf-8", errors="replace"))
    return found.group(1) if found else None


def promotions(trials: Trials, chosen: Mapping[str, Measured]) -> Iterator[str]:
    """Yield a line for each kind of layer that is kept in another form than the base has."""
    moved: Counter[tuple[str, str]] = Counter()
    for name, it in chosen.items():
        own = trials[name].own.form
        if it.form != own:
            moved[str(own), str(it.form)] += 1
    yield from (
        f"{count} of {len(chosen)} layers from {a} to {b}" for (a, b), count in moved.items()
    )
    size = sum(trials[name].growth(it) for name, it in chosen.items())
    if moved:
        yield f"{megabytes(size)} more than the base"
