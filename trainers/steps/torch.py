"""One update in PyTorch: the other half of every parity check of a training run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils.checkpoint import checkpoint

from ...converters.captures.modes import in_mode
from ...converters.values import Array
from ...errors import UnsupportedError
from ..config import TrainConfig
from ..data.batches import Batch
from ..objectives.own import kept_as_they_are, tie
from ..ranks import ALONE, RANDOM, Ranks
from ..tasks import Task
from ..watching.held import NOTHING, Held
from .base import (
    BUFFERS,
    EXTRAS,
    PARAMETERS,
    Arrays,
    Measures,
    below,
    example_of,
    measures,
    shares,
)
from .cached import differentiate
from .devices import device_for, most_memory, random_state, set_random_state
from .memory import Memory
from .modes import notices, recomputed, trains, with_statistics
from .scaling import TorchExtras
from .torch_adapters import modules_of, rounded_parameters
from .torch_optimizers import Optimizers


class TorchStep:
    """A task under training in PyTorch; see :class:`~.base.Step`.

    Args:
        task: what is trained; its module is copied.
        config: the run.
        dtype: ``float32``, or ``float64`` for a reference, which is computed on the CPU.
        ranks: that take part in every update.

    Raises:
        BadInputError: the run is to compute on a GPU, and there is none.
        UnsupportedError: values are to be computed again in a compiled step.
    """

    backend = "torch"
    ahead = False

    def __init__(
        self, task: Task, config: TrainConfig, dtype: str = "float32", ranks: Ranks = ALONE
    ) -> None:
        self.ranks = ranks
        self._device = device_for(config.device if dtype == "float32" else "cpu")
        self.device = self._device.type
        self._memory = Memory(most_memory(self._device))
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._compute: torch.dtype = (
            self._dtype if dtype != "float32" else getattr(torch, config.dtype)
        )
        self.chunked = config.grad_cache is not None
        self.weight = task.objective.weight
        self._loss, self._evaluated = (it.to(self._device, self._dtype) for it in modules_of(task))
        for path in recomputed(self._loss.model, config.checkpoint):
            _recompute(self._loss.model.get_submodule(path))
        self._chunk, self._of_embeddings = config.grad_cache, task.objective.make_from_embeddings
        self._training = trains(task.module, config.mode)
        self._rounded = rounded_parameters(self._loss.model, task.grids.blocks)
        self.notices = notices(task.module, config.mode)
        if not self._training:
            self._loss.eval()
        self._parameters: dict[str, nn.Parameter] = {
            name: value for name, value in self._loss.named_parameters() if value.requires_grad
        }
        tie(self._evaluated, self._loss)
        if self._compute != self._dtype:
            _narrow_frozen((self._loss, self._evaluated), self._compute, self._rounded)
        self._optimizer = Optimizers(config.optimizer, self._parameters)
        self._extras = TorchExtras(config.dtype, config.ema, self._parameters)
        self._clip = config.clip_norm
        self._buffers: dict[str, Tensor] = {}
        self._draws = False
        self._held = NOTHING
        if self._training:
            self._look(example_of(task.splits["train"]))
        self._compiled = _compiled(config)
        torch.manual_seed(ranks.seed(config.seed))

    def advance(self, batches: Sequence[Batch], learning_rate: float) -> Callable[[], Measures]:
        """Update at once; the measures are there already."""
        self._memory.begin()
        self._optimizer.zero_grad()
        kept = _copies(self._buffers)
        total = 0.0
        for batch, share in shares(self.weight, batches):
            total += share * self._backward(batch.inputs, share * self._extras.scale, self.ranks)
        total = self._mean(total, sum(map(self.weight, batches)))
        found = measures(total, self._clip_gradients(), self._extras.scale)
        self._held.forget()  # from here on everything is written in place
        if found.finite:
            self._optimizer.step(learning_rate)
        else:
            self._put_back(kept)
        self._extras.after(finite=found.finite, parameters=self._parameters)
        return lambda: found

    def gradients(self, batch: Batch) -> tuple[float, dict[str, Array]]:
        """Return the loss of BATCH and every gradient; a parameter not in its graph has none."""
        self._optimizer.zero_grad()
        kept = _copies(self._buffers)
        with in_mode(self._loss, not self._draws):
            loss = self._backward(batch.inputs)
        self._put_back(kept)
        found = {
            name: value.grad.numpy(force=True).copy()
            for name, value in self._loss.named_parameters()
            if value.grad is not None
        }
        self._optimizer.zero_grad()
        return loss, found

    def passes(self, batch: Batch) -> tuple[Callable[[], object], Callable[[], object]]:
        """Return a forward pass on BATCH as an update has it, and one with its backward pass."""
        inputs = batch.inputs

        def backward() -> None:
            self._optimizer.zero_grad()
            self._backward(inputs)

        if self.chunked:
            return lambda: self.loss(inputs), backward
        return lambda: self._run(self._loss, inputs).item(), backward

    @torch.no_grad()
    def loss(self, inputs: Arrays) -> float:
        """Return the loss of a batch in eval mode."""
        with in_mode(self._loss, False), self._averaged():
            return float(self._run(self._loss, inputs).item())

    @torch.no_grad()
    def embed(self, inputs: Arrays) -> Array:
        """Return what the objective's module for evaluation computes, in eval mode."""
        with in_mode(self._evaluated, False), self._averaged():
            return self._embed(inputs)

    def trainable(self) -> dict[str, Array]:
        """Return a copy of every trainable parameter."""
        return _arrays(self._parameters)

    def weights(self) -> dict[str, Array]:
        """Return a copy of the parameters or their averages, and of the buffers that train mode writes."""
        return self.trainable() | _arrays(self._extras.average) | _arrays(self._buffers)

    @torch.no_grad()
    def assign(self, values: Arrays) -> None:
        """Set trainable parameters, and their averages, or buffers."""
        self._held.forget()
        for places in (self._parameters | self._buffers, self._extras.average):
            for name in places.keys() & values.keys():
                places[name].copy_(torch.from_numpy(np.array(values[name])))

    def state(self) -> dict[str, Array]:
        """Return parameters, buffers, moments, step counts and random state, flat."""
        return _arrays(self._tensors())

    def held(self) -> Held:
        """Return the state: buffers and random numbers, which a forward pass changes, are copied."""
        buffers = {f"{BUFFERS}{name}": it for name, it in _copies(self._buffers).items()}
        self._held = Held(self._tensors() | buffers, _array)
        return self._held

    def _tensors(self) -> dict[str, Tensor]:
        state = {f"{PARAMETERS}{name}": it.data for name, it in self._parameters.items()}
        state |= {f"{BUFFERS}{name}": it for name, it in self._buffers.items()}
        state |= {f"{EXTRAS}{name}": it for name, it in self._extras.state().items()}
        return state | self._optimizer.state() | {RANDOM: random_state(self._device)}

    def random(self) -> Array:
        """Return the random state."""
        return random_state(self._device).numpy().copy()

    def restore(self, state: Arrays) -> None:
        """Go back to a state."""
        self.assign(below(PARAMETERS, state) | below(BUFFERS, state))
        self._optimizer.restore(state)
        self._extras.restore(below(EXTRAS, state))
        set_random_state(torch.from_numpy(np.array(state[RANDOM])), self._device)

    @property
    def written(self) -> tuple[str, ...]:
        """The names of the buffers that train mode writes."""
        return (*self._buffers,)

    def peak_memory(self) -> int:
        """Return the most bytes in use beyond what there was at the start."""
        return self._memory.peak()

    def _run(self, module: nn.Module, inputs: Arrays) -> Tensor:
        """Run MODULE in the dtype to compute in; what it returns is in that of the parameters."""
        tensors = {name: self._narrow(self._here(value)) for name, value in inputs.items()}
        own = {} if self._compute == self._dtype else dict(module.named_parameters())
        wide = with_statistics(module) if own else set()
        narrowed = {
            name: self._narrow(it)
            for name, it in own.items()
            if name not in wide and id(it) not in self._rounded
        }
        call = (
            self._compiled if module is self._loss and torch.is_grad_enabled() else functional_call
        )
        output: Tensor = call(module, narrowed, (), tensors)
        return output.to(self._dtype)

    def _mean(self, loss: float, weight: float) -> float:
        """Let the gradients be the means of those of all ranks, and return the mean of the losses."""
        if self.ranks.size == 1:
            return loss
        parameters = [*self._parameters.values()]
        own = [torch.zeros_like(it) if it.grad is None else it.grad for it in parameters]
        mean, *means = self.ranks.average([torch.tensor(loss, dtype=torch.float64), *own], weight)
        for parameter, gradient in zip(parameters, means, strict=True):
            parameter.grad = gradient
        return float(mean)

    def _backward(self, inputs: Arrays, factor: float = 1.0, ranks: Ranks = ALONE) -> float:
        """Add the gradient of FACTOR times the loss of a batch, and return the loss.

        Of several RANKS the gradient is the mean of what each adds.
        """
        if self._chunk is None or self._of_embeddings is None:
            loss = self._run(self._loss, inputs)
            if loss.requires_grad:  # preflight says of one that does not what is wrong
                (loss * factor).backward()  # type: ignore[no-untyped-call]
            return float(loss.item())
        module = self._of_embeddings().to(self._device)

        def judge(made: Arrays, texts: Arrays) -> tuple[float, Arrays]:
            given = {name: self._here(it).requires_grad_() for name, it in made.items()}
            loss = module(**given, **{name: self._here(it) for name, it in texts.items()})
            gradients = torch.autograd.grad(loss * factor, [*given.values()])
            return float(loss.item()), {
                name: it.numpy(force=True) for name, it in zip(given, gradients, strict=True)
            }

        def backward(part: Arrays, gradient: Array) -> None:
            embeddings = self._run(self._evaluated, part)
            embeddings.backward(self._here(gradient))  # type: ignore[no-untyped-call]

        return differentiate(inputs, self._chunk, self._embed, judge, backward, ranks)

    @torch.no_grad()
    def _embed(self, part: Arrays) -> Array:
        return np.asarray(self._run(self._evaluated, part).numpy(force=True))

    def _here(self, array: Array) -> Tensor:
        return torch.tensor(array, device=self._device)

    def _narrow(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._compute) if tensor.is_floating_point() else tensor

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        """Let the parameters have their averages in the block, where there are some."""
        kept = {name: self._parameters[name].data for name in self._extras.average}
        for name, average in self._extras.average.items():
            self._parameters[name].data = average
        yield
        for name, own in kept.items():
            self._parameters[name].data = own

    @torch.no_grad()
    def _look(self, batch: Batch) -> None:
        """Find out what train mode does besides computing: the buffers it writes, and random numbers."""
        buffers = dict(self._loss.named_buffers())
        kept, random = _copies(buffers), random_state(self._device)
        with kept_as_they_are(self._loss):
            self._run(self._loss, batch.inputs)
        self._draws = not torch.equal(random, random_state(self._device))
        self._buffers = {
            name: value for name, value in buffers.items() if not torch.equal(value, kept[name])
        }
        self._put_back(kept)

    @torch.no_grad()
    def _put_back(self, kept: Mapping[str, Tensor]) -> None:
        """Set the buffers back to what was KEPT of them."""
        for name, value in self._buffers.items():
            value.copy_(kept[name])

    def _clip_gradients(self) -> float:
        limit = self._clip if self._clip is not None else float("inf")
        for value in self._parameters.values() if self._extras.scale != 1 else ():
            if value.grad is not None:
                value.grad /= self._extras.scale
        return float(nn.utils.clip_grad_norm_(self._parameters.values(), limit).item())


