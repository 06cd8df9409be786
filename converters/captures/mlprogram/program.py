"""An ML program made runnable on any operating system, for reference: not by Apple's runtime."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ....errors import BadInputError, UnsupportedError
from ...common.hints import counted
from ...values import Array
from .evaluator import (
    KERNELS,
    KNOWN,
    Evaluation,
    Observer,
    dtype_name,
    held,
    numpy_name,
    released,
    settle,
)
from .features import Feature, check_inputs, fits, flexible
from .kernels.constexpr import CONSTEXPR
from .names import names_of, problems_of_labels, results
from .package import (
    Package,
    census,
    description,
    function_block,
    functions,
    manifest_in,
    operations,
    read_package,
)
from .signatures import text_in
from .texts import Text, text_of
from .toolkit import load_mil, quiet, types
from .variables import beside, every_constant, is_weight, of_function, scalars, variables, weights

State = dict[str, Tensor]
# What coremltools puts behind the name of a constant that it compresses, in its optimize/coreml passes.
COMPRESSED: Final = re.compile(r"(_(quantized|palettized|palettized_pcs|sparsified))+$")


# What makes no numbers of its own.
UNCOUNTED: Final = frozenset({"const", "cast", *CONSTEXPR})


class NonFinite(NamedTuple):
    """Where infinities or NaN first appear, from inputs that have none.

    Attributes:
        name: the output of the operation.
        operation: its type.
        nans: how many NaN its output holds.
        infinities: how many infinities.
    """

    name: str
    operation: str
    nans: int
    infinities: int


@dataclass
class Program:
    """A function of an ML program.

    Attributes:
        path: the package.
        function: name of the function.
        inputs: dtype and shape of every input.
        outputs: dtype and shape of every output.
        census: number of operations by type.
        metadata: the user-defined metadata.
        body: the function in coremltools' PyMIL.
        single: the function for one token, where the package has one: it runs where its inputs fit.
        text: how it goes on with a text; ``None`` where it keeps nothing.
        rounds: whether ``quantize`` rounds activations to codes; if not, they pass as they are.
    """

    path: Path
    function: str
    inputs: dict[str, Feature]
    outputs: dict[str, Feature]
    census: Counter[str]
    metadata: dict[str, str]
    body: Any = field(repr=False)
    single: Program | None = None
    text: Text | None = None
    rounds: bool = True
    _constants: dict[Any, Any] = field(default_factory=dict, repr=False)

    @property
    def manifest(self) -> dict[str, Any]:
        """What Weighbridge wrote into the package when it exported it, empty for others."""
        return under_new_names(manifest_in(self.metadata, self.path), [*self.compressed()])

    @property
    def compute(self) -> str:
        """``float16`` where a weight or a result is, else ``float32``."""
        weights = filter(is_weight, every_constant(self.body).values())
        found = variables(self.body).values()
        results = (it for it in found if it.op.op_type not in UNCOUNTED)
        half = any(dtype_name(it) == "fp16" for it in chain(weights, results))
        return "float16" if half else "float32"

    def contradictions(self) -> list[str]:
        """Return where what the manifest says of the program is not so."""
        made = self.manifest
        found = [f"{name} ends nothing" for name in made.get("sites", ()) if name not in self.names]
        compute = made.get("compute")
        if compute not in (None, "mixed", self.compute):  # mixed may keep all of it in float32
            found.append(f"it is said to compute in {compute}, and does in {self.compute}")
        text, names = text_of(made), names_of(made)
        if text and text.single and self.single is None:
            found.append(f"it is said to have the function {text.single}, and has not")
        for side in ("inputs", "outputs"):
            ports = made.get("signature", {}).get(side, ())
            named = {names.get(port["name"], port["name"]) for port in ports}
            there = set(getattr(self, side))
            named |= {text.position} if text and side == "inputs" else set()
            if ports and named != there:
                found.append(f"its {side} are said to be {sorted(named)}, and are {sorted(there)}")
        if isinstance(labels := made.get("labels"), Mapping):
            scores = str(labels.get("scores"))
            found += problems_of_labels(self.body, names.get(scores, scores))
        return found

    @property
    def names(self) -> frozenset[str]:
        """Names of the variables that its operations make."""
        return frozenset(variables(self.body))

    def constants(self) -> dict[str, Array]:
        """Return every weight by name: arrays of floats, compressed ones expanded, never widened.

        What only ``single`` has is named behind it.
        """
        return {**weights(self.body), **self._of_single(weights)}

    def compressed(self) -> dict[str, Any]:
        """Return the weights that are made of codes, variables by name."""
        return {
            name: variable
            for name, variable in every_constant(self.body).items()
            if variable.op.op_type in CONSTEXPR and is_weight(variable)
        }

    def scalars(self) -> dict[str, Array]:
        """Return every floating-point constant without axes by name, as declared."""
        return {**scalars(self.body), **self._of_single(scalars)}

    def _of_single(self, read: Callable[[Any], dict[str, Array]]) -> dict[str, Array]:
        if self.single is None:
            return {}
        return beside(read(self.body), read(self.single.body), self.single.function)

    def with_constants(self, exact: Mapping[str, Array]) -> Program:
        """Return the same program with EXACT constants in place of its own, by name."""
        own, single = every_constant(self.body), self.single
        if single is not None:
            ours = of_function(exact, self.body, single.body, single.function)
            single = single.with_constants(ours)
        known = {
            own[name]: held(array) for name, array in exact.items() if single is None or name in own
        }
        return replace(self, single=single, _constants=known)

    @property
    def rounds_activations(self) -> bool:
        """Whether it rounds what its operations read to codes of 8 bits."""
        return bool(self.census["quantize"]) and self.rounds

    def unrounded(self) -> Program:
        """Return the same program whose activations pass ``quantize`` as they are."""
        single = self.single and self.single.unrounded()
        return replace(self, rounds=False, single=single)

    def new_state(self) -> State:
        """Return the states at their beginning, zeros; empty for a program without states."""
        variables = self.body.inputs.items()
        return {
            name: held(np.zeros([int(size) for size in variable.shape], numpy_name(variable)))
            for name, variable in variables
            if types.is_state(variable.sym_type)
        }

    def run(
        self,
        inputs: Mapping[str, Array],
        precision: str = "declared",
        state: State | None = None,
        observe: Observer | None = None,
    ) -> dict[str, Array]:
        """Return the outputs by name, in the dtypes that the program declares.

        Args:
            inputs: arrays by name; they are rounded to the declared dtypes.
            precision: ``declared`` computes in float32 and rounds every result to its declared
                dtype; ``float32`` does not round floats at all, a shadow of a float16 program.
            state: read and written in place; ``None`` starts from zero.
            observe: sees every operation, its variable and its value.

        Raises:
            MismatchError: inputs that do not fit.
            BadInputError: inputs on which an operation fails, such as an index out of range.
        """
        chosen = self.single if self.single and fits(self.single.inputs, inputs) else self
        return chosen._evaluate(inputs, precision, observe, state)

    def trace(
        self,
        inputs: Mapping[str, Array],
        precision: str = "declared",
        corrections: Mapping[str, Array] | None = None,
        sites: Mapping[str, Sequence[str]] | None = None,
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Run and record the output of operations; of one in a loop the last is kept.

        Args:
            inputs: as in ``run``.
            precision: as in ``run``.
            corrections: values by site, each put in place of what the site computed.
            sites: what ends at an operation's output, innermost first; by default every operation
                is a site, named by its output.

        Returns:
            The outputs, and the value of every site before its own correction.
        """
        recorded: dict[str, Array] = {}
        given = corrections or {}

        def observe(_: Any, variable: Any, value: Tensor) -> Tensor:
            names = (variable.name,) if sites is None else sites.get(variable.name, ())
            for name in names:
                recorded[name] = released(value, result_dtype(variable, precision))
                if name in given:
                    value = settle(held(given[name]), dtype_name(variable), precision)
            return value

        return self._evaluate(inputs, precision, observe, None), recorded

    def first_nonfinite(
        self, inputs: Mapping[str, Array], precision: str = "declared"
    ) -> NonFinite | None:
        """Return the first operation that makes NaN or infinities of inputs that have none."""
        found: list[NonFinite] = []
        tainted: set[Any] = set()  # variables that hold NaN or infinities

        def observe(operation: Any, variable: Any, value: Tensor) -> None:
            nans, infinities = int(value.isnan().sum()), int(value.isinf().sum())
            if nans or infinities:
                tainted.add(variable)
                if not found and not any(source in tainted for source in operation.inputs.values()):
                    kind = operation.op_type
                    found.append(NonFinite(variable.name, kind, nans, infinities))

        self._evaluate(inputs, precision, observe, None)
        return found[0] if found else None

    def _evaluate(
        self,
        inputs: Mapping[str, Array],
        precision: str,
        observe: Observer | None,
        state: State | None,
    ) -> dict[str, Array]:
        check_inputs(self.inputs, inputs)
        states = self.new_state() if state is None else state
        evaluation = Evaluation(self._constants, states, precision, observe, rounds=self.rounds)
        for name in self.inputs:
            variable = self.body.inputs[name]
            value = held(np.asarray(inputs[name]))
            evaluation.values[variable] = settle(value, dtype_name(variable), precision)
        with torch.no_grad():
            values = evaluation.block(self.body)
        pairs = zip(results(self.body), values, strict=True)
        return {v.name: released(x, result_dtype(v, precision)) for v, x in pairs}


