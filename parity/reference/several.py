"""How far correct runs of a source lie apart, where the error of one run says little.

One run may be nearly exact by chance: in outputs of a few numbers, such as the logits of two images and
two texts, in those of a few tokens, since errors within a token go together, and where a few tokens have
most of the error, since which tokens these are is chance too. So it is where a router in 16 bits takes
the best experts: if the last taken and the first left out differ by less than the rounding, correct
implementations choose differently, and the outputs of that token part by much more than rounding. Such a
source is run again, the outputs of its layers rounded in other ways, and errs as much as the worst of
these runs. A large one runs again only where a candidate errs more than one run allows: where it does
not, more would change nothing.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from ...converters.common.dtypes import unit_roundoff
from ...converters.models import Signature
from ...converters.runtimes.streamed.together import together
from ...converters.runtimes.torch import call
from ...converters.values import Array
from ..check.distances import Distance, distance, select_tokens
from ..probes.probes import LARGEST, Probe, masks_of
from .orders import OtherOrder
from .reference import Outputs, arrays, feed
from .sensitivity import LARGE

FEW: Final = 64  # numbers or tokens; the mean square of as many errors is known to a fifth
RUNS: Final = 8  # a choice that is as likely as not is seen in all but one of 256 recordings
Errors = dict[str, Distance]
Moving = contextlib.AbstractContextManager[Callable[[int, Any], Any]]


class Once(NamedTuple):
    """How far a source errs in one run, per probe.

    Attributes:
        errors: of every output.
        unsure: the outputs of which one run says little.
        more: how many further runs tell enough.
        dear: whether these would take long.
    """

    errors: tuple[Errors, ...]
    unsure: tuple[frozenset[str], ...]
    more: tuple[int, ...]
    dear: bool


def is_few(output: Array, mask: Array | None = None) -> bool:
    """Say whether OUTPUT has so few numbers, or tokens that MASK lets count, that one run says little.

    >>> is_few(np.ones((2, 2))), is_few(np.ones((16, 24)))
    (True, False)
    >>> is_few(np.ones((1, 9, 1000))), is_few(np.ones((2, 40, 1000)))
    (True, False)
    """
    few_tokens = output.ndim > 2 and len(select_tokens(output, mask)) < FEW
    return output.size < FEW or few_tokens


def is_uneven(found: Array, wanted: Array, mask: Array | None = None) -> bool:
    """Say whether a few tokens of FOUND have most of its error.

    The mean square over tokens is then known worse than that of ``FEW`` normal numbers, whose variance
    relative to its square is ``2 / FEW``.

    >>> one = np.zeros((1, 100, 4))
    >>> is_uneven(one + 0.1, one), is_uneven(one + (np.arange(100) < 9)[:, None], one)
    (False, True)
    """
    if wanted.ndim < 3:
        return False
    rows = (select_tokens(np.asarray(it, np.float64), mask) for it in (found, wanted))
    squares = np.square(np.subtract(*rows)).sum(-1)
    spread = squares.std() / squares.mean() if squares.any() else 0.0
    return bool(spread**2 / len(squares) > 2 / FEW)


class EachOperation(TorchFunctionMode):
    """Let MOVE replace what every function of torch makes; views and what is written in place stay."""

    def __init__(self, move: Callable[[Any], Any]) -> None:
        super().__init__()
        self.move = move

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return what FUNC returns, moved."""
        out = func(*args, **(kwargs or {}))
        if not isinstance(out, torch.Tensor):
            return out
        given = [it for it in (*args, *(kwargs or {}).values()) if isinstance(it, torch.Tensor)]
        place = out.untyped_storage().data_ptr()
        return (
            out if any(it.untyped_storage().data_ptr() == place for it in given) else self.move(out)
        )


def is_leaf(module: nn.Module) -> bool:
    """Say whether MODULE computes without calling another; attention takes its last layer's weights only."""
    return isinstance(module, nn.MultiheadAttention) or next(module.children(), None) is None


