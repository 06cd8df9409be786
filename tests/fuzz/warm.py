"""A process with everything imported, from which a child is forked for every input."""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import os
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "MLX_DISABLE_COMPILE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
    "WEIGHBRIDGE_CACHE": "",
    "PYTHONWARNINGS": "ignore",
}
FRAMEWORKS = (
    *("torch", "transformers", "mlx.core", "mlx.nn", "mlx.optimizers", "mlx_lm", "coremltools"),
    *("gguf", "onnx", "peft", "yaml", "pydantic", "matplotlib.pyplot", "safetensors.torch"),
    *("torch.onnx._internal.exporter._core", "onnxscript", "onnxruntime"),
    *("hypothesis", "psutil", "tests.conftest", "tests.converters.gguf.models"),
)
PACKAGES = ("converters", "jobs", "parity", "trainers", "verbs")
NOT_EVERYWHERE = ("coreai", "coreai_torch")  # betas, for some machines alone
NOT_IMPORTED = ("__main__", "defaults_child")


def prepare() -> None:
    """Import every framework and every module of ours; start no thread, compute nothing."""
    os.environ.update(ENVIRONMENT)
    logging.disable(logging.WARNING)  # coremltools says what it was not tested with
    from weighbridge.converters.runtimes.blas import preload_blas

    preload_blas()
    for name in (*FRAMEWORKS, *our_modules()):
        importlib.import_module(name)
    for name in NOT_EVERYWHERE:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    settle()


def our_modules() -> list[str]:
    """Return the name of every module of the package."""
    files = [*ROOT.glob("*.py"), *(p for name in PACKAGES for p in (ROOT / name).rglob("*.py"))]
    parts = [file.relative_to(ROOT).with_suffix("").parts for file in sorted(files)]
    return [
        ".".join(("weighbridge", *part)).removesuffix(".__init__")
        for part in parts
        if part[-1] not in NOT_IMPORTED
    ]


def loaded() -> list[str]:
    """Return the modules that are imported in this process."""
    return sorted(sys.modules)


def take_over(names: list[str]) -> None:
    """Import NAMES, which a child needed: the next one finds them here."""
    for name in names:
        if name.partition(".")[0] in ("torch", "transformers", "mlx", "mlx_lm", "coremltools"):
            with contextlib.suppress(Exception):
                importlib.import_module(name)


def settle() -> int:
    """Make this process cheap to fork; return how many threads it has, 1 if all is well."""
    gc.collect()
    gc.freeze()
    return threading.active_count()
