"""Files that say how images and sound become numbers: both sides have to say the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from ...converters.documents import read_optional
from ...converters.models import PROGRAMS, Model
from ...converters.sidefiles import PROCESSORS
from ..check.stages import join
from ..check.verdict import Stage

NAME: Final = "processor"
# Keys that change no number.
NAMES: Final = frozenset({"_name_or_path", "auto_map", "processor_class", "transformers_version"})
# Names of classes, several of which do the same.
CLASSES: Final = frozenset({"image_processor_type", "feature_extractor_type"})
SECTIONS: Final = frozenset({"image_processor", "video_processor", "feature_extractor"})


def processor_stages(
    reference: Model | None, candidate: Model, *, needed: bool = False
) -> list[Stage]:
    """Return the stage that compares these files; none where a side has no directory.

    A program is given numbers, or has inside what makes them of pictures.

    Args:
        reference: the source, if it is at hand.
        candidate: what is judged.
        needed: whether pictures or sound go into a language model, which without these files nobody can give it.

    Raises:
        BadInputError: one of them is no JSON object.
    """
    here, there = (it.folder if it else None for it in (reference, candidate))
    if here is None or there is None or candidate.framework in PROGRAMS:
        return []
    wanted = {name: read_optional(here / name) for name in PROCESSORS if (here / name).is_file()}
    if not wanted:
        return [Stage(NAME, "unverified", absent(here))] if needed else []
    lost = [name for name in wanted if not (there / name).is_file()]
    pairs = {name: (wanted[name], read_optional(there / name)) for name in wanted.keys() - lost}
    problems = [f"{name}: {line}" for name in sorted(pairs) for line in differences(*pairs[name])]
    if problems:
        return [Stage(NAME, "fail", join(problems), {"problems": problems})]
    open_ = [f"{name}: {line}" for name in sorted(pairs) for line in undecided(*pairs[name])]
    if lost:
        open_.append(f"the candidate has no {' and no '.join(lost)}, which the reference has")
    if open_:
        return [Stage(NAME, "unverified", join(open_))]
    return [Stage(NAME, "pass", f"{' and '.join(wanted)} say the same")]


def absent(folder: Path) -> str:
    """Return what is to be said of a model with a tower whose FOLDER comes without these files.

    >>> absent(Path("m"))
    'm has no processor_config.json and no preprocessor_config.json, which say how pictures or sound become numbers'
    """
    return f"{folder} has no {' and no '.join(PROCESSORS[:2])}, which say how pictures or sound become numbers"


def differences(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    """Yield which keys of FOUND have other values than in WANTED.

    >>> list(differences({"size": 2, "mean": 0.5}, {"size": 2, "mean": 0.4, "auto_map": {}}))
    ['mean is 0.4, the reference has 0.5']
    """
    for key, (one, other) in unlike(wanted, found):
        if comparable(key, one, other):
            yield f"{key} is {other!r}, the reference has {one!r}"


def undecided(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    """Yield which keys are in one side alone, where a class decides, or written in another form.

    >>> list(undecided({"size": 2, "pad": None}, {"size": {"height": 2, "width": 2}}))
    ["size is {'height': 2, 'width': 2}, the reference has 2"]
    """
    for key, (one, other) in unlike(wanted, found):
        if not comparable(key, one, other):
            yield f"{key} is {_shown(other)}, the reference has {_shown(one)}"


def comparable(key: str, one: Any, other: Any) -> bool:
    """Say whether the values ONE and OTHER of KEY, which are unlike, cannot mean the same."""
    numbers = all(isinstance(it, int | float) for it in (one, other))
    return key.rpartition(".")[2] not in CLASSES and (numbers or type(one) is type(other))


def unlike(
    wanted: Mapping[str, Any], found: Mapping[str, Any]
) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Yield the keys of WANTED and FOUND whose values are unlike, with both; null is no value."""
    for key in sorted({*wanted, *found} - NAMES):
        pair = wanted.get(key), found.get(key)
        if key in SECTIONS and all(isinstance(it, Mapping) for it in pair):
            yield from ((f"{key}.{name}", it) for name, it in unlike(*pair))  # type: ignore[arg-type]
        elif pair[0] != pair[1]:
            yield key, pair


def _shown(value: Any) -> str:
    return "none" if value is None else repr(value)
