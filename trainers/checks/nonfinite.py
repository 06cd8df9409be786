"""Which operation makes a value that is not finite: every operation of PyTorch looked at, both ways."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ...converters.values import Array
from .causes import cause_of

FRAME: Final = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in')
LIBRARY: Final = str(Path(torch.__file__).parent)
OURS: Final = str(Path(__file__).parents[1])
CONSTANTS: Final = frozenset({"full", "full_like", "masked_fill", "where", "scalar_tensor", "fill"})
DETACHED: Final = frozenset({"detach", "_to_copy", "clone", "view", "expand", "_unsafe_view"})


class Culprit(NamedTuple):
    """The operation from which on a value was not finite.

    Attributes:
        operation: its name in ATen.
        site: the module that ran it, by its path; empty for the loss module itself or a gradient.
        place: file and line of the code that called it; empty where that is PyTorch's own.
        backward: whether the gradient of it was meant.
    """

    operation: str
    site: str
    place: str
    backward: bool

    def describe(self) -> str:
        """Return it, its cause and the advice in one line."""
        cause = cause_of(self.operation, backward=self.backward)
        where = f" in {self.site}" if self.site else ""
        at = f" ({self.place})" if self.place else ""
        return f"{self.operation}{where}{at} {cause.says}: {cause.advice}"


def explain(loss: nn.Module, inputs: Mapping[str, Array]) -> str:
    """Return in one line why LOSS or a gradient of it is not finite on INPUTS; empty where both are.

    The data come first, then the parameters, then the first operation of the forward pass that makes
    NaN, or failing that infinity, of finite values; then the same of the backward pass.
    """
    fed = {name: torch.from_numpy(array) for name, array in inputs.items()}
    if bad := [name for name, tensor in fed.items() if not _finite(tensor)]:
        return (
            f"the data have values that are not finite in {', '.join(bad)}: remove or replace them"
        )
    if bad := [name for name, tensor in loss.named_parameters() if not _finite(tensor)]:
        return f"the model begins with values that are not finite in {', '.join(bad)}"
    culprit = _of_forward(loss, fed) or _of_backward(loss, fed)
    return culprit.describe() if culprit else ""


def _of_forward(loss: nn.Module, fed: Mapping[str, Tensor]) -> Culprit | None:
    with _sites(loss) as path, torch.no_grad():
        watch = _Watch(path)
        with watch:
            value = loss(**fed)
    return None if _finite(value) else watch.culprit()


def _of_backward(loss: nn.Module, fed: Mapping[str, Tensor]) -> Culprit | None:
    """Return the first node of the gradient that makes what is not finite of what is."""
    found: list[Culprit] = []
    with torch.autograd.set_detect_anomaly(True, check_nan=False):  # keeps where a node was made
        value = loss(**fed)
        handles = [node.register_hook(_looking(node, found)) for node in _nodes(value.grad_fn)]
        value.backward()
    for handle in handles:
        handle.remove()
    loss.zero_grad(set_to_none=True)
    return found[0] if found else None


def _looking(node: Any, found: list[Culprit]) -> Callable[..., None]:
    def look(grads_in: Sequence[Any], grads_out: Sequence[Any]) -> None:
        if not found and _all_finite(grads_out) and not _all_finite(grads_in):
            name = re.sub(r"Backward\d*$", "", node.name())
            snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
            place = _place("".join(node.metadata.get("traceback_", ())))
            found.append(Culprit(snake, "", place, backward=True))

    return look


def _nodes(start: Any) -> list[Any]:
    """Return every node of the graph below START."""
    seen, queue = {start: None}, [start]
    while queue:
        for node, _ in queue.pop().next_functions:
            if node is not None and node not in seen:
                seen[node] = None
                queue.append(node)
    return list(seen)


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes operations that make NaN or infinity of finite values."""

    def __init__(self, path: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._path = path
        self._nan: Culprit | None = None
        self._infinite: Culprit | None = None
        self._clean = True  # whether the first NaN was made without an infinity before it

    def culprit(self) -> Culprit | None:
        """Return the operation that is to blame."""
        return self._nan if self._nan and self._clean else self._infinite or self._nan

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        outputs = [it for it in _flat(result) if it.is_floating_point()]
        if self._nan or all(map(_finite, outputs)):
            return result
        given = [it for it in _flat((args, kwargs)) if it.is_floating_point()]
        name = func.overloadpacket.__name__
        if any(bool(it.isnan().any()) for it in outputs):
            self._nan, self._clean = self._here(name), all(map(_finite, given))
        elif not self._infinite and all(map(_finite, given)) and name not in CONSTANTS | DETACHED:
            self._infinite = self._here(name)
        return result

    def _here(self, name: str) -> Culprit:
        import traceback

        stack = "".join(traceback.format_stack())
        return Culprit(name, self._path[-1], _place(stack), backward=False)


@contextmanager
def _sites(loss: nn.Module) -> Iterator[list[str]]:
    """Yield the paths of the modules of LOSS that are running, outermost first."""
    path = [""]

    def entering(name: str) -> Callable[..., None]:
        return lambda *_: path.append(name)

    def leaving(*_: Any) -> None:
        path.pop()

    handles = []
    for name, module in loss.named_modules():
        handles.append(module.register_forward_pre_hook(entering(name)))
        handles.append(module.register_forward_hook(leaving))
    try:
        yield path
    finally:
        for handle in handles:
            handle.remove()


def _place(stack: str) -> str:
    """Return the file and line of the last frame in STACK that is not PyTorch's and not of a check."""
    frames = [(found["file"], found["line"]) for found in FRAME.finditer(stack)]
    user = [it for it in frames if not it[0].startswith((LIBRARY, f"{OURS}/checks", "<"))]
    return f"{Path(user[-1][0]).name}:{user[-1][1]}" if user else ""


def _flat(tree: Any) -> list[Tensor]:
    from torch.utils._pytree import tree_leaves

    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _finite(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or bool(tensor.isfinite().all())


def _all_finite(values: Sequence[Any]) -> bool:
    return all(_finite(it) for it in values if isinstance(it, Tensor))
