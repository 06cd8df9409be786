"""Prove a learned map: the text as it was parsed, against the trace of the class.

Names, shapes and dtypes must come out as in the trace. Values are compared on random bytes: the
targets with a replay of the trace, and the way back with what went in. Where a value changes by an
addition, the way back rounds; there, what comes from the target's side must come back to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ....errors import MismatchError, UnsupportedError, WeighbridgeError
from ...checkpoints.base import Header
from ...common.dtypes import CODE, NUMPY, dtype_of
from ...values import Array
from ..binding.actions import dense
from ..binding.plan import Plan, Step
from ..binding.weightmap import WeightMap
from ..execution.exchange import BYTES_IN_MLX, to_mlx, to_numpy
from ..notation.names import match, parse_name
from ..notation.rules import Pairing, Tie, first_line
from ..programs.computed import Computed
from .rules.folding import renamed
from .rules.programming import stacked
from .rules.steps import program
from .trace.recording import Trace
from .trace.shrinking import Excerpt

ALL_BELOW: Final = 64 << 20  # bytes of a model whose every instance is compared
MOST_BYTES: Final = 64 << 20  # bytes of one instance; a larger one is not compared
MOST_COMPUTED: Final = 1 << 20  # bytes of one instance that a program computes with
SEED: Final = 20


@dataclass(frozen=True)
class Proof:
    """What a proof needs to know.

    Attributes:
        weight_map: parsed from the text that is proved.
        trace: of the class.
        config: of the model.
    """

    weight_map: WeightMap
    trace: Trace
    config: Mapping[str, Any]

    def run(self) -> list[str]:
        """Prove the map; return notes on what was not compared.

        Raises:
            UnsupportedError: something differs; names the rule.
        """
        plan = self.bound()
        notes = []
        for step in self.chosen(plan):
            if step.rule.renames_only:
                self.renames(step)
            elif note := self.compare(step):
                notes.append(note)
        return notes

    def bound(self) -> Plan:
        """Return the plan for the tensors of the trace; it must make the layout of the trace."""
        try:
            plan = self.weight_map.bind(self.trace.headers, config=self.config)
        except MismatchError as error:
            raise UnsupportedError(_first("the learned map does not fit", error.problems)) from None
        copied = {str(rule.alias) for rule in self.weight_map.rules if isinstance(rule, Tie)}
        made = {name: plain(header) for name, header in plan.layout.items()}
        wanted = {name: plain(h) for name, h in self.trace.layout.items() if name not in copied}
        if made != wanted:
            problems = sorted(
                f"{name}: the map makes {made.get(name)}, the class {wanted.get(name)}"
                for name in made.keys() | wanted.keys()
                if made.get(name) != wanted.get(name)
            )
            raise UnsupportedError(_first("the learned map makes another layout", problems))
        return plan

    def chosen(self, plan: Plan) -> Iterator[Step]:
        """Yield the steps to compare: all of a small model, else the first of each rule."""
        small = sum(header.nbytes for header in plan.headers.values()) < ALL_BELOW
        seen = set()
        for step in plan.steps:
            if small or step.rule.renames_only or id(step.rule) not in seen:
                seen.add(id(step.rule))
                yield step

    def renames(self, step: Step) -> None:
        """Check that a tensor that is only renamed is the same array in the trace."""
        [source], [target] = step.source_names, step.target_names
        if self.trace.outputs[target] != self.trace.inputs[source]:
            excerpt = Excerpt(self.trace, [target])
            if excerpt.sources != (source,):
                raise UnsupportedError(_failed(step, _made_of(excerpt)))
            self.values(step, excerpt)

    def compare(self, step: Step) -> str:
        """Compare the values of STEP, on smaller tensors where it is large; return a note."""
        computes = isinstance(step.rule, Computed)
        excerpt = Excerpt(self.trace, step.target_names, shrink=not computes)
        if set(excerpt.sources) != set(step.source_names):
            raise UnsupportedError(_failed(step, _made_of(excerpt)))
        size = sum(header.nbytes for header in excerpt.headers.values())
        if computes:
            self.program(step)
        if size > (MOST_COMPUTED if computes else MOST_BYTES):
            return "" if computes else f"{first_line(step.rule)}: {size:,} bytes were not compared"
        self.values(step, excerpt)
        return ""

    def program(self, step: Step) -> None:
        """Check that the program of STEP is the one of the trace, for the first of a family."""
        results = [self.trace.outputs[name] for name in step.target_names]
        if step.sources[0].family:
            results = [stacked(self.trace, array)[0] for array in results]
        sources = [bound.names[0] for bound in step.sources]
        assert isinstance(step.rule, Computed)  # noqa: S101  (only these have programs)
        if program(self.trace, sources, results) != step.rule.program:
            names = ", ".join(step.target_names)
            raise UnsupportedError(_failed(step, f"the class computes {names} by other steps"))

    def values(self, step: Step, excerpt: Excerpt) -> None:
        """Compare a step with the replay of EXCERPT, and the way back with what went in."""
        forth, back = self.plans(step, excerpt.headers)
        arrays = random_arrays(excerpt.headers, finite=step.rule.affine)
        wanted = excerpt.replay({name: to_mlx(array) for name, array in arrays.items()})
        made = dense(forth, arrays)
        for name, array in wanted.items():
            if _bytes(made[name]) != _bytes(to_numpy(array)):
                raise UnsupportedError(_failed(step, f"{name} differs from what the class makes"))
        if back is not None:
            self.way_back(step, forth, back, arrays if forth.exact else made)

    def way_back(self, step: Step, forth: Step, back: Step, arrays: Mapping[str, Array]) -> None:
        """Check the way back: of sources where it is exact, else of what the targets became."""
        if forth.exact:
            again = dense(back, dense(forth, arrays))
        elif all(c.symbol == "+" for c in step.rule.affine):
            again = dense(forth, dense(back, arrays))
        else:
            return
        wrong = [name for name, array in arrays.items() if _bytes(again[name]) != _bytes(array)]
        if wrong:
            raise UnsupportedError(_failed(step, f"{wrong[0]} does not come back as it was"))

    def plans(self, step: Step, headers: Mapping[str, Header]) -> tuple[Step, Step | None]:
        """Return STEP for tensors with these HEADERS, and the step that leads back if one does."""
        rule = _concrete(step)
        one = WeightMap((rule,), self.weight_map.where, "learned")
        try:
            plan = one.bind(headers, config=self.config)
            [forth] = plan.steps
            if isinstance(rule, Computed):
                return forth, None
            [back] = one.inverse().bind(plan.layout, config=self.config, target=headers).steps
        except WeighbridgeError as error:
            raise UnsupportedError(_failed(step, " ".join(str(error).split())[:300])) from None
        return forth, back


def _concrete(step: Step) -> Pairing:
    """Return the rule of STEP with its captures filled in, but for indices."""
    rule = step.rule
    found = match(rule.left[0].name, step.source_names[0], rule.indices) or {}
    captures = {**found, **{name: f"{{{name}}}" for name in rule.indices}}
    made = renamed(rule, lambda name: parse_name(name.fill(captures)))
    assert isinstance(made, Pairing)  # noqa: S101  (only pairings have steps)
    return made


def random_arrays(headers: Mapping[str, Header], finite: Sequence[object]) -> dict[str, Array]:
    """Return random bytes for HEADERS; FINITE numbers of usual size where values change."""
    random = np.random.default_rng(SEED)
    arrays = {}
    for name, header in headers.items():
        dtype = NUMPY[header.dtype]
        if finite and dtype.kind not in "iub":
            arrays[name] = random.standard_normal(header.shape, np.float32).astype(dtype)
        else:
            raw = np.frombuffer(random.bytes(header.nbytes), dtype)
            arrays[name] = (
                (raw.view(np.uint8) % 2).view(dtype).reshape(header.shape)
                if dtype.kind == "b"
                else raw.reshape(header.shape)
            )
    return arrays


def _bytes(array: Array) -> bytes:
    return np.ascontiguousarray(array).tobytes()


def plain(header: Header) -> Header:
    """Return HEADER as MLX has it: float8 is uint8 there."""
    name = NUMPY[header.dtype].name
    return Header(CODE[dtype_of("uint8")], header.shape) if name in BYTES_IN_MLX else header


def _failed(step: Step, why: str) -> str:
    return (
        f"the proof of the learned rule `{first_line(step.rule)}` failed: {why} (a fault of"
        " Weighbridge: please report it with config.json; --map FILE.wmap takes a map of your own)"
    )


def _made_of(excerpt: Excerpt) -> str:
    sources = ", ".join(excerpt.sources) or "no tensor"
    return f"the class makes {', '.join(excerpt.targets)} of {sources}"


def _first(summary: str, problems: Sequence[str]) -> str:
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{summary}: {problems[0]}{more}"
