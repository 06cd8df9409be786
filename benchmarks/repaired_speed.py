"""Forwards of repaired classes of the MLX libraries against the classes as they are: same sizes, in turns.

    python benchmarks/repaired_speed.py [TYPE ...] [--library mlx-vlm] [--repeat 15]

A text of 256 tokens, one token behind it with the cache that the class makes, and the picture of the atlas
with its text, for each model type that has a repair: at hidden size 256, of the text and of the tower, where
the type takes it. Classes that cannot be built, and forwards that cannot be run, as they are have no figure.
A ratio is the median over turns of one processor time by the other, where both run one right after the
other, each first in every other turn. Writes ``results/repaired_speed.json``.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NamedTuple

from weighbridge.benchmarks.captures import cpu_steps  # noqa: F401  # isort: skip - sets MLX's BLAS

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache

from weighbridge.converters.configs.to_mlx import to_mlx
from weighbridge.converters.libraries import find
from weighbridge.converters.libraries.repairs.catalogue import INSTEAD, OF_LIBRARY, asked
from weighbridge.converters.libraries.repairs.writing import MODEL_FILES
from weighbridge.tests.support.atlas import libraries, logits, pictures, sizes, tiny
from weighbridge.tests.support.side_by_side import machine

RESULT: Final = Path(__file__).parent / "results" / "repaired_speed.json"
LARGE: Final = {  # four times as wide inside, as classes are that read no other width
    "hidden_size": 256,
    "intermediate_size": 1024,
    "n_inner": 1024,
    "max_position_embeddings": 1024,
}
LONG: Final = {"max_position_embeddings": 1024}
TOWER: Final = {"hidden_size": 256, "intermediate_size": 1024}
AS_IT_IS: Final = ("sam3", "sapiens2")  # their pictures are large: wider, they take all memory
TOKENS: Final = 256
LEAST: Final = 0.05  # seconds of a turn: single tokens take less than what disturbs them
BAR: Final = 1.02
Forward = Callable[[], None]


class Case(NamedTuple):
    """A model type of a library at some sizes."""

    library: str
    kind: str
    config: dict[str, Any]
    seen: Mapping[str, Any] | None  # a picture and its text


def model(case: Case, mended: bool) -> Any:
    """Return the class for CASE with random weights, as it is or MENDED."""
    config = case.config | ({"model_file": MODEL_FILES[case.library]} if mended else {})
    target = find(config, case.library)
    if target is None:
        raise ValueError("no class")
    made = target.build(to_mlx(config, target).config)
    mx.eval(made.parameters())
    made.eval()
    return made


def settings(library: str, kind: str) -> Iterator[dict[str, Any]]:
    """Yield what KIND of LIBRARY is given beside the atlas's sizes, the largest first."""
    if kind in AS_IT_IS:
        yield {}
        return
    nested = "text_config" in sizes.OVERRIDES.get(kind, {}) or (
        library != "mlx-lm" and "text_config" in tiny.configuration(kind, {}).to_dict()
    )
    for tower in ({"vision_config": TOWER}, {}) if library != "mlx-lm" else ({},):
        for own in (LARGE, LONG, {}):
            yield ({"text_config": own} if nested else own) | tower


def cases(library: str, kind: str) -> Iterator[Case]:
    """Yield KIND of LIBRARY at sizes that transformers builds, the largest first."""
    for own in settings(library, kind):
        try:
            if library == "mlx-lm":
                yield Case(library, kind, tiny.configuration(kind, own).to_dict(), None)
            else:
                yield pictured(library, kind, own)
        except Exception:  # of transformers' own validation
            continue


def pictured(library: str, kind: str, own: Mapping[str, Any]) -> Case:
    """Return the case of KIND with what OWN sets, and the picture that its torch model is given."""
    with tempfile.TemporaryDirectory() as folder:
        made = tiny.make(kind, Path(folder), own=own, gain=tiny.GAIN, library=library)
        config = json.loads((Path(folder) / "config.json").read_text())
    given = dict(libraries.probes(library, kind, made.model))
    return Case(library, kind, config, given.get("seen_"))


def text(case: Case, made: Any) -> Forward:
    """Return the forward of a text."""
    ids = logits.tokens((1, TOKENS))
    if case.library == "mlx-lm":
        array = mx.array(ids)
        return lambda: mx.eval(made(array))
    if case.library == "mlx-embeddings":  # padded on the right: where that makes NaN, it is fast
        ids, mask = np.repeat(ids, 2, axis=0), np.ones((2, TOKENS), np.int64)
        mask[1, -libraries.PADDING :] = 0
        return whole(made, {"input_ids": ids, "attention_mask": mask})
    return whole(made, {"input_ids": ids, **pictures.text_kinds(case.kind, ids)})


def token(case: Case, made: Any) -> Forward:
    """Return the forward of one token behind a text."""
    language = made if case.library == "mlx-lm" else made.language_model
    cache, ids = make_prompt_cache(language), mx.array(logits.tokens((1, TOKENS)))
    mx.eval(outputs(language(ids, cache=cache)))
    return lambda: mx.eval(outputs(language(ids[:, :1], cache=cache)))


