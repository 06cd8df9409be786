"""Run a model in PyTorch, whatever framework's names its weights carry."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from ...errors import BadInputError, MismatchError
from ..checkpoints import Header
from ..common.dtypes import CODE
from ..common.policy import Policy
from ..maps import Plan, apply
from ..maps.notation.rules import Drop
from ..maps.programs.computed import Computed
from ..maps.sources import choose
from ..maps.sources.variants import table_of
from ..models import Model
from ..models.factories import copied, run_module
from ..values import Array, Dense, LowRank
from .base import Arrays, Trace, require_outputs
from .loading import own_values
from .pretrained import empty_pretrained, load_pretrained

map_of = choose.known_map
Places = Mapping[str, str | None]  # tensor of a checkpoint -> weight of a module
INPUT = "|in"  # marks what reaches a site, beside the site's own name
DTYPES = {
    name: getattr(torch, name)
    for name in ("float64", "float32", "float16", "bfloat16", "int64", "int32", "bool")
}


def to_torch(array: Array) -> torch.Tensor:
    """Return ARRAY as a tensor, bfloat16 included.

    >>> to_torch(np.zeros((2, 3), np.float32)).shape
    torch.Size([2, 3])
    """
    array = np.array(array, order="C")  # a copy: tensors may be written to
    if array.dtype.name == "bfloat16":
        # Through float32, which loses nothing: under a mode that widens dtypes, such as the float64
        # reference's, a reinterpretation of the bits would read others.
        return torch.from_numpy(array.astype(np.float32)).to(torch.bfloat16)
    return torch.from_numpy(array)


def to_numpy(tensor: torch.Tensor) -> Array:
    """Return TENSOR as an array, bfloat16 as ml_dtypes' bfloat16.

    >>> to_numpy(torch.ones(2, dtype=torch.bfloat16)).dtype.name
    'bfloat16'
    """
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype is torch.bfloat16:
        import ml_dtypes

        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return np.asarray(tensor.numpy())


def torch_values(model: Model) -> tuple[dict[str, Array], dict[str, LowRank]]:
    """Return MODEL's weights and adapter updates under the torch names of a checkpoint.

    Weights in MLX naming come home through the inverse of the model's map, in float32 where it changes
    values: ``w - 1`` in 16 bits may have fewer digits than ``w``, and would be another model. Whole
    tensors that the adapter brings along stand in for the model's own.
    """
    arrays = own_values(model)
    updates = dict(model.adapter.updates) if model.adapter else {}
    if model.framework != "mlx":
        return arrays, updates
    home = map_of(model).inverse()
    plan = home.bind(headers_of(arrays), config=model.config, sizes=model.sizes)
    values = apply(plan, {name: Dense(array) for name, array in widened(plan, arrays).items()})
    moved = apply(plan, updates)
    return (
        {name: value.array for name, value in values.items() if isinstance(value, Dense)},
        {name: value for name, value in moved.items() if isinstance(value, LowRank)},
    )


def headers_of(arrays: Mapping[str, Array]) -> dict[str, Header]:
    """Return what the header of a file with ARRAYS would say."""
    return {name: Header(CODE[array.dtype], array.shape) for name, array in arrays.items()}


def widened(plan: Plan, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return ARRAYS, in float32 those that PLAN changes in value without a program."""
    changed = {
        name
        for step in plan.steps
        if not step.exact and not isinstance(step.rule, Computed)
        for name in step.source_names
        if arrays[name].dtype.itemsize < np.dtype(np.float32).itemsize
    }
    return {
        name: array.astype(np.float32) if name in changed else array
        for name, array in arrays.items()
    }


def empty_module(model: Model) -> nn.Module:
    """Build MODEL's architecture, weights not yet loaded, in evaluation mode.

    Raises:
        BadInputError: there is no torch module for it.
    """
    if isinstance(model.factory, nn.Module):
        own: nn.Module = copied(model.factory)
        return own.eval()  # casting it must change nobody else's
    if model.family is None:
        model.signature  # noqa: B018  # raises, and says what to do
        raise BadInputError(f"{model.spec}: its factory did not return a torch module")
    module: nn.Module = empty_pretrained(model).eval()
    return module


