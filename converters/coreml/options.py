"""What an exported package is to be, beyond its precision and its sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# iOS 17 and macOS 14 decompose attention into matmul and softmax, whose masks are additive and
# finite; the fused operation of iOS 18 leaves open what a row without any key becomes.
TARGET: Final = "iOS17"
WITH_STATES: Final = "iOS18"  # the first that keeps anything between calls


@dataclass(frozen=True)
class PackageOptions:
    """Choices for a package.

    Attributes:
        stateful: the keys and values of a causal language model are states, and it goes on with a text.
    """

    stateful: bool = False

    @property
    def oldest(self) -> str:
        """The oldest system that the package is for, as coremltools calls it."""
        return WITH_STATES if self.stateful else TARGET
