"""Run an ML program in Core ML itself, on a Mac.

Facts about ``MLModel.predict`` (coremltools 9.0, coremlpython/CoreMLPythonUtils.mm): float16 inputs
are widened before the call, float16 outputs are returned as float32, integers travel as int32, and
a program with states needs a state object from ``make_state``.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from ....errors import BadInputError, UnsupportedError, WeighbridgeError
from ...captures.mlprogram.names import renamed, turned
from ...common.policy import Policy
from ...common.users_code import first_line
from ...values import Array
from ..base import Arrays, Trace, widened
from .units import planned

if TYPE_CHECKING:
    from ...captures.mlprogram.texts import Text
    from ...models import Model
    from ...models.pictures import Picture

# policy.device -> coremltools' compute units. "gpu" lets Core ML fall back to the CPU, not to the
# neural engine, whose arithmetic is float16 throughout.
UNITS: Final[Mapping[str, str]] = {
    "cpu": "CPU_ONLY",
    "gpu": "CPU_AND_GPU",
    "ane": "CPU_AND_NE",
    "all": "ALL",
}


def image_of(picture: Picture, numbers: Array) -> Any:
    """Return what ``predict`` takes for a PICTURE with these NUMBERS, of one row: an image of PIL."""
    from PIL import Image

    planes = numbers[0].astype(np.uint8)
    planes = planes[::-1] if picture.layout == "BGR" else planes
    return Image.fromarray(planes[0] if len(planes) == 1 else np.moveaxis(planes, 0, -1))


def feed(array: Array) -> Array:
    """Return ARRAY in a dtype that ``predict`` takes: int32 for integers, float32 for floats.

    >>> feed(np.arange(2)).dtype, feed(np.ones(2, np.float16)).dtype
    (dtype('int32'), dtype('float32'))
    """
    kind = np.float32 if array.dtype.kind == "f" else np.int32
    return np.ascontiguousarray(array, dtype=kind)


class CoremlRunner:
    """An ML program in Core ML; see ``converters.runtimes.base.Runner``."""

    runtime = "coreml"
    text: Text | None = None
    single: Any = None  # the function for one token, where the package has one
    plan: str = ""  # what runs where
    names: Mapping[str, str] = MappingProxyType({})
    manifest: Mapping[str, Any] = MappingProxyType({})
    pictures: Mapping[str, Picture] = MappingProxyType({})

    def __init__(self, model: Model, policy: Policy) -> None:
        if platform.system() != "Darwin":
            raise UnsupportedError(
                "the coreml runtime needs macOS; the reference runtime evaluates the package here"
            )
        if model.path is None or policy.device not in UNITS:
            known = ", ".join(UNITS)
            raise BadInputError(f"{model.spec} on {policy.device}: need a package, and {known}")
        from ...captures.mlprogram.names import names_of, pictures_of
        from ...captures.mlprogram.package import manifest_in, read_package
        from ...captures.mlprogram.signatures import read_signature, text_in
        from ...captures.mlprogram.toolkit import coremltools

        package = read_package(model.path)  # a damaged one is refused before Core ML compiles it
        declared = package.spec.description.metadata.userDefined
        manifest = manifest_in(declared, model.path)
        compute = str(manifest.get("compute", "as declared"))
        self.manifest, self.names = manifest, names_of(manifest)
        self.text, self.pictures = text_in(package), renamed(pictures_of(manifest), self.names)
        self.compute = "float16" if compute == "mixed" else compute
        self.signature = read_signature(model.path)
        self.version = str(coremltools.__version__)
        self.device = policy.device
        units = getattr(coremltools.ComputeUnit, UNITS[policy.device])
        load = partial(coremltools.models.MLModel, str(model.path), compute_units=units)
        self.model = load()
        self.plan = planned(self.model, units)
        self.single = (
            load(function_name=self.text.single) if self.text and self.text.single else None
        )

    @property
    def cache(self) -> str:
        """Where a text is kept between calls; empty where nothing is."""
        return "states" if self.text else ""

    def run(self, inputs: Arrays) -> dict[str, Array]:
        """Return the outputs by name, floats as float32; every row of a text has states of its own."""
        from ...captures.mlprogram.names import inward

        if self.text:
            return self.run_in_pieces(inputs)
        outputs = self.predict(inward(self.manifest, inputs))
        return renamed(outputs, turned(self.names))

    def run_in_pieces(self, inputs: Arrays, sizes: Sequence[int] = ()) -> dict[str, Array]:
        """Return the outputs of each token, read so many at a time as SIZES says, kept in states."""
        from ...captures.mlprogram.texts import read_rows

        def begin() -> Callable[[Arrays], Arrays]:
            return partial(self.predict, state=self.model.make_state())

        given = renamed(inputs, self.names)
        outputs = read_rows(cast("Text", self.text), given, begin, sizes)
        return renamed(outputs, turned(self.names))

    def predict(self, inputs: Arrays, **state: Any) -> dict[str, Array]:
        """Return the outputs of one call, floats as float32."""
        given = {name: self.fed(name, np.asarray(array)) for name, array in inputs.items()}
        one = self.text is not None and np.shape(inputs[self.text.ids])[1] == 1
        model = self.single if self.single and one else self.model
        try:
            outputs = model.predict(given, **state)
        except WeighbridgeError:
            raise
        except Exception as error:
            reason = first_line(error)
            raise BadInputError(f"Core ML cannot run on this input: {reason}") from error
        arrays = {n: it for n, it in outputs.items() if isinstance(it, np.ndarray)}  # no labels
        return widened(arrays)

    def fed(self, name: str, array: Array) -> Any:
        """Return ARRAY as ``predict`` takes it for its input NAME."""
        picture = self.pictures.get(name)
        return feed(array) if picture is None else image_of(picture, array)

    def trace(self, inputs: Arrays, corrections: Arrays | None = None) -> Trace:
        """Run without sites: Core ML shows nothing of its inside; corrections are refused.

        Raises:
            UnsupportedError: corrections were given.
        """
        if corrections:
            raise UnsupportedError("Core ML cannot be corrected inside; use the reference runtime")
        return Trace(self.run(inputs))

    def describe(self) -> dict[str, str]:
        """Return runtime, versions, device and compute units, for the verdict."""
        return {
            "runtime": self.runtime,
            "version": f"macOS {platform.mac_ver()[0]}, coremltools {self.version}",
            "device": self.device,
            "dtype": self.compute,
            "accumulate": "unknown",
            "units": UNITS[self.device],
            **({"plan": self.plan} if self.plan else {}),
        }
