"""What stops or misleads ``torch.export`` and can be put right without changing a result, for a while."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, cast
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.grad_mode import inference_mode
from torch.distributions import Distribution, Gamma
from torch.export import _trace
from torch.fx.experimental import symbolic_shapes
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from .....errors import UnsupportedError
from .deciding.sized import sizes_taken
from .places import line_of_caller

_SHAPES: Final = logging.getLogger(symbolic_shapes.__name__)
_DATA: Final = torch.Tensor.data
_NORMALIZE: Final = _BatchNorm.forward
_ANY: Final = torch.any
_TO: Final = torch.nn.Module.to
_CACHES: Final = {"past_key_values", "use_cache"}  # inputs that ask for one
_BY_VALUES: Final = (None, "eager")  # ways to compute experts that look at values


def _enter(block: Any) -> None:
    """Enter an inference block as ``torch.no_grad``, which recording knows: its gradient stops too."""
    block.grad_was_on = torch.is_grad_enabled()
    torch._C._set_grad_enabled(block.grad_was_on and not block.mode)


def _leave(block: Any, *_error: object) -> None:
    torch._C._set_grad_enabled(block.grad_was_on)


def _read_data(tensor: torch.Tensor) -> Any:
    """Return ``tensor.data``; that of a tensor being recorded is ``tensor.detach()``, which is recorded."""
    if isinstance(tensor, FakeTensor):
        return tensor.detach()
    return _DATA.__get__(tensor)  # type: ignore[attr-defined]


def _write_data(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Set ``tensor.data``.

    Raises:
        UnsupportedError: TENSOR is being recorded: the graph would have its values from before.
    """
    if isinstance(tensor, FakeTensor):
        raise UnsupportedError(
            "a tensor that gets other values by .data = cannot be recorded: give them another name"
            f" and use that ({line_of_caller()})"
        )
    _DATA.__set__(tensor, value)  # type: ignore[attr-defined]


