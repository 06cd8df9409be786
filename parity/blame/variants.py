"""What could be another thing in a module of the source: each made so for the time of a run."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from functools import partial
from itertools import combinations
from typing import Any, Final, NamedTuple

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ...converters.common.arrays import from_torch, to_torch
from ...converters.runtimes.streamed.tensors import read
from ...converters.values import Array
from .attention import ATTENTION
from .evidence import ACTIVATIONS

Block = contextlib.AbstractContextManager[Any]
Change = Callable[[torch.Tensor], torch.Tensor]
Called = tuple[Any, tuple[Any, ...], dict[str, Any]]  # a function of torch and what it gets
SAMPLE: Final = torch.linspace(-3.0, 3.0, 61, dtype=torch.float64)
SAME: Final = 1e-6  # an activation is the one of that name; some compute in float32
STACK: Final = 3  # axes of the weights of all experts of a layer
LARGEST_STACK: Final = 1 << 26  # elements that are put in another order in memory
SWAPPED: Final = 8  # of more experts, no two are tried in each other's place
LARGEST_NUMBER: Final = 1e9  # a larger one stands for infinity
CHOSEN: Final = re.compile(r"top_?k|num_experts_per")
SOFTMAX: Final = frozenset((functional.softmax, torch.softmax, torch.Tensor.softmax))
ATTEND: Final = functional.scaled_dot_product_attention
MASKS: Final[Mapping[str, dict[str, Any]]] = {
    "there were no mask": {},
    "each token saw those before it alone": {"is_causal": True},
}


class Variant(NamedTuple):
    """One thing that could be another.

    Attributes:
        site: the module that would be at fault.
        kind: what a fault of that kind is called.
        words: what would be otherwise.
        put: makes it so, for the time of a block.
    """

    site: str
    kind: str
    words: str
    put: Callable[[], Block]


class Number(NamedTuple):
    """A number that could be another.

    Attributes:
        site: the module that would be at fault.
        kind: what a fault of that kind is called.
        words: what it is.
        put: multiplies it, for the time of a block.
    """

    site: str
    kind: str
    words: str
    put: Callable[[float], Block]


@contextlib.contextmanager
def instead(held: MutableMapping[str, Any], name: str, value: Any) -> Iterator[None]:
    """Let HELD have VALUE by NAME."""
    there, before = name in held, held.get(name)
    held[name] = value
    try:
        yield
    finally:
        held[name] = before
        if not there:
            del held[name]


class Calling(TorchFunctionMode):
    """Let the functions of torch be called as CHANGE says."""

    def __init__(self, change: Callable[..., Called]) -> None:
        super().__init__()
        self.change = change

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call FUNCTION, or what is in its place."""
        function, args, kwargs = self.change(function, args, kwargs or {})
        return function(*args, **kwargs)


class Elementwise(nn.Module):
    """A function of each element, as a module."""

    def __init__(self, function: Callable[[Array], Array]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, **_: Any) -> torch.Tensor:
        """Return the function of X, of any shape."""
        return to_torch(self.function(from_torch(x))).to(x.dtype)


def variants(site: str, module: nn.Module, known: Collection[str]) -> Iterator[Variant]:
    """Yield what could be another thing in MODULE at SITE; in submodules that are KNOWN nothing shows."""
    for at, part in inside(site, module, known):
        for make in (activations, switches, stacks):
            yield from make(at, part)
        if at != site:
            put = partial(instead, vars(part), "forward", lambda x, *_, **__: x)
            yield Variant(at, "skipped", "it returned what it receives", put)


def inside(site: str, module: nn.Module, known: Collection[str]) -> Iterator[tuple[str, nn.Module]]:
    """Yield MODULE at SITE and its submodules by their paths, without those that are KNOWN."""
    yield site, module
    for name, child in module.named_children():
        if (path := below(site, name)) not in known:
            yield from inside(path, child, known)


