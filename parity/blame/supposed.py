"""A module of the source, run on what it got with one thing in it another: does that give what was found?

What no recorded value explains is looked for here: experts taken for one another, an activation inside
of a loop, a scale of scores that are nobody's output.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, Final

import torch
from torch import nn

from ...converters.common.memory import pass_on_shortage
from ...converters.models import Signature
from ...converters.runtimes.torch import Recorder, call
from ...converters.values import Array
from ..probes.probes import Probe
from ..reference.float64 import TrueFloat64, constants_of, default_float64
from ..reference.reference import feed
from .evidence import INPUT, WHOLE_MODEL, Observation, norm
from .variants import Calling, Number, arguments, below, functions, numbers, variants

REPRODUCED: Final = 1e-9
READ: Final = 4_000_000_000  # weights that are read in all, each as often as it is
RUNS: Final = 200  # of one module
STEPS: Final = 6  # of Gauss and Newton
STEP: Final = 1e-4  # of a factor, from whose effect its slope is taken
Found = tuple[str, str, str]  # site, kind and evidence of a fault


@dataclass
class Rerun:
    """A module of the source, and what it got in a run of the reference.

    Attributes:
        site: its path.
        module: in float64.
        args: what it got in order.
        kwargs: what it got by name.
        corrections: the reference's own, for those submodules that the candidate has too.
        storage: of the reference's weights.
        called: functions of torch that it has called.
    """

    site: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    corrections: Mapping[str, Array]
    storage: str
    called: set[Any] = field(default_factory=set)

    def sites(self) -> dict[str, Array]:
        """Return what it and its submodules compute."""
        recorder = Recorder(self.corrections)
        with contextlib.ExitStack() as stack:
            for name, part in self.module.named_modules():
                path = below(self.site, name)
                for handle in recorder.hooks(path, part) if path else ():
                    stack.callback(handle.remove)
            stack.enter_context(in_float64(self.storage))
            self.module(*self.args, **self.kwargs)
        return recorder.sites

    def at(self, site: str, block: contextlib.AbstractContextManager[Any]) -> Array | None:
        """Return what is computed at SITE within BLOCK; ``None`` where that does not run, or not there."""
        try:
            with block:
                return self.sites().get(site)
        except Exception as error:  # whatever a module raises that is not as it was made
            pass_on_shortage(error)
            return None

    def note(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Note that FUNCTION is called."""
        self.called.add(function)
        return function, args, kwargs


@contextlib.contextmanager
def in_float64(storage: str) -> Iterator[None]:
    """Run as the reference did; that no other dtype takes part was proved there."""
    with torch.no_grad(), default_float64(), TrueFloat64(), constants_of(storage):
        yield


@dataclass
class Suppositions:
    """Looks for what could be another thing in the source, so that it computes what was found.

    Attributes:
        module: the source in float64.
        signature: of its inputs and outputs.
        storage: of its weights.
        left: how many weights may still be read.
        held: words that held at a site, which are tried first at the next.
    """

    module: nn.Module
    signature: Signature
    storage: str
    left: int = READ
    held: list[str] = field(default_factory=list)

    def explain(self, it: Observation, probe: Probe, known: Collection[str]) -> Found | None:
        """Return what is at fault where IT is, if one thing in the source makes it compute that.

        Args:
            it: an observation on PROBE.
            probe: what was run.
            known: the sites that the candidate was corrected at.
        """
        known = {*known} - {it.site}
        for scope in scopes(it.site, known):
            rerun = self._rerun(scope, it, probe, known)
            if rerun and (found := self._searched(rerun, it, known)):
                return found
        return None

    def _rerun(
        self, scope: str, it: Observation, probe: Probe, known: Collection[str]
    ) -> Rerun | None:
        """Return the module SCOPE with what it got, if run again it computes what the reference has."""
        part = self.module.get_submodule(scope)
        calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        handle = part.register_forward_pre_hook(
            lambda _, args, kwargs: calls.append((args, kwargs)), with_kwargs=True
        )
        names = tuple(port.name for port in self.signature.outputs)
        with in_float64(self.storage):
            call(self.module, feed(self.signature, probe, "float64"), names)
        handle.remove()
        if not calls:
            return None
        fixed = {site: it.recording[site] for site in known if site in it.recording}
        rerun = Rerun(scope, part, *calls[0], fixed, self.storage)
        again = rerun.at(it.site, Calling(rerun.note))
        same = again is not None and again.shape == it.wanted.shape
        return rerun if same and norm(again - it.wanted) <= REPRODUCED * norm(it.wanted) else None

    def _searched(self, rerun: Rerun, it: Observation, known: Collection[str]) -> Found | None:
        size = max(sum(it.numel() for it in rerun.module.parameters()), 1)
        about = rerun.site, rerun.module, known
        for number in numbers(*about):
            if found := fitted(number, rerun, it):
                return found
        tried = chain(
            variants(*about),
            arguments(rerun.site, rerun.kwargs),
            functions(rerun.site, rerun.called),
        )
        first = sorted(tried, key=lambda one: one.words not in self.held)
        for one in islice(first, min(RUNS, self.left // size)):
            self.left -= size
            if accounts(it, rerun.at(it.site, one.put())):
                self.held.append(one.words)
                return named(one.site), one.kind, f"as if {one.words} in {named(one.site)}"
        return None


def scopes(site: str, known: Collection[str]) -> list[str]:
    """Return the modules one of which errs if SITE does, all else being right at the sites KNOWN.

    >>> scopes("attn.out|in", []), scopes("attn.out", ["attn.out|in"]), scopes("attn.out", [])
    (['attn'], ['attn.out'], ['attn', 'attn.out'])
    """
    module = site.removesuffix(INPUT)
    around = [module.rpartition(".")[0]] if site != module or site + INPUT not in known else []
    found = around if site != module else [*around, module]
    return [it for it in found if "@" not in it]


def accounts(it: Observation, proposed: Array | None) -> bool:
    """Say whether PROPOSED, in place of what the reference has, accounts for what was found."""
    if proposed is None or proposed.shape != it.wanted.shape:
        return False
    return it.accounts(*it.pair, it.rows(proposed))


def fitted(number: Number, rerun: Rerun, it: Observation) -> Found | None:
    """Return the fault of NUMBER being another, if with one it gives what IT found."""
    found, wanted = it.pair
    factor, now, held = 1.0, wanted, False
    for _ in range(STEPS):
        moved = rerun.at(it.site, number.put(factor + STEP * factor))
        slope = (it.rows(moved) - now) / (STEP * factor) if moved is not None else now * 0
        if not norm(slope) > REPRODUCED * norm(wanted):
            return None
        factor += float((slope * (found - now)).sum() / norm(slope) ** 2)
        proposed = rerun.at(it.site, number.put(factor))
        if proposed is None or norm(found - it.rows(proposed)) >= norm(found - now):
            break
        now, held = it.rows(proposed), accounts(it, proposed)
    site = named(number.site)
    words = f"as if {number.words} were {factor:.4g} times that in {site}"
    return (site, number.kind, words) if held else None


def named(site: str) -> str:
    """Return what SITE is called where it is at fault."""
    return site or WHOLE_MODEL
