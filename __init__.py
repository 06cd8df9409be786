"""Move models between PyTorch, MLX and Core ML, and prove that nothing was lost on the way."""

import importlib
from typing import Any

__version__ = "0.1.0"
# Module -> public names in it, imported at their first use: importing weighbridge imports no framework.
_PUBLIC = {
    ".converters.planning.opening": "open",
    ".converters.runtimes.native.runner": "mlx_model",
    ".jobs.api": "convert convert_adapter merge quantize check record export capture inspect Options Outcome",
    ".converters.captures.extending": "from_exported register_op",
    ".converters.captures.torch_to_mlx": "Generator",
    ".jobs.training.api": "train",
    ".parity.check.live": "assert_parity",
    ".converters.models": "Signature",
    ".parity.check.verdict": "Verdict",
    ".converters.maps": "WeightMap",
    ".errors": "WeighbridgeError BadInputError DivergedError MapSyntaxError MismatchError"
    " StoppedElsewhereError TargetExistsError TooLittleMemoryError UnsupportedError UntrustedError UsersCodeError",
}
_HOME = {name: module for module, names in _PUBLIC.items() for name in names.split()}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name], __name__), name)
