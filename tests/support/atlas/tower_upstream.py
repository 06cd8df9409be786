"""Measure where mlx-vlm and mlx-embeddings disagree with transformers.

    python -m weighbridge.tests.support.atlas.tower_upstream TYPE [LIBRARY]

prints how far the class of LIBRARY, mlx-vlm where none is named, for TYPE is from transformers, as it is
and as it is repaired.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from weighbridge.converters.configs import to_mlx
from weighbridge.converters.libraries import find
from weighbridge.converters.libraries.protocols import beside
from weighbridge.converters.models.model_files import repaired_config
from weighbridge.errors import MismatchError
from weighbridge.tests.support.atlas import libraries, logits, tiny
from weighbridge.tests.support.atlas.faults import Fault
from weighbridge.tests.support.atlas.hub import made_readable
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
            largest(fault.library, fault.kind, made, libraries.load(fault.library, Path(folder)))
    except Exception as error:
        return " ".join(f"{type(error).__name__}: {error}".split())
    return ""


def worst(kind: str, library: str = "mlx-vlm", *, repair: bool = False) -> tuple[float, float]:
    """Return the error of LIBRARY's class for KIND that is the largest for its bar, and that bar.

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
            return largest(library, kind, made, model)
        except (MismatchError, ValueError):
            return float("inf"), 0.0


def largest(library: str, kind: str, made: tiny.Tiny, model: Any) -> tuple[float, float]:
    """Return the error of MODEL against MADE that is the largest for its bar, and that bar."""
    found = []
    for _, given in libraries.probes(library, kind, made.model):
        wanted = libraries.reference(library, made.model, given)
        error = logits.error(libraries.native(model, given), wanted.double)
        found.append((error, wanted.bar))
    return max(found, key=lambda pair: pair[0] / pair[1])


if __name__ == "__main__":
    for repair in (False, True):
        error, bar = worst(*sys.argv[1:], repair=repair)
        name = "repaired" if repair else "as it is"
        print(f"{sys.argv[1]}, {name}: off by {error:.1e}, where {bar:.1e} is allowed")