def _plain_average(norm: Any, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
    """Normalize by the batch, and keep the plain average over batches (``momentum=None``).

    torch reads the count of batches as a number for that, which cannot be recorded.
    """
    if norm.momentum is not None or not norm.training or norm.running_mean is None:
        return _NORMALIZE(norm, input)
    norm._check_input_dim(input)
    norm.num_batches_tracked.add_(1)
    axes = [0, *range(2, input.ndim)]
    with torch.no_grad():
        share = 1 / norm.num_batches_tracked
        for kept, new in (
            (norm.running_mean, input.mean(axes)),
            (norm.running_var, input.var(axes, correction=1)),
        ):
            kept.copy_(torch.lerp(kept, new, share))
    return functional.batch_norm(input, None, None, norm.weight, norm.bias, True, 0.0, norm.eps)


def _to(module: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
    """Return MODULE where it has the dtype that it shall have: devices mean nothing here."""
    dtype: Any = torch._C._nn._parse_to(*args, **kwargs)[1]
    held = (tensor.dtype for tensor in (*module.parameters(), *module.buffers()))
    kept = dtype is None or all(it == dtype for it in held if it.is_floating_point)
    return module if kept else _TO(module, *args, **kwargs)


def _drawn(gamma: Gamma, sample_shape: Any = ()) -> torch.Tensor:
    """Draw as ``Gamma.rsample``, which lifts draws that round to 0 in place, hidden from the gradient."""
    shape = gamma._extended_shape(torch.Size(sample_shape))
    value = torch._standard_gamma(gamma.concentration.expand(shape)) / gamma.rate.expand(shape)
    least = torch.finfo(value.dtype).tiny
    return torch.where(value < least, value - value.detach() + least, value)


def _any(*args: Any, **kwargs: Any) -> Any:
    """Do as ``torch.any``, but where the Gaussian loss asks whether a variance is negative."""
    asks = sys._getframe(1).f_code is functional.gaussian_nll_loss.__code__
    return False if asks else _ANY(*args, **kwargs)


def _given(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:  # noqa: ARG001
    """Take a mask of ``nn.Transformer`` as it is: whether it is causal decides about speed alone."""
    return bool(is_causal)


def _without_padding(
    padding_mask: Any, kv_length: int, local_attention_size: int | None = None
) -> bool:
    """Tell whether transformers needs no mask, as when nothing is recorded: then it always makes one.

    Some models give one mask to layers of several lengths, where only none fits.
    """
    near = local_attention_size is None or kv_length < local_attention_size
    return padding_mask is None and near


def _masks() -> Iterator[tuple[Any, str, Any]]:
    """Yield module, name and function of what makes masks by their values."""
    yield torch.nn.modules.transformer, "_detect_is_causal_mask", _given
    masks = sys.modules.get("transformers.masking_utils")
    if hasattr(masks, "_ignore_bidirectional_mask_sdpa"):
        yield masks, "_ignore_bidirectional_mask_sdpa", _without_padding


def _configurations(module: torch.nn.Module) -> list[Any]:
    """Return the configurations of transformers that MODULE and its parts hold, each once."""
    found: dict[int, Any] = {}
    waiting = [getattr(part, "config", None) for part in module.modules()]
    while waiting:
        config = waiting.pop()
        if hasattr(config, "to_dict") and id(config) not in found:
            found[id(config)] = config
            waiting += [getattr(config, name, None) for name in getattr(config, "sub_configs", ())]
    return list(found.values())


def _settings(module: torch.nn.Module, inputs: Mapping[str, Any]) -> Iterator[tuple[Any, str, Any]]:
    """Yield configuration, name and value of what is to be set while MODULE is recorded on INPUTS.

    Experts are computed in groups of tokens, one product each, as ``grouped_mm`` does: a loop over
    experts asks which of them got any. The cache of keys and values, which no graph can return, is left out where INPUTS do not ask for it.
    """
    for config in _configurations(module):
        own = vars(config)
        if own.get("_experts_implementation_internal", "grouped_mm") in _BY_VALUES:
            yield config, "_experts_implementation_internal", "grouped_mm"
        if own.get("use_cache") and "past_key_values" not in inputs:
            yield config, "use_cache", False


def _without_cache(own: Callable[..., Any]) -> Callable[..., Any]:
    """Return OWN, a forward of transformers, with a result that holds no cache: some give one unasked."""
    cache: Any = sys.modules["transformers.cache_utils"].Cache

    @functools.wraps(own)
    def forward(*args: Any, **kwargs: Any) -> Any:
        result = own(*args, **kwargs)
        if not isinstance(result, Mapping):
            return result
        kept = {name: it for name, it in result.items() if not isinstance(it, cache)}
        return result if len(kept) == len(result) else cast(Any, type(result))(**kept)

    # A signature that a function says of itself has a ``self``, which is bound here.
    vars(forward)["__signature__"] = inspect.signature(own)
    return forward


@contextlib.contextmanager
def cured(module: torch.nn.Module, inputs: Mapping[str, Any]) -> Iterator[None]:
    """Let MODULE be recorded in the block on INPUTS; all that is changed is put back after it.

    Inference blocks, ``.data`` and plain averages are recorded as what they mean, checks of values in
    ``torch.distributions`` and of variances are off, layers are not cast to what they are, and configurations of transformers are set as in ``_settings``.
    What torch would print of the graph when it fails is left out: the error says the line.
    """
    with contextlib.ExitStack() as stack:
        for config, name, value in _settings(module, inputs):
            stack.enter_context(mock.patch.dict(vars(config), {name: value}))
        stack.enter_context(mock.patch.object(_trace, "print", create=True))
        stack.enter_context(mock.patch.object(_SHAPES, "disabled", new=True))
        stack.enter_context(mock.patch.object(Distribution, "_validate_args", False))
        for name, function in (("__enter__", _enter), ("__exit__", _leave)):
            stack.enter_context(mock.patch.object(inference_mode, name, function))
        for owner, name, function in _masks():
            stack.enter_context(mock.patch.object(owner, name, function))
        stack.enter_context(mock.patch.object(_BatchNorm, "forward", _plain_average))
        stack.enter_context(mock.patch.object(Gamma, "rsample", _drawn))
        stack.enter_context(mock.patch.object(torch, "any", _any))
        stack.enter_context(sizes_taken())
        stack.enter_context(mock.patch.object(torch.nn.Module, "to", _to))
        stack.enter_context(
            mock.patch.object(torch.Tensor, "data", property(_read_data, _write_data), create=True)
        )
        if "transformers.cache_utils" in sys.modules and not _CACHES & set(inputs):
            forward = _without_cache(module.forward)
            stack.enter_context(mock.patch.object(module, "forward", forward))
        yield
