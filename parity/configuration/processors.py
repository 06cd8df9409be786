"""Files that say how images and sound become numbers: both sides have to say the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from ...converters.documents import read_optional
from ...converters.models import Model
from ...converters.sidefiles import PROCESSORS
from ..check.stages import join
from ..check.verdict import Stage

NAME: Final = "processor"
# Keys that change no number.
NAMES: Final = frozenset({"_name_or_path", "auto_map", "processor_class", "transformers_version"})


def processor_stages(reference: Model | None, candidate: Model) -> list[Stage]:
    """Return the stage that compares these files; none where REFERENCE has none, or a side no directory.

    Raises:
        BadInputError: one of them is no JSON object.
    """
    here, there = (it.folder if it else None for it in (reference, candidate))
    if here is None or there is None:
        return []
    wanted = {name: read_optional(here / name) for name in PROCESSORS if (here / name).is_file()}
    if not wanted:
        return []
    lost = [name for name in wanted if not (there / name).is_file()]
    problems = [
        f"{name}: {line}"
        for name in wanted
        if name not in lost
        for line in differences(wanted[name], read_optional(there / name))
    ]
    if problems:
        return [Stage(NAME, "fail", join(problems), {"problems": problems})]
    if lost:
        missing = f"the candidate has no {' and no '.join(lost)}, which the reference has"
        return [Stage(NAME, "unverified", missing)]
    return [Stage(NAME, "pass", f"{' and '.join(wanted)} say the same")]


def differences(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    """Yield which keys of FOUND have other values than in WANTED.

    >>> list(differences({"size": 2, "mean": 0.5}, {"size": 2, "mean": 0.4, "auto_map": {}}))
    ['mean is 0.4, the reference has 0.5']
    """
    for key in sorted({*wanted, *found} - NAMES):
        if key not in found:
            yield f"{key} is not there, the reference has {wanted[key]!r}"
        elif key not in wanted:
            yield f"{key} is {found[key]!r}, the reference has none"
        elif found[key] != wanted[key]:
            yield f"{key} is {found[key]!r}, the reference has {wanted[key]!r}"
