"""A GGUF file as the judged side of a check: in llama.cpp, where that is installed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from ...converters.maps.sources.torch_side import with_torch_side
from ...converters.models import Model
from ...converters.planning.view import converted_view
from ...converters.runtimes.pretrained import torch_config
from ...errors import MismatchError
from ...parity.check.verdict import Stage, Verdict
from ..checking import compare

GGUF: Final = ".gguf"


def compare_gguf(reference: Model, path: Path, **how: Any) -> Verdict:
    """Compare the GGUF file at PATH with REFERENCE, in llama.cpp; HOW as ``compare`` takes it.

    Raises:
        MismatchError: the file has other tensors than the model.
        UnsupportedError: its architecture or types are not known.
    """
    if reference.framework == "mlx":  # experts lie in files as in PyTorch, one by one or together
        reference = with_torch_side(converted_view(reference, "torch", "none"))
    candidate, stage = judged(reference, path)
    verdict = compare(reference, candidate, **how)
    others = tuple(it for it in verdict.stages if it.name != stage.name)
    return replace(verdict, stages=others).preceded_by(stage)


def judged(reference: Model, path: Path) -> tuple[Model, Stage]:
    """Return the model in the file at PATH, and whether its metadata say what REFERENCE's configuration does."""
    from ...converters.gguf import GgufFile
    from ...converters.gguf.checked.tensors import tensors_like
    from ...converters.gguf.metadata.settings import require_same, unwindowed

    file = GgufFile(path)
    config = torch_config(reference)
    note = unwindowed(file, config) or "its metadata say nothing else than config.json"
    stage = Stage("configuration", "pass", note)
    try:
        require_same(file, config, reference.path or Path(reference.spec))
    except MismatchError as error:
        stage = stage._replace(status="fail", detail="; ".join(error.problems))
    tensors = tensors_like(file, reference.checkpoint, reference.spec)
    declared = reference.signature
    return Model(str(path), "gguf", path, {}, declared=declared, tensors=tensors), stage
