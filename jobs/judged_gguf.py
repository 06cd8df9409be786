"""A GGUF file as the judged side of a check: in llama.cpp, where that is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from ..converters.maps.sources.torch_side import torch_side
from ..converters.models import Model
from ..converters.runtimes.pretrained import torch_config
from ..errors import MismatchError
from ..parity.check.verdict import Stage, Verdict
from .checking import compare

GGUF: Final = ".gguf"


def compare_gguf(reference: Model, path: Path, **how: Any) -> Verdict:
    """Compare the GGUF file at PATH with REFERENCE, in llama.cpp; HOW as ``compare`` takes it.

    Raises:
        MismatchError: the file has other tensors than the model.
        UnsupportedError: its architecture or types are not known.
    """
    candidate, stage = judged(reference, path)
    verdict = compare(reference, candidate, **how)
    return verdict.preceded_by(stage) if stage else verdict


def judged(reference: Model, path: Path) -> tuple[Model, Stage | None]:
    """Return the model in the file at PATH, and what its metadata say otherwise than REFERENCE, if anything."""
    from ..converters.gguf import GgufFile
    from ..converters.gguf.checked.tensors import tensors_like
    from ..converters.gguf.metadata.settings import require_same

    file, stage = GgufFile(path), None
    try:
        require_same(file, torch_config(reference), reference.path or Path(reference.spec))
    except MismatchError as error:
        stage = Stage("settings", "fail", "; ".join(error.problems))
    in_torch = reference.framework != "mlx"
    own = reference.checkpoint if in_torch else torch_side(reference).arrays.checkpoint
    tensors = tensors_like(file, own, reference.spec)
    declared = reference.signature
    return Model(str(path), "gguf", path, {}, declared=declared, tensors=tensors), stage