def under_new_names(manifest: dict[str, Any], compressed: Sequence[str]) -> dict[str, Any]:
    """Return MANIFEST with the constants that were COMPRESSED afterwards under the names they then got.

    coremltools puts what it did behind a name; the hash of what was compressed is no longer its own.

    >>> under_new_names({"weights": {"w": {"key": "a", "xxh3": "1"}}}, ["w_quantized"])
    {'weights': {'w_quantized': {'key': 'a'}}}
    """
    renamed = {COMPRESSED.sub("", name): name for name in compressed}
    return manifest | {
        part: {
            renamed.get(name, name): {k: v for k, v in entry.items() if k != "xxh3"}
            if name in renamed
            else entry
            for name, entry in manifest[part].items()
        }
        for part in ("weights", "made")
        if isinstance(manifest.get(part), dict)
    }


def result_dtype(variable: Any, precision: str) -> str:
    """Return the numpy name of the dtype in which VARIABLE is given out."""
    name = numpy_name(variable)
    return "float32" if name == "float16" and precision == "float32" else name


def load_bodies(package: Package) -> Mapping[str, Any]:
    """Return the functions of PACKAGE in coremltools' PyMIL.

    Raises:
        UnsupportedError: coremltools' own loader does not read it.
    """
    try:
        with quiet():
            loaded = load_mil(package.spec, package.spec.specificationVersion, str(package.weights))
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UnsupportedError(
            f"{package.path}: coremltools cannot load this program: {reason}"
        ) from error
    return dict(loaded.functions)