def _compiled(config: TrainConfig) -> Callable[..., Any]:
    """Return what calls a loss for an update, compiled if CONFIG says so."""
    if not config.compile:
        return functional_call
    if config.checkpoint:
        raise UnsupportedError(
            "compile: PyTorch does not compile modules whose values are computed again; leave out compile"
            " or checkpoint"
        )
    compiled: Callable[..., Any] = torch.compile(functional_call, dynamic=True)
    return compiled


def _narrow_frozen(modules: Sequence[nn.Module], dtype: torch.dtype, wide: set[int]) -> None:
    """Hold the parameters of MODULES that are not trained in DTYPE, all but those of WIDE, by id."""
    made: dict[
        int, tuple[Tensor, Tensor]
    ] = {}  # with what was there, so that no other takes its place
    for module in modules:
        statistics = with_statistics(module)
        for name, it in module.named_parameters():
            if it.requires_grad or id(it) in wide or name in statistics:
                continue
            old = it.data
            it.data = made.setdefault(old.data_ptr(), (old, old.to(dtype)))[1].view_as(old)


def _recompute(module: nn.Module) -> None:
    """Let MODULE keep nothing for the gradient but its inputs and parameters."""
    forward = module.forward

    def again(*arguments: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*arguments, **named)
        own: dict[str, Tensor] = {
            **dict(module.named_parameters())
        }  # 16 bits are gone the second time

        def run(*arguments: Any, **named: Any) -> Any:
            with _reparametrize_module(module, own):
                return forward(*arguments, **named)

        contexts = lambda: (nullcontext(), _buffers_kept(module))  # noqa: E731
        return checkpoint(run, *arguments, use_reentrant=False, context_fn=contexts, **named)

    module.forward = again


@contextmanager
def _buffers_kept(module: nn.Module) -> Iterator[None]:
    """Put the buffers of MODULE back after the block: statistics count a batch once."""
    kept = _copies(dict(module.named_buffers()))
    try:
        yield
    finally:  # torch leaves the block by an error as soon as it has what it needs
        with torch.no_grad():
            for name, value in module.named_buffers():
                value.copy_(kept[name])


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in tensors.items()}


def _arrays(tensors: Mapping[str, Tensor]) -> dict[str, Array]:
    return {name: _array(value) for name, value in tensors.items()}


def _array(tensor: Tensor) -> Array:
    return tensor.numpy(force=True).copy()