def nudged(out: torch.Tensor, random: torch.Generator, size: float) -> torch.Tensor:
    """Return OUT, every number of it off by up to SIZE of itself as RANDOM draws.

    Modes do not see it: of each of its operations they would take longer than it does.
    """
    with torch._C._DisableTorchDispatch():
        wider = torch.promote_types(out.dtype, torch.float32)
        noise = torch.empty(out.shape, dtype=torch.float32).uniform_(-1, 1, generator=random)
        given = out.to(wider)
        return given.addcmul(given, noise.to(wider), value=size).to(out.dtype)


def mover(here: threading.local, size: float) -> Callable[[Any], Any]:
    """Return what moves floating-point tensors by up to SIZE of themselves, where HERE has a generator."""

    def move(out: Any) -> Any:
        if type(out) is tuple:
            return tuple(map(move, out))
        random, plain = getattr(here, "random", None), not isinstance(out, torch.Tensor)
        if random is None or plain or not out.is_floating_point():
            return out
        return nudged(out, random, size)

    return move


def move_around(leaf: nn.Module, here: threading.local, move: Callable[[Any], Any]) -> list[Any]:
    """Let MOVE replace what LEAF takes and gives; sums inside of it are no others. Return the handles."""

    def enter(_: nn.Module, given: Any) -> Any:
        here.inside = getattr(here, "inside", 0) + 1
        return move(given)

    def leave(_: nn.Module, __: Any, out: Any) -> Any:
        here.inside -= 1
        return move(out)

    return [leaf.register_forward_pre_hook(enter), leaf.register_forward_hook(leave)]


def other_rounding(module: nn.Module, dtype: str) -> Moving:
    """Let what MODULE computes be off by up to one unit roundoff of DTYPE, see ``off_by``."""
    return off_by(module, unit_roundoff(dtype))


@contextlib.contextmanager
def off_by(module: nn.Module, size: float) -> Iterator[Callable[[int, Any], Any]]:
    """Give a function of a seed and a run that runs it with what MODULE's leaves take and give moved.

    They move by up to SIZE of themselves, at random, in this thread alone: a leaf may give what is left of
    large terms. Sums between the leaves are added in another order. Of a module from MLX, and of one without submodules,
    what operations make moves.
    """
    here = threading.local()
    move = mover(here, size)
    recorded: list[Any] = [it for it in module.modules() if "rounded" in vars(it)]
    alone = not (recorded or [*module.children()])

    def moved(seed: int, run: Any) -> Any:
        here.random, here.inside = torch.Generator().manual_seed(seed), 0
        between = OtherOrder(here.random, lambda: not here.inside)
        try:
            with between, EachOperation(move) if alone else contextlib.nullcontext():
                return run()
        finally:
            here.random = None

    leaves = [] if alone else [*filter(is_leaf, module.modules())]
    handles = [handle for leaf in leaves for handle in move_around(leaf, here, move)]
    for child in recorded:
        child.rounded = move
    try:
        yield moved
    finally:
        for child in recorded:
            child.rounded = None
        for handle in handles:
            handle.remove()


def errors_of(found: Outputs, wanted: Outputs, masks: Mapping[str, Array | None]) -> Errors:
    """Return the distance of every output of one probe from the reference."""
    return {name: distance(it, wanted[name], masks.get(name)) for name, it in found.items()}


def worst_of(rows: Sequence[Errors]) -> Errors:
    """Return the largest errors of several runs on one probe, output by output.

    >>> worst_of([{"y": Distance(1.0, 4.0)}, {"y": Distance(2.0, 3.0)}])
    {'y': Distance(whole=2.0, worst=4.0)}
    """
    return {
        name: Distance(max(row[name].whole for row in rows), max(row[name].worst for row in rows))
        for name in rows[0]
    }


