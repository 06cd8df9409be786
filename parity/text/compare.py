"""The stage of a check that compares text sides, question by question."""

from __future__ import annotations

from typing import Final

from ..check.stages import join
from ..check.verdict import Stage
from .differences import problems_of_files, problems_of_reading, rewritten
from .phrases import TEXTS
from .side import TextSide

NONE: Final = "neither side has a tokenizer"
SHOWN: Final = 3  # problems told in the stage's line; all are in its figures


def compare_sides(reference: TextSide | None, candidate: TextSide | None) -> Stage:
    """Compare two text sides.

    Neither has a tokenizer: settings of generation decide, and without any it is skipped. Only one
    has: fail. No library read both: their bytes decide.

    Returns:
        The stage ``text``; its figures hold ``problems``, a list, and ``lines``, by question.
    """
    have = [side is not None and side.has_tokenizer for side in (reference, candidate)]
    if have[0] != have[1]:
        side = "candidate" if have[0] else "reference"
        return Stage("text", "fail", f"the {side} has no tokenizer, the other side has one")
    if reference is None or candidate is None:
        return Stage("text", "skipped", NONE)
    return (_compare_tokenizers if have[0] else _compare_generation)(reference, candidate)


def _compare_tokenizers(reference: TextSide, candidate: TextSide) -> Stage:
    """Compare sides with a tokenizer each."""
    if reference.files == candidate.files:
        count = len(reference.files)
        return Stage("text", "pass", f"{count} files of the text side equal byte for byte")
    lines = _lines(reference, candidate)
    problems = [problem for found in lines.values() for problem in found]
    answers = {name: "; ".join(found) or "equal" for name, found in lines.items()}
    if problems:
        figures = {"problems": problems, "lines": answers}
        return Stage("text", "fail", join(problems, SHOWN), figures)
    if unread := _not_compared(reference, candidate):
        return Stage("text", "unverified", unread, {"lines": answers})
    return Stage("text", "pass", _agreement(reference, candidate), {"lines": answers})


def _compare_generation(reference: TextSide, candidate: TextSide) -> Stage:
    """Compare sides without a tokenizer."""
    if not any("generation_config.json" in side.files for side in (reference, candidate)):
        return Stage("text", "skipped", NONE)
    problems = problems_of_files(reference, candidate)["generation"]
    if problems:
        return Stage("text", "fail", join(problems, SHOWN), {"problems": problems})
    return Stage("text", "pass", f"{NONE}; settings of generation agree")


def _lines(reference: TextSide, candidate: TextSide) -> dict[str, list[str]]:
    lines: dict[str, list[str]] = {}
    for library in sorted(reference.readings.keys() & candidate.readings.keys()):
        found = problems_of_reading(reference.readings[library], candidate.readings[library])
        for question, problems in found.items():
            named = [f"{problem} (read by {library})" for problem in problems]
            lines.setdefault(question, []).extend(named)
    return lines | problems_of_files(reference, candidate)


def _not_compared(reference: TextSide, candidate: TextSide) -> str:
    """Say what no library that is installed here could compare; empty where all was."""
    both = reference.readings.keys() & candidate.readings.keys()
    if not reference.readings and reference.files:
        return "the text side was recorded by an older version; record the golden again"
    if not both:
        return "tokenizer files differ and no library read both sides; install transformers"
    if "transformers" in both:
        return ""
    return (
        "ids agree, but chat template, padding and truncation were not compared; install"
        " transformers"
    )


def _agreement(reference: TextSide, candidate: TextSide) -> str:
    libraries = [name for name in reference.readings if name in candidate.readings]
    readings = [(reference.readings[name], candidate.readings[name]) for name in libraries]
    first, _ = readings[0]
    parts = [
        f"{len(TEXTS)} texts and {len(first.tokens)} tokens inside text give the same ids and text",
        f"read by {' and '.join(libraries)}",
        "special tokens, padding, truncation and stop ids equal",
    ]
    parts += [f"{len(first.chats)} chats rendered alike"] if first.chats else []
    other = sorted({part for pair in readings for part in rewritten(*pair)})
    parts += (
        [f"written in another way, with no text that tells: {', '.join(other)}"] if other else []
    )
    return ", ".join(parts)
