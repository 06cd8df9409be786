"""Make a model runnable in a runtime."""

from __future__ import annotations

import importlib
import sys
from typing import Final

from ...errors import UnsupportedError
from ..common.policy import Policy
from ..common.steps import step
from ..models import Model
from .base import Runner

RUNNERS: Final = {
    "torch": (".streamed.modules", "torch_runner"),
    "mlx": (".mlx", "MlxRunner"),
    "reference": (".programs.reference", "ReferenceRunner"),
    "coreml": (".programs.coreml", "CoremlRunner"),
    "onnxruntime": (".programs.onnxruntime", "OnnxRunner"),
    "coreai": (".programs.coreai", "CoreaiRunner"),
    "llama.cpp": (".programs.llama", "LlamaRunner"),
}

OTHERWISE: Final = {
    "onnx": "onnxruntime",
    "gguf": "llama.cpp",
}  # runtimes that are not called as the framework is


def native_runtime(framework: str) -> str:
    """Return the runtime that runs FRAMEWORK's files on this machine.

    >>> native_runtime("mlx")
    'mlx'
    """
    if framework == "mlprogram":
        return "coreml" if sys.platform == "darwin" else "reference"
    return OTHERWISE.get(framework, framework)


def load(model: Model, runtime: str | None = None, policy: Policy = Policy()) -> Runner:
    """Load MODEL into RUNTIME (default: its framework's own).

    Raises:
        UnsupportedError: no such runtime; the known ones are named.
    """
    name = runtime or native_runtime(model.framework)
    if name not in RUNNERS:
        raise UnsupportedError(f"there is no runtime {name!r}; choose from {', '.join(RUNNERS)}")
    module, attribute = RUNNERS[name]
    step(f"loading {model.spec} in {name}")
    runner: Runner = getattr(importlib.import_module(module, __package__), attribute)(model, policy)
    return runner