def check_operations(package: Package, function: str) -> Counter[str]:
    """Return the census of FUNCTION, or refuse it with all operations that are not known."""
    unknown: Counter[str] = Counter()
    for operation in operations(function_block(package, function)):
        kind = operation.type
        if kind not in KNOWN:
            unknown[kind] += 1
        elif kind in KERNELS:
            strange = set(operation.inputs) - KERNELS[kind].inputs
            unknown.update(f"{kind} with {name}" for name in strange)
    if unknown:
        listed = ", ".join(f"{kind} ({count})" for kind, count in sorted(unknown.items()))
        raise UnsupportedError(
            f"{package.path}: {counted(unknown.total(), 'operation')} cannot be evaluated here: {listed};"
            " run the package on a Mac with the coreml runtime"
        )
    return census(package, function)


def features(package: Package, function: str, body: Any) -> tuple[dict[str, Feature], ...]:
    """Return inputs and outputs of FUNCTION, states left out."""
    declared = {
        port.name: port.type.multiArrayType for port in description(package, function).input
    }

    def feature(variable: Any) -> Feature:
        shape = tuple(int(s) if isinstance(s, int | np.integer) else "?" for s in variable.shape)
        flexibility = declared.get(variable.name)
        shape = flexible(flexibility, shape) if flexibility else shape
        return Feature(numpy_name(variable), shape)

    inputs = {k: feature(v) for k, v in body.inputs.items() if not types.is_state(v.sym_type)}
    return inputs, {variable.name: feature(variable) for variable in results(body)}


def load_program(path: Path, function: str | None = None) -> Program:
    """Open the ``.mlpackage`` at PATH on any operating system.

    Args:
        path: the package.
        function: which function of a multifunction package; ``None`` takes the default one.

    Raises:
        BadInputError: not a package, a damaged one, or one without FUNCTION.
        UnsupportedError: not an ML program, or operations that cannot be evaluated (all of them
            are listed, with counts).
    """
    package = read_package(path)
    names = functions(package)
    chosen = function or names[0]
    if chosen not in names:
        raise BadInputError(f"{path}: no function {chosen}; there are {', '.join(names)}")
    metadata = dict(package.spec.description.metadata.userDefined)
    text = None if function else text_in(package)
    wanted = [text.single] if text and text.single in names else []
    counts = {name: check_operations(package, name) for name in (*wanted, chosen)}
    bodies = load_bodies(package)

    def loaded(name: str, single: Program | None = None) -> Program:
        inputs, outputs = features(package, name, bodies[name])
        return Program(path, name, inputs, outputs, counts[name], metadata, bodies[name], single)

    return replace(loaded(chosen, *map(loaded, wanted)), text=text)