def load_weights(
    module: nn.Module, arrays: Mapping[str, Array], *, where: str, known: Collection[str] = ()
) -> None:
    """Load ARRAYS into MODULE, strictly.

    Args:
        module: what to fill.
        arrays: by torch name.
        where: whose they are, for messages.
        known: names that may be there although the module has none of them, because it recomputes
            them. Integer buffers (counters, positions) may be absent.

    Raises:
        MismatchError: names are missing or unexpected, or shapes differ; all of them are listed.
    """
    own = module.state_dict()
    counters = {name for name, tensor in own.items() if not tensor.is_floating_point()}
    problems = [f"{name} is missing" for name in sorted(set(own) - set(arrays) - counters)]
    problems += [f"{name} is unexpected" for name in sorted(set(arrays) - set(own) - set(known))]
    problems += [
        f"{name}: expected {list(own[name].shape)}, found {list(array.shape)}"
        for name, array in sorted(arrays.items())
        if name in own and tuple(own[name].shape) != array.shape
    ]
    if problems:
        raise MismatchError(f"{where} does not fit {type(module).__name__}", problems)
    module.load_state_dict(
        {name: to_torch(array) for name, array in arrays.items() if name in own}, strict=False
    )


def drop_absent(module: nn.Module, arrays: Mapping[str, Array], optional: Collection[str]) -> None:
    """Remove OPTIONAL heads that the checkpoint does not carry, so that nothing runs at random."""
    for head in optional:
        if hasattr(module, head) and not any(name.startswith(f"{head}.") for name in arrays):
            setattr(module, head, None)


def recomputed(model: Model) -> tuple[str, ...]:
    """Return the torch names that MODEL's table says are recomputed."""
    if model.family is None or not model.family.map:
        return ()
    rules = table_of(model.family).rules
    return tuple(str(rule.name) for rule in rules if isinstance(rule, Drop))


def build_module(model: Model, dtype: str = "float32") -> nn.Module:
    """Return MODEL as a torch module in evaluation mode, weights loaded and adapter live.

    Args:
        model: any model with weights; MLX names are mapped back to torch's.
        dtype: of parameters and floating-point buffers.
    """
    return build(model, dtype)[0]


def build(model: Model, dtype: str = "float32") -> tuple[nn.Module, Places]:
    """Return what :func:`build_module` does, and which of its weights each torch tensor is in."""
    from .torch_adapters import attach_adapter  # which needs this module

    module, updates, found = bare(model, dtype)
    attach_adapter(module, updates)
    return module, found


class Bare(NamedTuple):
    """A module without its adapter.

    Attributes:
        module: in evaluation mode, weights loaded.
        updates: the adapter, by parameter of the module.
        places: which weight of the module each torch tensor is in.
    """

    module: nn.Module
    updates: dict[str, LowRank]
    places: Places


def bare(model: Model, dtype: str = "float32") -> Bare:
    """Return what :func:`build_module` does, the adapter aside: nothing in the module runs it."""
    from .torch_adapters import module_updates, whole_places

    module = empty_module(model)
    updates: dict[str, LowRank] = {}
    found: Places = {name: name for name in module.state_dict()}
    if model.path is not None:
        arrays, updates = torch_values(model)
        found = fill(module, model, arrays)
        names = whole_places(module, {name: arrays[name] for name in updates}, found)
        updates = module_updates(model, headers_of(arrays), updates, names)
    module = module.to(DTYPES[dtype]).requires_grad_(requires_grad=False)
    return Bare(module, updates, found)


def fill(module: nn.Module, model: Model, arrays: Mapping[str, Array]) -> Places:
    """Load ARRAYS into MODULE, strictly; return its weight for each, ``None`` where it has none.

    Raises:
        MismatchError: names are missing or unexpected, or shapes differ; all of them are listed.
    """
    drop_absent(module, arrays, model.family.optional if model.family else ())
    known = recomputed(model)
    if model.factory is not None:
        load_weights(module, arrays, where=model.spec, known=known)
        own = module.state_dict()
        return {name: name if name in own else None for name in arrays}
    tensors = {name: to_torch(array) for name, array in arrays.items() if name not in known}
    towers = model.framework == "mlx" and not (model.family and model.family.map)
    return dict.fromkeys(known) | load_pretrained(module, tensors, model.spec, towers=towers)


def call(
    module: nn.Module, inputs: Mapping[str, torch.Tensor], outputs: tuple[str, ...]
) -> dict[str, torch.Tensor]:
    """Call MODULE by keyword and name its outputs.

    A mapping (ModelOutput) answers by name; a tensor or tuple answers in the signature's order.

    Raises:
        BadInputError: MODULE returns something else.
    """
    result = run_module(module, inputs)
    if isinstance(result, Mapping):
        named = {name: result[name] for name in outputs if name in result}
    else:
        values = result if isinstance(result, tuple | list) else (result,)
        named = dict(zip(outputs, values, strict=False))
    return require_outputs(type(module).__name__, named, outputs, torch.Tensor)


