"""Forwards of repaired classes of mlx-lm against the classes as they are: same sizes, in turns.

    python benchmarks/repaired_speed.py [TYPE ...] [--repeat 15]

A text of 256 tokens without a cache, and one token behind it with the cache that the class makes, for each
model type that has a repair, at hidden size 256 where the type takes it. Classes that cannot be built or
run as they are have no row. A ratio is the median over turns of one processor time by the other, where both
run one right after the other, each first in every other turn. Writes ``results/repaired_speed.json``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from weighbridge.benchmarks.captures import cpu_steps  # noqa: F401  # isort: skip - sets MLX's BLAS

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from weighbridge.converters.configs.to_mlx import to_mlx
from weighbridge.converters.libraries import find
from weighbridge.converters.libraries.repairs.catalogue import INSTEAD, REPAIRS, asked
from weighbridge.tests.support.atlas import sizes, tiny
from weighbridge.tests.support.side_by_side import machine

RESULT: Final = Path(__file__).parent / "results" / "repaired_speed.json"
LARGE: Final = {  # four times as wide inside, as classes are that read no other width
    "hidden_size": 256,
    "intermediate_size": 1024,
    "n_inner": 1024,
    "max_position_embeddings": 1024,
}
TOKENS: Final = 256
BAR: Final = 1.02
Forward = Callable[[], None]


def model(config: Mapping[str, Any]) -> Any:
    """Return the class for CONFIG with random weights."""
    target = find(config)
    if target is None:
        raise ValueError("no class")
    made = target.build(to_mlx(config, target).config)
    mx.eval(made.parameters())
    made.eval()
    return made


def configurations(kind: str) -> Iterator[dict[str, Any]]:
    """Yield configurations of KIND, large ones first."""
    nested = "text_config" in sizes.OVERRIDES.get(kind, {})
    for own in (LARGE, {"max_position_embeddings": 1024}, {}):
        try:
            yield tiny.configuration(kind, {"text_config": own} if nested else own).to_dict()
        except Exception:  # of transformers' own validation
            continue


def pair(kind: str) -> tuple[Any, Any]:
    """Return the class for KIND as it is and mended, the larger ones that can be built.

    Raises:
        ValueError: none can.
    """
    reason: Exception = ValueError("it has no configuration")
    for config in configurations(kind):
        if not asked(config):
            reason = ValueError("as it is set here there is nothing to repair")
            continue
        try:
            both = model(config), model({**config, "model_file": "model.py"})
            for it in both:
                text(it)()
                token(it)()
        except Exception as error:
            reason = error
        else:
            return both
    raise ValueError(" ".join(str(reason).split())[:200])


def text(made: Any) -> Forward:
    """Return the forward of a text."""
    ids = mx.random.randint(3, 100, (1, TOKENS))
    return lambda: mx.eval(made(ids))


def token(made: Any) -> Forward:
    """Return the forward of one token behind a text."""
    cache, ids = make_prompt_cache(made), mx.random.randint(3, 100, (1, TOKENS))
    mx.eval(made(ids, cache=cache))
    return lambda: mx.eval(made(ids[:, :1], cache=cache))


def ratio(plain: Forward, mended: Forward, repeat: int) -> float:
    """Return the median of how many times as long as PLAIN MENDED takes, over REPEAT turns."""
    found = []
    for turn in range(repeat + 2):
        order = (plain, mended) if turn % 2 else (mended, plain)
        times = {}
        for it in order:
            start = time.process_time()
            it()
            times[it] = time.process_time() - start
        found.append(times[mended] / times[plain])
    return statistics.median(found[2:])


def measure(kind: str, repeat: int) -> dict[str, Any]:
    """Return the row of KIND."""
    try:
        plain, mended = pair(kind)
    except ValueError as error:
        return {"kind": kind, "failed": str(error)}
    return {"kind": kind} | {
        name: round(ratio(make(plain), make(mended), repeat), 3) for name, make in FORWARDS.items()
    }


FORWARDS: Final = {"text": text, "token": token}


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", metavar="TYPE", nargs="*")
    parser.add_argument("--repeat", type=int, default=15)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = {}
    if options.kinds and RESULT.exists():
        rows = {row["kind"]: row for row in json.loads(RESULT.read_text())["rows"]}
    for kind in options.kinds or sorted(set(REPAIRS) - set(INSTEAD)):
        rows[kind] = measure(kind, options.repeat)
        print(rows[kind], flush=True)
        write([rows[kind] for kind in sorted(rows)])


def write(rows: list[dict[str, Any]]) -> None:
    """Write ROWS and their medians."""
    ran = [row for row in rows if "text" in row]
    result = {
        "machine": machine(),
        "versions": {name: version(name) for name in ("mlx", "mlx-lm")},
        "bar": BAR,
        "medians": {it: statistics.median(row[it] for row in ran) for it in FORWARDS if ran},
        "rows": rows,
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
