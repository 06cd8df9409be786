"""Which weights of a model no output depends on."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

import torch
from torch import nn

from ...converters.models import Model, Signature
from ...converters.runtimes.streamed.modules import opened, tensors_of
from ...converters.runtimes.torch import call
from ...converters.runtimes.torch_adapters import Places
from ..probes.probes import Probe
from ..weights.weights import own_copy
from .reference import feed

EXPERT: Final = re.compile(r"\.experts\.(\d+)\.")
STACKED: Final = 3  # axes of the weights of all experts of a layer


Run = Callable[[nn.Module, Mapping[str, torch.Tensor]], Mapping[str, torch.Tensor]]


def unneeded(model: Model, probe: Probe, run: Run | None = None) -> set[str]:
    """Return the torch names of MODEL's tensors on which no output depends, or that are not loaded.

    A target may lack them: a pooler that no output uses, positions that it counts itself.

    Args:
        model: what is run, in float32.
        probe: one is enough, since dependence is on the graph and not on values.
        run: returns what a module makes of inputs, where that is not what it does when called.
    """
    module, found = opened(own_copy(model), "float32")
    unused = {*unused_weights(module, model.signature, probe, run)}
    needless = {name for name, weight in found.items() if weight is None or weight in unused}
    return needless | {*passing_on(module, found)}


def unused_weights(
    module: nn.Module, signature: Signature, probe: Probe, run: Run | None = None
) -> list[str]:
    """Return the parameters of MODULE on which no output depends, and its integer buffers.

    So are other buffers in submodules that did not run, such as a tower that no input needs. The graph that PyTorch keeps for gradients says it; nothing that a gradient would need is kept.

    Args:
        module: built in float32.
        signature: names the outputs that matter.
        probe: one is enough, since dependence is on the graph and not on values.
        run: see :func:`unneeded`.
    """
    names = tuple(port.name for port in signature.outputs)
    with marked(module) as leaves, calls_of(module) as called:
        given = feed(signature, probe, "float32")
        results = run(module, given) if run else call(module, given, names)
        reached = {*map(id, sources(results.values()))}
    there = {name for name, it in leaves.items() if id(it) in reached}
    buffers = dict(module.named_buffers())
    counters = [name for name, it in buffers.items() if not it.is_floating_point()]
    unused = unreached(list(leaves), there)
    resting = idle(unused, there, called)
    others = (name for name in buffers.keys() - {*counters} if not resting.isdisjoint(above(name)))
    return unused + counters + sorted(others)


@contextlib.contextmanager
def marked(module: nn.Module) -> Iterator[dict[str, torch.Tensor]]:
    """Yield what stands for each parameter of MODULE, by name, in the graphs that are made meanwhile."""
    leaves: dict[str, torch.Tensor] = dict(module.named_parameters())
    for name, tensor in tensors_of(module).items():
        tensor.mark = leaves[name] = torch.zeros((), requires_grad=True)
    module.requires_grad_(requires_grad=True)
    nothing = torch.empty(0)
    forget = torch.autograd.graph.saved_tensors_hooks(lambda _: nothing, lambda _: nothing)
    with torch.enable_grad(), forget:
        yield leaves
    module.requires_grad_(requires_grad=False)
    for tensor in tensors_of(module).values():
        tensor.mark = None


def passing_on(module: nn.Module, places: Places) -> Iterator[str]:
    """Yield the names in PLACES of weights of experts that give back what they get, whatever the weights.

    Such experts of MODULE have a row in one stack of a layer and none in another, and what a layer
    gives where they alone are chosen depends on none of its weights.

    Args:
        module: built in float32.
        places: the parameter of MODULE that each tensor is in.
    """
    experts = {name: found for name in places if (found := EXPERT.search(name))}
    layers: dict[str, dict[int, list[str]]] = {}
    for name, found in experts.items():
        layer = str(places[name]).rpartition(".")[0]
        layers.setdefault(layer, {}).setdefault(int(found[1]), []).append(name)
    for layer, numbers in layers.items():
        inner = module.get_submodule(layer)
        rows = [it.shape[0] for it in inner.parameters(recurse=False) if it.ndim == STACKED]
        if rows and "top_k_index" in inspect.signature(inner.forward).parameters:
            for number in range(min(rows), max(rows)):
                yield from numbers.get(number, ()) if gives_back(inner, number) else ()


def gives_back(experts: nn.Module, number: int) -> bool:
    """Say whether the output of EXPERTS depends on no weight where the expert NUMBER alone is chosen."""
    widest = max(experts.parameters(recurse=False), key=len)
    tokens, chosen = torch.zeros((2, widest.shape[-1])), torch.full((2, 2), number)
    shares = torch.ones((2, 2), requires_grad=True)
    with marked(experts) as leaves, contextlib.suppress(Exception):  # whatever others' code raises
        reached = {*map(id, sources([experts(tokens, chosen, shares)]))}
        return id(shares) in reached and not reached & {*map(id, leaves.values())}
    return False


@contextlib.contextmanager
def calls_of(module: nn.Module) -> Iterator[set[str]]:
    """Yield the paths of those submodules of MODULE that are called."""
    called: set[str] = set()

    def note(path: str) -> Callable[..., None]:
        return lambda *_: called.add(path)

    handles = [it.register_forward_pre_hook(note(path)) for path, it in module.named_modules()]
    try:
        yield called
    finally:
        for handle in handles:
            handle.remove()


def idle(names: Collection[str], reached: Collection[str], called: Collection[str]) -> set[str]:
    """Return the paths of submodules that have some of NAMES, and of which nothing was REACHED or CALLED.

    >>> sorted(idle(["a.b.weight", "c.weight"], ["c.weight"], ["", "c"]))
    ['a', 'a.b']
    """
    busy = {path for name in reached for path in above(name)}
    busy |= {path for it in called for path in (it, *above(it))}
    return {path for name in names for path in above(name)} - busy


def above(name: str) -> list[str]:
    """Return the paths of the submodules that NAME is in.

    >>> above("tower.layers.0.bound")
    ['tower', 'tower.layers', 'tower.layers.0']
    """
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]


def sources(results: Collection[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield the leaves that the graph of RESULTS begins with."""
    todo = [it.grad_fn for it in results if it.grad_fn is not None]
    seen = {*todo}
    while todo:
        node = todo.pop()
        if hasattr(node, "variable"):
            yield node.variable
        fresh = {above for above, _ in node.next_functions if above is not None} - seen
        seen |= fresh
        todo += fresh


def unreached(names: Collection[str], reached: Collection[str]) -> list[str]:
    """Return those of NAMES that are not REACHED, experts that were not chosen aside.

    An expert is a module with two numbers in its path, such as ``layers.3.experts.7``. Where a
    sibling of it was reached, it was not chosen for this input and may be for another.
    """
    siblings = {_sibling(name) for name in reached}
    return [
        name
        for name in names
        if name not in reached and (_sibling(name) == name or _sibling(name) not in siblings)
    ]


def _sibling(name: str) -> str:
    """Return NAME without its last number if there are more before it.

    >>> _sibling("layers.3.experts.7.up"), _sibling("layers.3.up")
    ('layers.3.experts.*.up', 'layers.3.up')
    """
    parts = name.split(".")
    numbers = [place for place, part in enumerate(parts) if part.isdigit()]
    if len(numbers) > 1:
        parts[numbers[-1]] = "*"
    return ".".join(parts)