def below(site: str, name: str) -> str:
    """Return the path of the submodule NAME of SITE; each may be empty.

    >>> below("", "head"), below("layer.0", "attn"), below("layer.0", "")
    ('head', 'layer.0.attn', 'layer.0')
    """
    return ".".join(it for it in (site, name) if it)


def activations(site: str, part: nn.Module) -> Iterator[Variant]:
    """Yield PART with another activation in the place of each that it holds."""
    for held in (part._modules, vars(part)):
        for name, function in [*held.items()]:
            right = name_of(function) if is_plain(function) else None
            where = below(site, name) if isinstance(function, nn.Module) else site
            for other in others(right):
                put = partial(instead, held, name, Elementwise(ACTIVATIONS[other]))
                yield Variant(where, "activation", f"{other} stood in the place of {right}", put)


def others(right: str | None) -> list[str]:
    """Return the activations that are not the RIGHT one, if that is one."""
    return [it for it in ACTIVATIONS if it != right] if right else []


def is_plain(function: Any) -> bool:
    """Say whether FUNCTION can be called and has no weights."""
    if isinstance(function, nn.Module):
        return not [*function.parameters(), *function.buffers()]
    return callable(function) and not isinstance(function, type)


def name_of(function: Callable[[torch.Tensor], Any]) -> str | None:
    """Return which activation FUNCTION is; ``None`` for the identity and for what is none.

    >>> name_of(nn.SiLU()), name_of(nn.Identity()), name_of(nn.Softmax(-1))
    ('silu', None, None)
    """
    try:
        with warnings.catch_warnings(action="ignore"):
            found = function(SAMPLE.clone())
    except Exception:  # whatever it is, it is no function of one tensor
        return None
    if not isinstance(found, torch.Tensor) or found.shape != SAMPLE.shape:
        return None
    values, x = from_torch(found.double()), from_torch(SAMPLE)
    close = (it for it, known in ACTIVATIONS.items() if abs(known(x) - values).max() <= SAME)
    name = next(close, None)
    return None if name == "identity" else name


def switches(site: str, part: nn.Module) -> Iterator[Variant]:
    """Yield PART with each of its switches turned, and with one expert more or less for a token."""
    for name, value in [*vars(part).items()]:
        found: list[Any] = []
        if isinstance(value, bool) and name != "training" and not name.startswith("_"):
            found = [not value]
        elif isinstance(value, int) and CHOSEN.search(name):
            found = [it for it in (value + 1, value - 1) if it > 0]
        for other in found:
            words = f"{name} were {other}, not {value}"
            yield Variant(site, "setting", words, partial(instead, vars(part), name, other))


def stacks(site: str, part: nn.Module) -> Iterator[Variant]:
    """Yield PART with its experts in another order, or with the parts of their gates exchanged."""
    held = {name: it for name, it in part._parameters.items() if it is not None}
    stacked = [name for name, it in held.items() if it.ndim >= STACK]
    counts = {len(it) for it in held.values()}
    if not stacked or len(counts) != 1 or any(it.numel() > LARGEST_STACK for it in held.values()):
        return
    for words, order in orders(*counts):
        change: Change = partial(torch.index_select, dim=0, index=torch.tensor(order))
        yield Variant(site, "expert", words, partial(remade, part, [*held], change))
    for name in stacked:
        for words, change in exchanges(held[name].shape):
            put = partial(remade, part, [name], change)
            yield Variant(site, "gate", f"{words} of {name} changed places", put)


def orders(count: int) -> Iterator[tuple[str, list[int]]]:
    """Yield orders in which COUNT experts may be taken for one another, with words.

    >>> next(orders(3))
    ('each expert were taken for the one after it', [1, 2, 0])
    """
    numbers = [*range(count)]
    for step, words in ((1, "after"), (-1, "before")):
        turned = [(number + step) % count for number in numbers]
        yield f"each expert were taken for the one {words} it", turned
    for one, other in combinations(numbers, 2) if count <= SWAPPED else ():
        order = [{one: other, other: one}.get(number, number) for number in numbers]
        yield f"experts {one} and {other} changed places", order


