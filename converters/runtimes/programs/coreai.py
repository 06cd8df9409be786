"""Run a Core AI asset in Core AI's own runtime, in a process of its own."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from copy import copy
from importlib import metadata
from itertools import count
from typing import Any, cast

from ....errors import BadInputError, UnsupportedError
from ...captures.mlprogram.texts import Call, Text, each_row, read_rows, stacked, text_of
from ...checkpoints.formats.coreai.asset import Asset
from ...common.policy import Policy
from ...models import Model
from ...models.program_files import recorded
from ...values import Array
from ..base import Arrays, Trace, widened


class CoreaiRunner:
    """A Core AI asset in Apple's runtime; see ``converters.runtimes.base.Runner``."""

    runtime = "coreai"
    kind = "graph"  # it may lack modules that return several values

    def __init__(self, model: Model, policy: Policy) -> None:
        if not isinstance(model.tensors, Asset):
            raise BadInputError(f"{model.spec} is no Core AI asset; export it first")
        if policy.device != "cpu":
            raise UnsupportedError(f"Core AI runs on the cpu here, not on {policy.device}")
        self.signature = model.signature
        self._asset = model.tensors
        self._wide = False
        self._exact: dict[int, Array] = {}
        record = recorded(model.tensors)
        self.text = text_of(record)
        self.cache = "states" if self.text else ""
        sites = record.get("sites")
        self._sites: dict[str, int] = dict(sites) if isinstance(sites, dict) else {}

    def shadow(self, exact: Arrays | None = None) -> CoreaiRunner:
        """Return the same program with all of it computed in float32, which shows its structure.

        EXACT are constants, by name, that stand in for the asset's own, as they were before rounding.
        """
        other, numbers = copy(self), self._asset.numbers
        other._wide = True
        other._exact = {numbers[name]: array for name, array in (exact or {}).items()}
        return other

    @property
    def _how(self) -> dict[str, Any]:
        """How the process is to run the program."""
        return {"wide": self._wide, "exact": self._exact}

    def run(self, inputs: Arrays) -> dict[str, Array]:
        """Return the outputs by name, floats as float32; every row of a text has states of its own."""
        if self.text:
            return self.run_in_pieces(inputs)
        found: dict[str, Array] = self._asset.process.ask("run", dict(inputs), **self._how)
        return widened(found)

    def run_in_pieces(self, inputs: Arrays, sizes: Sequence[int] = ()) -> dict[str, Array]:
        """Return the outputs of each token, read so many at a time as SIZES says, kept in states."""

        def begin() -> Call:
            calls = count()
            return lambda part: self._asset.process.ask(
                "run", dict(part), **self._how, on=next(calls) > 0
            )

        return widened(read_rows(cast("Text", self.text), inputs, begin, sizes))

    def trace(self, inputs: Arrays, corrections: Arrays | None = None) -> Trace:
        """Run and record every submodule whose place the asset's record says; ours do.

        The program is written again, with these values among its outputs and the corrections of
        those that fit among its inputs. One with states reads every row at once, on its own.
        """
        given = corrections or {}
        rows = each_row(self.text, inputs, given) if self.text else [(inputs, given)]
        outputs, sites = map(stacked, zip(*(self._traced(*row) for row in rows), strict=True))
        return Trace(widened(outputs), widened(sites))

    def _traced(self, inputs: Arrays, corrections: Arrays) -> tuple[Arrays, Arrays]:
        """Return the outputs and what every submodule computes, in one call."""
        asked = (dict(inputs), sorted(set(self._sites.values())))
        outputs, values = self._asset.process.ask("watched", *asked, {}, **self._how)
        known = {self._sites[site]: it for site, it in corrections.items() if site in self._sites}
        if given := {at: it for at, it in known.items() if it.shape == values[at].shape}:
            outputs, values = self._asset.process.ask("watched", *asked, given, **self._how)
        return outputs, {site: values[at] for site, at in self._sites.items()}

    def describe(self) -> dict[str, str]:
        """Return runtime, version, device, dtype and accumulation, for the verdict."""
        dtype = "float16" if self._asset.narrow and not self._wide else "float32"
        return {
            "runtime": self.runtime,
            "version": f"coreai-core {metadata.version('coreai-core')} (a beta) on {platform.system()}",
            "device": "cpu",
            "dtype": dtype,
            "accumulate": dtype,  # its sums in float16 are rounded at every step
        }
