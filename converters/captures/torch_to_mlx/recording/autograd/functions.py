"""Uses of ``torch.autograd.Function`` while a module is recorded: one node each, backward included.

``torch.export`` runs ``forward`` of a Function and forgets its ``backward``. Here ``apply`` records one
operation instead, whose results are what ``forward`` returns and what it saved for ``backward``; both
methods are recorded by themselves afterwards (see ``lifting``).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

import torch
from torch.autograd.function import Function, _SingleLevelFunction
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import CheckpointFunction

from ......errors import UnsupportedError
from ..places import line_of_caller

OPERATION: Final = "weighbridge.autograd_function.default"
_LIBRARY: Final[Any] = cast(Any, torch.library.Library)("weighbridge", "FRAGMENT")
_LIBRARY.define(
    "autograd_function(int number, Tensor[] tensors) -> Tensor[]",
    tags=(torch.Tag.nondeterministic_seeded,),  # it may draw: no two calls are one
)
_USES: Final[dict[int, Use]] = {}  # those of the recordings under way
_NUMBERS: Final = itertools.count()


class Context:
    """What a Function's methods get as ``ctx``: it keeps what they save, and their own attributes."""

    def __init__(self, needs: tuple[bool, ...], name: str) -> None:
        self.needs_input_grad = needs
        self._name = name
        self._saved: tuple[Any, ...] = ()
        self._constant: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep TENSORS for ``backward``."""
        self._saved = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        """Keep nothing: forward-mode derivatives are not recorded."""

    def mark_non_differentiable(self, *tensors: Any) -> None:
        """Let no gradient flow through TENSORS, which are outputs."""
        self._constant = tensors

    def mark_dirty(self, *_tensors: Any) -> None:
        """Refuse a Function that changes its inputs in place.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(
            f"torch.autograd.Function {self._name} changes its inputs in place: return new tensors"
        )

    def set_materialize_grads(self, _value: bool) -> None:
        """Do nothing: MLX always gives zeros for what was not used."""

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """What ``save_for_backward`` was given."""
        return self._saved

    def kept(self) -> list[torch.Tensor]:
        """Return all tensors that are kept, as saved ones or as attributes."""
        return [leaf for leaf in pytree.tree_leaves(self._all()) if _is_tensor(leaf)]

    def replace(self, tensors: Sequence[torch.Tensor]) -> None:
        """Put TENSORS in the place of those that are kept."""
        given = iter(tensors)
        vars(self).update(
            pytree.tree_map(lambda leaf: next(given) if _is_tensor(leaf) else leaf, self._all())
        )

    def is_constant(self, tensor: Any) -> bool:
        """Say whether TENSOR was marked as not differentiable."""
        return any(tensor is marked for marked in self._constant)

    def _all(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_constant"}


@dataclass(eq=False)
class Use:
    """One call of ``Function.apply``.

    Attributes:
        function: the class.
        arguments: leaves of its arguments, with ``None`` for tensors.
        spec: how the arguments are made of the leaves.
        places: positions of the tensors among the leaves.
        line: the model's line that calls it.
        outputs: leaves of what ``forward`` returned, with ``None`` for tensors.
        filled: positions of the tensors among them.
        returned: how that is made of its leaves.
        constant: for each tensor returned, whether no gradient flows through it.
    """

    function: Any
    arguments: list[Any]
    spec: pytree.TreeSpec
    places: list[int]
    line: str
    outputs: list[Any] = field(default_factory=list)
    filled: list[int] = field(default_factory=list)
    returned: pytree.TreeSpec | None = None
    constant: tuple[bool, ...] = ()

    @property
    def name(self) -> str:
        """The name of the class."""
        return str(self.function.__name__)

    def run(self, tensors: Sequence[torch.Tensor]) -> tuple[Context, list[torch.Tensor]]:
        """Call ``forward`` on TENSORS; return its context and the tensors among its outputs."""
        leaves = list(self.arguments)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        arguments = pytree.tree_unflatten(leaves, self.spec)
        context = Context(tuple(map(_is_floating, arguments)), self.name)
        with torch.no_grad():
            output = _forward(self.function, context, arguments)
        leaves, self.returned = pytree.tree_flatten(output)
        found = [leaf for leaf in leaves if _is_tensor(leaf)]
        self.outputs = [None if _is_tensor(leaf) else leaf for leaf in leaves]
        self.constant = tuple(map(context.is_constant, found))
        self.filled = [i for i, leaf in enumerate(leaves) if _is_tensor(leaf)]
        return context, found

    def arranged(self, results: Sequence[torch.Tensor]) -> Any:
        """Return what ``forward`` returns, with RESULTS as its tensors."""
        leaves = list(self.outputs)
        for place, result, constant in zip(self.filled, results, self.constant, strict=False):
            leaves[place] = result.detach() if constant else result
        return pytree.tree_unflatten(leaves, cast(pytree.TreeSpec, self.returned))

    def backward(self, context: Context, cotangents: Sequence[torch.Tensor]) -> list[Any]:
        """Return for each tensor of the arguments its gradient, or ``None``."""
        given = iter(cotangents)
        leaves: list[Any] = [None] * len(self.outputs)
        for place in self.filled:
            leaves[place] = next(given)
        method = self.function.backward
        if method is Function.backward:
            method = self.function.vjp
        gradients = method(context, *leaves)
        gradients = gradients if isinstance(gradients, tuple | list) else (gradients,)
        top = [i for i, child in enumerate(self.spec.children()) for _ in range(child.num_leaves)]
        direct = [child.is_leaf() for child in self.spec.children()]
        return [gradients[top[i]] if direct[top[i]] else None for i in self.places]


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _is_floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _forward(function: Any, context: Context, arguments: Any) -> Any:
    if function.setup_context is _SingleLevelFunction.setup_context:
        return function.forward(context, *arguments)
    output = function.forward(*arguments)
    function.setup_context(context, arguments, output)
    return output


def _results(number: int, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return what the operation returns: outputs, and what is kept for ``backward``, none an input."""
    context, outputs = _USES[number].run(tensors)
    return [tensor.clone() for tensor in (*outputs, *context.kept())]


_LIBRARY.impl("autograd_function", _results, "CompositeExplicitAutograd")
torch.library.register_fake("weighbridge::autograd_function", _results, lib=_LIBRARY)


def _inlined(function: Any) -> bool:
    """Say whether FUNCTION is torch's own: it computes the derivative that recording finds by itself.

    But for that of a draw (``Dirichlet``), where there is none to find.
    """
    package, _, rest = str(function.__module__).partition(".")
    return package == "torch" and not rest.startswith("distributions")


def _used(function: Any, arguments: tuple[Any, ...], uses: dict[int, Use]) -> Any:
    """Record one operation for a call of FUNCTION, and remember it in USES."""
    leaves, spec = pytree.tree_flatten(arguments)
    places = [i for i, leaf in enumerate(leaves) if _is_tensor(leaf)]
    line = line_of_caller()
    if any(isinstance(leaf, torch.SymInt | torch.SymFloat | torch.SymBool) for leaf in leaves):
        raise UnsupportedError(
            f"torch.autograd.Function {function.__name__} takes a size that may vary as an "
            f"argument ({line}): take it from the shape of a tensor in its forward"
        )
    constants = [None if _is_tensor(leaf) else leaf for leaf in leaves]
    use, number = Use(function, constants, spec, places, line), next(_NUMBERS)
    uses[number] = _USES[number] = use
    operation = torch.ops.weighbridge.autograd_function.default
    return use.arranged(operation(number, [leaves[place] for place in places]))


@contextlib.contextmanager
def functions_noted() -> Iterator[dict[int, Use]]:
    """Record calls of ``Function.apply`` in the block as operations; yield their uses by number.

    ``Function.apply`` may have been taken off its class long ago, so it is what this calls that is
    replaced: ``_SingleLevelFunction.apply``.
    """
    uses: dict[int, Use] = {}

    def apply(function: Any, *arguments: Any) -> Any:
        if issubclass(function, CheckpointFunction):
            run, _, *rest = arguments
            return run(*rest)
        if _inlined(function) or torch._C._are_functorch_transforms_active():
            return inherited.__get__(None, function)(*arguments)
        return _used(function, arguments, uses)

    base: Any = _SingleLevelFunction
    own = vars(base).get("apply")
    inherited = vars(torch._C._FunctionBase)["apply"]
    base.apply = classmethod(apply)
    try:
        yield uses
    finally:
        if own:
            base.apply = own
        else:
            del base.apply
        for number in uses:
            del _USES[number]