def _first_tensor(value: Any) -> torch.Tensor | None:
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, Mapping):
        value = tuple(value.values())
    return _first_tensor(value[0]) if isinstance(value, tuple | list) and value else None


def _replace_first(value: Any, new: torch.Tensor) -> Any:
    if isinstance(value, torch.Tensor):
        return new
    if isinstance(value, Mapping):
        first = next(iter(value))
        value[first] = _replace_first(value[first], new)  # type: ignore[index]
        return value
    return type(value)((_replace_first(value[0], new), *value[1:]))


class Recorder:
    """Hooks that record every submodule's first input and output, and put corrections in their place.

    Args:
        corrections: by site; ``SITE|in`` corrects what reaches a site.
    """

    def __init__(self, corrections: Arrays | None) -> None:
        self.corrections = corrections or {}
        self.sites: dict[str, Array] = {}

    def seen(self, site: str, value: Any) -> Any:
        """Record the first floating-point tensor in VALUE; return VALUE corrected, or ``None``."""
        tensor = _first_tensor(value)
        if tensor is None or not tensor.is_floating_point():
            return None
        self.sites[site] = to_numpy(tensor)
        if site not in self.corrections:
            return None
        return _replace_first(value, to_torch(self.corrections[site]).to(tensor.dtype))

    def hooks(self, path: str, child: nn.Module) -> tuple[Any, Any]:
        """Watch the submodule CHILD at PATH; a second call of it is another site, ``PATH@1``."""
        calls = itertools.count()
        current = path

        def enter(_: nn.Module, args: Any, kwargs: Any) -> Any:
            nonlocal current
            number = next(calls)
            current = f"{path}@{number}" if number else path
            given = args or kwargs
            corrected = self.seen(current + INPUT, given)
            if corrected is None:
                return None
            return (corrected, kwargs) if args else (args, corrected)

        def leave(_: nn.Module, __: Any, out: Any) -> Any:
            return self.seen(current, out)

        return child.register_forward_pre_hook(
            enter, with_kwargs=True
        ), child.register_forward_hook(leave)


@contextlib.contextmanager
def recording(module: nn.Module, corrections: Arrays | None) -> Iterator[dict[str, Array]]:
    """Record the first input and output of every submodule; return corrections in their place."""
    recorder = Recorder(corrections)
    watched = [(path, child) for path, child in module.named_modules() if path]
    handles = [handle for path, child in watched for handle in recorder.hooks(path, child)]
    try:
        yield recorder.sites
    finally:
        for handle in handles:
            handle.remove()


class TorchRunner:
    """A model in PyTorch.

    Attributes:
        module: the torch module that runs.
    """

    runtime = "torch"

    def __init__(self, model: Model, policy: Policy, module: nn.Module | None = None) -> None:
        self.signature = model.signature
        self.policy = policy
        self.module = build_module(model, policy.parameter_dtype) if module is None else module

    def _feed(self, inputs: Arrays) -> dict[str, torch.Tensor]:
        compute = DTYPES[self.policy.compute]
        tensors = {port.name: to_torch(inputs[port.name]) for port in self.signature.inputs}
        return {
            name: tensor.to(compute) if tensor.is_floating_point() else tensor
            for name, tensor in tensors.items()
        }

    def run(self, inputs: Arrays) -> dict[str, Array]:
        """Return the outputs by port name, in the compute dtype."""
        names = tuple(port.name for port in self.signature.outputs)
        with torch.no_grad():
            outputs = call(self.module, self._feed(inputs), names)
        return {name: to_numpy(tensor) for name, tensor in outputs.items()}

    def trace(self, inputs: Arrays, corrections: Arrays | None = None) -> Trace:
        """Run and record every submodule that returns a floating-point tensor."""
        with recording(self.module, corrections) as sites:
            outputs = self.run(inputs)
        return Trace(outputs, sites)

    def describe(self) -> dict[str, str]:
        """Return version, dtype and BLAS."""
        blas = "mkl" if torch.backends.mkl.is_available() else "other"  # type: ignore[no-untyped-call]
        return {
            "runtime": self.runtime,
            "version": torch.__version__.split("+")[0],
            "device": self.policy.device,
            "dtype": self.policy.compute,
            "accumulate": self.policy.accumulate,
            "blas": blas,
            "threads": str(torch.get_num_threads()),
        }