def picture(case: Case, made: Any) -> Forward:
    """Return the forward of a picture and its text."""
    if case.seen is None:
        raise ValueError("it takes no pictures")
    return whole(made, case.seen)


def whole(made: Any, given: Mapping[str, Any]) -> Forward:
    """Return the forward of what is GIVEN, as the library of MADE runs it."""
    ready = libraries.ready(made, given)
    return lambda: mx.eval(outputs(ready()))


def outputs(found: Any) -> Any:
    """Return the arrays of what a forward FOUND."""
    return found if isinstance(found, mx.array) else libraries.outputs_of(found)


FORWARDS: Final = {"text": text, "token": token, "picture": picture}


def pairs(case: Case) -> dict[str, tuple[Forward, Forward]]:
    """Return the forwards of CASE that run, as it is and mended, by name.

    Raises:
        ValueError: none does, or nothing is to repair.
    """
    if not asked(case.config, case.library):
        raise ValueError("as it is set here there is nothing to repair")
    if not same_sizes(*(model(case, mended=it) for it in (False, True))):
        raise ValueError("as it is the class makes a model of other sizes")
    ready, reason = {}, Exception()
    for name, make in FORWARDS.items():
        try:  # each of its own, for some keep of one forward what changes the next
            both = tuple(make(case, model(case, mended=it)) for it in (False, True))
            for forward in (*both, *both):
                forward()
        except Exception as error:
            reason = reason if str(reason) else error
        else:
            ready[name] = both
    if not ready:
        raise ValueError(str(reason))
    return ready


def same_sizes(plain: Any, mended: Any) -> bool:
    """Return whether both have weights of the same shapes; a few that are computed may be no weights."""
    here, there = (
        {name: it.shape for name, it in tree_flatten(each.parameters())} for each in (plain, mended)
    )
    total = [sum(math.prod(shape) for shape in it.values()) for it in (here, there)]
    shared = here.keys() & there.keys()
    return max(total) <= 1.01 * min(total) and all(here[it] == there[it] for it in shared)


def largest(library: str, kind: str) -> dict[str, tuple[Forward, Forward]]:
    """Return the forwards of KIND at the largest sizes at which the most of them run.

    Raises:
        ValueError: none does at any.
    """
    found, reason = {}, "it has no configuration"
    for case in cases(library, kind):
        try:
            here = pairs(case)
        except Exception as error:
            reason = str(error)
        else:
            found = here if len(here) > len(found) else found
        if len(found) == len(FORWARDS) - (case.seen is None):
            break
    if not found:
        raise ValueError(" ".join(reason.split())[:200])
    return found


def ratio(plain: Forward, mended: Forward, repeat: int) -> float:
    """Return the median of how many times as long as PLAIN MENDED takes, over REPEAT turns."""
    calls = max(1, int(LEAST / max(seconds(plain, 1), 1e-4)))
    found = []
    for turn in range(repeat + 2):
        order = (plain, mended) if turn % 2 else (mended, plain)
        times = {it: seconds(it, calls) for it in order}
        found.append(times[mended] / times[plain])
    return statistics.median(found[2:])


def seconds(forward: Forward, calls: int) -> float:
    """Return the processor time of CALLS of FORWARD."""
    start = time.process_time()
    for _ in range(calls):
        forward()
    return time.process_time() - start


def measure(library: str, kind: str, repeat: int) -> dict[str, Any]:
    """Return the row of KIND of LIBRARY."""
    row = {"library": library, "kind": kind}
    try:
        found = largest(library, kind)
    except ValueError as error:
        return row | {"failed": str(error)}
    return row | {name: round(ratio(*both, repeat), 3) for name, both in found.items()}


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", metavar="TYPE", nargs="*")
    parser.add_argument("--library", choices=OF_LIBRARY, action="append")
    parser.add_argument("--repeat", type=int, default=15)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    mx.set_cache_limit(1 << 28)
    rows = {}
    if (options.kinds or options.library) and RESULT.exists():
        found = json.loads(RESULT.read_text())["rows"]
        rows = {(row["library"], row["kind"]): row for row in found}
    for library in options.library or OF_LIBRARY:
        for kind in sorted(set(OF_LIBRARY[library]) - set(INSTEAD)):
            if not options.kinds or kind in options.kinds:
                rows[library, kind] = measure(library, kind, options.repeat)
                print(rows[library, kind], flush=True)
                write([rows[key] for key in sorted(rows)])


def medians(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the median of each figure of ROWS."""
    found = {name: [row[name] for row in rows if name in row] for name in FORWARDS}
    return {name: round(statistics.median(them), 3) for name, them in found.items() if them}


def write(rows: list[dict[str, Any]]) -> None:
    """Write ROWS and their medians."""
    result = {
        "machine": machine(),
        "versions": {name: version(name) for name in ("mlx", *OF_LIBRARY)},
        "bar": BAR,
        "medians": {
            library: medians([row for row in rows if row["library"] == library])
            for library in OF_LIBRARY
        },
        "rows": rows,
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
