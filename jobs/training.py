"""Train and preflight, from a configuration to a run folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass
