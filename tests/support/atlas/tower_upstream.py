"""Measure where mlx-vlm and mlx-embeddings disagree with transformers.

    python -m weighbridge.tests.support.atlas.tower_upstream TYPE [LIBRARY]

prints what LIBRARY, mlx-vlm where none is named, says of TYPE as transformers saves it, if it refuses it, and
how far its class is from transformers, as it is and as it is repaired, where there is a repair.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from weighbridge.converters.configs import to_mlx
from weighbridge.converters.libraries import find
from weighbridge.converters.libraries.protocols import beside
from weighbridge.converters.libraries.repairs.catalogue import OF_LIBRARY
from weighbridge.converters.models.model_files import repaired_config
from weighbridge.errors import MismatchError
from weighbridge.tests.support.atlas import libraries, logits, tiny
from weighbridge.tests.support.atlas.faults import Fault
from weighbridge.tests.support.atlas.hub import made_readable
from weighbridge.tests.support.atlas.tower_faults import OTHERS
from weighbridge.tests.support.atlas.upstream import add


def words(fault: Fault) -> str:
    """Return what the library says of the checkpoint that shows FAULT, empty where it loads and runs it."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            how = {"gain": tiny.GAIN, "library": fault.library}
            made = tiny.make(fault.kind, Path(folder), "saved", **how)
            add(Path(folder), fault.mlx)
            if "hub" in fault.layouts:
                made_readable(fault.kind, Path(folder))
            model = libraries.load(fault.library, Path(folder))
            list(compared(fault.library, fault.kind, made, model))
    except Exception as error:
        return " ".join(f"{type(error).__name__}: {error}".split())
    return ""


def worst(kind: str, library: str = "mlx-vlm", *, repair: bool = False) -> tuple[float, float]:
    """Return the error of LIBRARY's class for KIND that is the largest for its bar, and that bar."""
    return largest(errors(kind, library, repair=repair))


def largest(found: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Return of the errors FOUND, each with its bar, the one that is the largest for it."""
    return max(found, key=lambda pair: pair[0] / pair[1] if pair[1] else pair[0])


def errors(
    kind: str, library: str = "mlx-vlm", *, repair: bool = False
) -> list[tuple[float, float]]:
    """Return the error of LIBRARY's class for KIND on each input, with its bar.

    The class is given the weights as a conversion writes them, in the layout that it reads; where it
    refuses them all the same, or gives another number of logits, nothing is right.
    """
    import mlx.core as mx

    with tempfile.TemporaryDirectory() as folder:
        made = tiny.make(kind, Path(folder), "saved", gain=tiny.GAIN, library=library)
        config = json.loads((Path(folder) / "config.json").read_text())
        weights = dict(mx.load(f"{folder}/model.safetensors").items())
        weights |= beside(Path(folder), library)
        asked = repaired_config(None, config, library) if repair else config
        target = find(asked, library)
        try:
            config = to_mlx(asked, target).config
            model = target.load(config, target.sanitize(config, weights))
            return list(compared(library, kind, made, model))
        except (MismatchError, ValueError):
            return [(float("inf"), 0.0)]


def compared(library: str, kind: str, made: tiny.Tiny, model: Any) -> Iterator[tuple[float, float]]:
    """Yield the error of MODEL against MADE on each input, and how large it may be."""
    for _, given in libraries.probes(library, kind, made.model):
        wanted = libraries.reference(library, made.model, given)
        yield logits.error(libraries.native(model, given), wanted.double), wanted.bar


def shown(kind: str, library: str = "mlx-vlm") -> Iterator[str]:
    """Yield what is wrong with LIBRARY's class for KIND, measured now."""
    for fault in OTHERS:
        if (fault.library, fault.kind) == (library, kind):
            yield f"{kind}, as transformers saves it: {words(fault) or 'loads and runs'}"
    for repair in (False, True) if kind in OF_LIBRARY[library] else ():
        error, bar = worst(kind, library, repair=repair)
        name = "repaired" if repair else "as it is"
        yield f"{kind}, {name}: off by {error:.1e}, where {bar:.1e} is allowed"


if __name__ == "__main__":
    for line in shown(*sys.argv[1:]):
        print(line, flush=True)
