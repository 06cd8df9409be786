"""The one place that imports gguf, the library of llama.cpp."""

from __future__ import annotations

import gguf

__all__ = ["gguf"]
