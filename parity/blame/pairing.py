"""Which submodule of a candidate's own class is which of the reference's, from the values of weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...converters.runtimes.base import Arrays, Runner, Trace
from ..weights.reference_index import Explanation
from .blame import holders_of
from .evidence import INPUT
from .layouts import arranged, orders_of, put_back


def _within(names: Sequence[str]) -> dict[str, frozenset[str]]:
    """Return the weights below every module, by its path."""
    found: dict[str, set[str]] = {}
    for name in names:
        for holder in holders_of(name)[1:]:
            found.setdefault(holder, set()).add(name)
    return {path: frozenset(below) for path, below in found.items()}


def _source(explanation: Explanation) -> str | None:
    """Return the reference's weight; of several with the same values, that of the same name."""
    same_name = explanation.name in explanation.also
    return explanation.name if same_name else explanation.source


def paired_sites(explanations: Sequence[Explanation]) -> dict[str, str]:
    """Return the candidate's path of a submodule -> the reference's.

    Two are the same if the weights below one are, value by value, those below the other; of several
    such, in a chain of modules that hold one another, the innermost go together, and so on outwards.

    What no candidate's weight is made of, such as a counter of batches, tells nothing of its module.

    >>> made = [("h.0.q.weight", "layers.0.wq.weight"), ("h.0.norm.weight", "layers.0.ln.weight")]
    >>> paired_sites([Explanation(one, other, "equal", "", True) for one, other in made])
    {'h.0.norm': 'layers.0.ln', 'h.0.q': 'layers.0.wq', 'h.0': 'layers.0', 'h': 'layers'}
    """
    made = (it for it in explanations if it.kind not in ("missing", "unused"))
    sources = {it.name: source for it in made if (source := _source(it))}
    ours, theirs = _within(list(sources)), _within(sorted(set(sources.values())))
    chains: dict[frozenset[str], list[str]] = {}
    for path in sorted(theirs, key=len):
        chains.setdefault(theirs[path], []).append(path)
    found: dict[str, str] = {}
    for path in sorted(ours, key=lambda path: (-path.count("."), path)):
        below = frozenset(sources[name] for name in ours[path])
        if chains.get(below):
            found[path] = chains[below].pop()
    return found


def _path(site: str) -> str:
    """Return the module of SITE, which of its calls and whether its input it is left out."""
    return site.removesuffix(INPUT).partition("@")[0]


class Paired:
    """A runner whose sites go by the reference's names, and lie as the reference's do.

    Attributes:
        runner: records sites by the paths of its own class.
        names: those of the reference, by its own.
    """

    def __init__(self, runner: Runner, names: Mapping[str, str]) -> None:
        self.runner = runner
        self.runtime = runner.runtime
        self.names = names

    def _named(self, sites: Arrays, names: Mapping[str, str]) -> Arrays:
        """Return SITES by other names of their modules, each call's and input's mark kept."""
        found = {}
        for site, array in sites.items():
            path = _path(site)
            if path in names:
                found[names[path] + site[len(path) :]] = array
        return found

    def run(self, inputs: Arrays) -> dict[str, Any]:
        """Return the outputs by port name."""
        return self.runner.run(inputs)

    def trace(self, inputs: Arrays, corrections: Arrays | None = None) -> Trace:
        """Run and record; a site that no order of axes makes its correction's is another thing, and left out.

        How the axes lie is seen in a run of its own, without corrections.
        """
        fixed = dict(corrections or {})
        plain = self.runner.trace(inputs)
        seen = self._named(plain.sites, self.names)
        if not fixed:
            return Trace(plain.outputs, {**seen})
        orders = orders_of(fixed, seen)
        moved = {
            site: arranged(fixed[site], axes, seen[site].shape) for site, axes in orders.items()
        }
        own = {
            self.names[path]: path for site in plain.sites if (path := _path(site)) in self.names
        }
        traced = self.runner.trace(inputs, self._named(moved, own))
        sites = self._named(traced.sites, self.names)
        return Trace(
            traced.outputs,
            {
                site: put_back(array, orders[site], fixed[site].shape) if site in orders else array
                for site, array in sites.items()
                if site in orders or site not in fixed
            },
        )

    def describe(self) -> dict[str, str]:
        """Return what the runner says of itself."""
        return self.runner.describe()