def in_one_run(
    module: nn.Module,
    signature: Signature,
    probes: Sequence[Probe],
    runs: tuple[Sequence[Outputs], Sequence[Outputs]],
    *,
    routed: bool = False,
) -> Once:
    """Return how far MODULE errs on PROBES in one run, and where that says little.

    Args:
        module: the source.
        signature: names of inputs and outputs.
        probes: inputs.
        runs: outputs of one run, and the float64 reference, per probe.
        routed: whether one run says little of every output, and it takes as many as see enough tokens
            choose their experts.
    """
    masks = [masks_of(signature, probe) for probe in probes]
    rows = list(zip(probes, *runs, masks, strict=True))
    large = sum(it.numel() for it in module.parameters()) > LARGE
    unsure = tuple(
        frozenset(
            name
            for name in wanted
            if routed or says_little(probe, name, (found, wanted), mask, large=large)
        )
        for probe, found, wanted, mask in rows
    )
    counts = [how_often(wanted, mask) if routed else RUNS for _, _, wanted, mask in rows]
    more = tuple(count if names else 0 for count, names in zip(counts, unsure, strict=True))
    errors = tuple(errors_of(*it) for it in zip(*runs, masks, strict=True))
    return Once(errors, unsure, more, large)


def in_several_runs(
    module: nn.Module,
    dtype: str,
    signature: Signature,
    probes: Sequence[Probe],
    wanted: Sequence[Outputs],
    once: Once,
) -> tuple[Errors, ...]:
    """Return how far MODULE errs on PROBES: in ONCE, or the worst of several runs where that says little.

    Args:
        module: built in DTYPE.
        dtype: of the computation.
        signature: names of inputs and outputs.
        probes: inputs.
        wanted: the float64 reference, per probe.
        once: what one run gave.
    """
    asked = [at for at, count in enumerate(once.more) if count]
    again = [(probes[at], wanted[at], once.more[at]) for at in asked]
    more = others(module, dtype, signature, again)
    worst = {at: worst_of([once.errors[at], *rows]) for at, rows in zip(asked, more, strict=True)}
    return tuple(
        {name: worst[at][name] if name in once.unsure[at] else it for name, it in row.items()}
        for at, row in enumerate(once.errors)
    )


def says_little(
    probe: Probe,
    name: str,
    runs: tuple[Outputs, Outputs],
    masks: Mapping[str, Array | None],
    *,
    large: bool,
) -> bool:
    """Say whether the error of one run of PROBE in output NAME may be small or large by chance.

    A long text of which few positions are compared, and a LARGE model on uneven ones, run but once: several
    runs would take longer than all of the check.
    """
    found, wanted = (it[name] for it in runs)
    if wanted.size < FEW:
        return True
    mask = masks.get(name)
    uneven = not large and is_uneven(found, wanted, mask)
    return not probe.rows and (is_few(wanted, mask) or uneven)


def how_often(wanted: Outputs, masks: Mapping[str, Array | None]) -> int:
    """Return how many runs see as many tokens choose their experts as ``RUNS`` of ``FEW`` tokens do.

    >>> how_often({"y": np.ones((1, 16, 9))}, {}), how_often({"y": np.ones((1, 80, 9))}, {})
    (32, 8)
    """
    tokens = [len(select_tokens(it, masks.get(name))) for name, it in wanted.items() if it.ndim > 2]
    return RUNS * max(1, -(-FEW // max(1, *tokens))) if tokens else RUNS


def others(
    module: nn.Module,
    dtype: str,
    signature: Signature,
    asked: Sequence[tuple[Probe, Outputs, int]],
) -> list[list[Errors]]:
    """Return for each probe, its float64 reference and a number, the errors of as many more runs.

    Runs share each reading of weights that are on disk, as many as fit into memory with their outputs.
    """
    names = tuple(port.name for port in signature.outputs)
    found: list[list[Errors]] = [[] for _ in asked]

    def error(at: int, run: Callable[[], Mapping[str, torch.Tensor]]) -> None:
        probe, wanted, _ = asked[at]
        (outputs,) = arrays(signature, [probe], [run()])
        found[at].append(errors_of(outputs, wanted, masks_of(signature, probe)))

    with torch.no_grad(), other_rounding(module, dtype) as moved:
        runs: list[Callable[[], None]] = []
        numbers = 0
        for at, (probe, wanted, count) in enumerate(asked):
            once = partial(call, module, feed(signature, probe, dtype), names)
            for seed in range(count):
                numbers += sum(it.size for it in wanted.values())
                if runs and numbers > LARGEST:
                    together(module, runs)
                    runs, numbers = [], 0
                runs.append(partial(error, at, partial(moved, seed, once)))
        together(module, runs)
    return found
