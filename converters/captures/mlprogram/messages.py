"""The messages that a package is made of, without the rest of coremltools.

Importing coremltools imports torch and whatever else it finds, which takes seconds; its
protobuf modules need none of it. They are loaded under a name of ours, and protobuf gives both names
the same classes, so that coremltools, if it is imported later, takes what was read here.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any, Final

_OURS: Final = f"{__name__}.proto"


def _load(name: str) -> Any:
    """Return the protobuf module NAME of coremltools."""
    if _OURS not in sys.modules:
        found = importlib.util.find_spec("coremltools")
        if found is None or not found.submodule_search_locations:
            raise ModuleNotFoundError("No module named 'coremltools'", name="coremltools")
        package = ModuleType(_OURS)
        package.__path__ = [f"{place}/proto" for place in found.submodule_search_locations]
        sys.modules[_OURS] = package
    return importlib.import_module(f"{_OURS}.{name}")


Model_pb2, MIL_pb2 = _load("Model_pb2"), _load("MIL_pb2")