def exchanges(shape: Sequence[int]) -> Iterator[tuple[str, Change]]:
    """Yield ways in which the two parts of a gate may change places along an axis of SHAPE."""
    for axis in range(1, len(shape)):
        if shape[axis] % 2 == 0:
            yield "halves", partial(torch.roll, shifts=shape[axis] // 2, dims=axis)
            yield "neighbours", partial(neighbours, axis=axis)


def neighbours(tensor: torch.Tensor, axis: int) -> torch.Tensor:
    """Return TENSOR, each two that are neighbours along AXIS exchanged."""
    halves = (tensor.shape[axis] // 2, 2)
    pairs = tensor.reshape(*tensor.shape[:axis], *halves, *tensor.shape[axis + 1 :])
    return pairs.flip(axis + 1).flatten(axis, axis + 1)


@contextlib.contextmanager
def remade(part: nn.Module, names: Sequence[str], change: Change) -> Iterator[None]:
    """Let PART have what CHANGE makes of its parameters NAMES."""
    with contextlib.ExitStack() as stack:
        for name in names:
            new = change(read(part._parameters[name]))
            stack.enter_context(instead(part._parameters, name, new))
        yield


def arguments(site: str, given: MutableMapping[str, Any]) -> Iterator[Variant]:
    """Yield a call without each thing that it is GIVEN by name."""
    for name, value in [*given.items()]:
        if isinstance(value, torch.Tensor):
            kind = next((it for it in ("mask", "position") if it in name), "setting")
            yield Variant(site, kind, f"it got no {name}", partial(instead, given, name, None))


def numbers(site: str, module: nn.Module, known: Collection[str]) -> Iterator[Number]:
    """Yield the numbers of MODULE at SITE that could be others, and how far its scores are scaled."""
    for at, part in inside(site, module, known):
        kind = "attention" if ATTENTION.search(at.lower()) else "scale"
        for name, value in [*vars(part).items()]:
            if isinstance(value, float) and 0 < abs(value) < LARGEST_NUMBER:
                named = "epsilon" if "eps" in name else kind
                put = partial(times, vars(part), name)
                yield Number(at, named, f"{name}, which is {value:.5g},", put)
    yield Number(site, "attention", "what the softmax gets", scaled_scores)


def times(held: MutableMapping[str, Any], name: str, factor: float) -> Block:
    """Return a block in which HELD has FACTOR times what it has by NAME."""
    return instead(held, name, held[name] * factor)


def scaled_scores(factor: float) -> Block:
    """Return a block in which the scores of every attention are FACTOR times what they are."""

    def change(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Called:
        if function in SOFTMAX or function is ATTEND:
            args = (args[0] * factor, *args[1:])
        return function, args, kwargs

    return Calling(change)


def functions(site: str, called: Collection[Any]) -> Iterator[Variant]:
    """Yield another activation, or mask, in the place of those among the functions CALLED at SITE."""
    for function in sorted(called, key=repr):
        for other in others(right := name_of(function)):
            put = partial(Calling, partial(exchanged, function, Elementwise(ACTIVATIONS[other])))
            yield Variant(site, "activation", f"{other} stood in the place of {right}", put)
    for words, mask in MASKS.items() if ATTEND in called else ():
        yield Variant(site, "mask", words, partial(Calling, partial(unmasked, mask)))


def exchanged(
    one: Any, other: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Called:
    """Return FUNCTION and what it gets, OTHER in the place of ONE."""
    return (other, args[:1], {}) if function is one else (function, args, kwargs)


def unmasked(
    mask: dict[str, Any], function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Called:
    """Return FUNCTION and what it gets, an attention with MASK alone."""
    if function is not ATTEND:
        return function, args, kwargs
    kept = {name: it for name, it in kwargs.items() if name not in ("attn_mask", "is_causal")}
    return function, args[:3], kept | mask
