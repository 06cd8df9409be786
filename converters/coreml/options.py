"""What an exported package is to be, beyond its precision and its sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from ...errors import BadInputError
from ..captures.mlprogram.names import ABOUT
from ..models.pictures import Picture
from ..models.signature import Port, Signature

TARGETS: Final = ("iOS15", "iOS16", "iOS17", "iOS18", "iOS26")
# iOS 17 and macOS 14 decompose attention into matmul and softmax, whose masks are additive and
# finite; the fused operation of iOS 18 leaves open what a row without any key becomes.
TARGET: Final = "iOS17"
SEVERAL: Final = "iOS18"  # the first with states, and with lists of sizes for more than one input
# Ours -> Swift's names (MLComputeUnits). A package does not hold them: whoever loads it chooses.
UNITS: Final[Mapping[str, str]] = {
    "cpu": "cpuOnly",
    "gpu": "cpuAndGPU",
    "ane": "cpuAndNeuralEngine",
    "all": "all",
}


@dataclass(frozen=True)
class PackageOptions:
    """Choices for a package.

    Attributes:
        stateful: the keys and values of a causal language model are states, and it goes on with a text.
        multifunction: so, with a second function for one token alone, of a fixed size.
        system: the oldest system that it is for, one of ``TARGETS``; by default as old as it can be.
        names: the model's name of an input or output -> that in the package.
        sizes: dimension -> the only sizes it may have, in place of a range.
        about: author, description, license and release, for whoever opens the package.
        units: where it should run, one of ``UNITS``, as a note for whoever loads it.
        images: the inputs that are pictures, and what the program does to these first.
        labels: names of the classes that the model scores; none for scores alone.
        labelled: where the labels were taken from.
        folded: the sum of a weight and a number is a constant, as coremltools itself has it.
    """

    stateful: bool = False
    multifunction: bool = False
    system: str | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    about: Mapping[str, str] = field(default_factory=dict)
    units: str | None = None
    images: Mapping[str, Picture] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    labelled: str | None = None
    folded: bool = False

    @property
    def oldest(self) -> str:
        """The oldest system that the package is for, as coremltools calls it."""
        return self.system or (SEVERAL if self.stateful or self.enumerated else TARGET)

    @property
    def enumerated(self) -> bool:
        """Whether a dimension has several sizes, and no others."""
        return any(len(sizes) > 1 for sizes in self.sizes.values())

    def sized(self, signature: Signature, upper: Mapping[str, int]) -> Signature:
        """Return SIGNATURE at the largest size of each list, as a check runs it, UPPER the bounds."""
        made = with_sizes(signature, {name: max(sizes) for name, sizes in self.sizes.items()})
        inputs = (
            replace(it, upper=tuple({**dict(it.upper), **upper}.items())) for it in made.inputs
        )
        return replace(made, inputs=tuple(inputs))

    def require(self, compute: str) -> None:
        """Refuse what does not go together, or with COMPUTE.

        Raises:
            BadInputError: all of it, in one line.
        """
        if problems := [*self.problems(compute)]:
            raise BadInputError("; ".join(problems))

    def problems(self, compute: str) -> Iterator[str]:
        """Yield what does not go together, or with COMPUTE."""
        if self.stateful and compute == "float32":
            yield "Core ML keeps states in float16: --stateful goes with mixed or float16"
        if self.multifunction and not self.stateful:
            yield "two functions share keys and values: --multifunction goes with --stateful"
        if self.stateful and self.sizes:
            yield "a stateful package reads any number of tokens: leave --sizes out, --upper says how many"
        if self.oldest not in TARGETS:
            yield f"there is no system {self.oldest}; choose from {', '.join(TARGETS)}"
        elif self.stateful and TARGETS.index(self.oldest) < TARGETS.index(SEVERAL):
            yield f"{self.oldest} has no states: --stateful needs {SEVERAL} or later"
        if self.units not in (None, *UNITS):
            yield f"there are no units {self.units}; choose from {', '.join(UNITS)}"
        if strange := sorted(self.about.keys() - ABOUT.keys()):
            yield f"a package says nothing of {', '.join(strange)}; it does of {', '.join(ABOUT)}"
        yield from (
            f"{name} is no name for an input or output: letters, digits and _"
            for name in self.names.values()
            if not name.isidentifier()
        )
        yield from (
            f"sizes of {name} should be positive and differ"
            for name, sizes in self.sizes.items()
            if not sizes or min(sizes) < 1 or len({*sizes}) < len(sizes)
        )


def with_sizes(signature: Signature, sizes: Mapping[str, int]) -> Signature:
    """Return SIGNATURE with SIZES in place of the dimensions that they are of."""

    def fixed(port: Port) -> Port:
        shape = (sizes.get(size, size) if isinstance(size, str) else size for size in port.shape)
        return replace(port, shape=tuple(shape))

    inputs, outputs = (tuple(map(fixed, it)) for it in (signature.inputs, signature.outputs))
    return Signature(inputs, outputs)
