"""One update in MLX: the captured computation, compiled whole, its loss read one step late."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx.utils import tree_flatten, tree_map, tree_unflatten

from ...converters.captures import capture
from ...converters.captures.modes import in_mode
from ...converters.values import Array
from ...errors import UnsupportedError
from ..checks.decisions import require_held
from ..config import TrainConfig
from ..data.batches import Batch
from ..objectives.own import PREFIX
from ..ranks import ALONE, RANDOM, Ranks
from ..runs.length import about
from ..tasks import Task
from ..watching.held import NOTHING, Held, fits_twice
from .base import (
    BUFFERS,
    EXTRAS,
    OPTIMIZER,
    PARAMETERS,
    Arrays,
    Measures,
    below,
    example_of,
    measures,
    shares,
)
from .compiler import compile_problem, optimizer_pays
from .devices import kind_of_mlx
from .memory import Memory
from .mlx_cached import MlxCached, capture_embedding
from .mlx_optimizers import Optimizers, fill
from .mlx_update import Figures, Update, on_processor
from .modes import notices, recomputed, trains
from .scaling import MlxExtras


class MlxStep:
    """A task under training in MLX; see :class:`~.base.Step`."""

    backend = "mlx"
    _held = NOTHING

    def __init__(self, task: Task, config: TrainConfig, ranks: Ranks = ALONE) -> None:
        self.device = kind_of_mlx()
        self.ranks, self._memory = ranks, Memory(_device_memory)
        compiled, problem = _compiler(config.compile)
        self.notices = [*notices(task.module, config.mode)]
        self.notices += [f"MLX runs uncompiled: {problem}"] if problem else []
        self._task = task
        self.chunked = config.grad_cache is not None
        self.weight = task.objective.weight
        self._training = trains(task.module, config.mode)
        self._compute = config.dtype if config.dtype != "float32" else ""
        taken = capture_embedding if self.chunked else _capture_loss
        self.model = taken(task, self._compute, training=self._training)
        self._hold(task)
        again = [PREFIX + path for path in recomputed(task.module, config.checkpoint)]
        if again and (left := self.model.checkpoint(again)):
            self.notices.append(
                f"MLX keeps the values of {', '.join(sorted(left))}: random numbers or batch statistics"
            )
        self.written = _written(self.model) if self._training else ()
        self._evaluated: Any = self.model if config.grad_cache else None
        parameters: Any = dict(tree_flatten(self.model.trainable_parameters()))
        self._optimizer = Optimizers(config.optimizer, parameters)
        self._extras = MlxExtras(config.dtype, config.ema, parameters)
        self._finish = Update(
            self.model, self._optimizer, self._extras, config.clip_norm, self._buffers
        )
        self.ahead = not on_processor()
        mx.random.seed(ranks.seed(config.seed))
        self._cached = (
            MlxCached(self.model, task, config.grad_cache, lambda: self._extras.scale)
            if config.grad_cache
            else None
        )
        self._differentiate: Any = nn.value_and_grad(self.model, self._scaled)
        sizes = [parameter.size for parameter in parameters.values()]
        updates = about(config, task.splits["train"]) // ranks.size
        alone = config.compile is None and not compiled and optimizer_pays(sizes, updates)
        self._build(compiled=compiled, optimizer=compiled or alone)

    def _hold(self, task: Task) -> None:
        """Let the captured module hold codes as they lie, adapters, and what is frozen as it is computed with."""
        for name, why in self.model.set_blocks(_prefixed(task.blocks), strict=False).items():
            self.notices.append(f"{name} is computed with as a dense weight: {why}")
        if task.updates:
            trained: Any = dict(tree_flatten(self.model.trainable_parameters()))
            updates, grids = (_prefixed(it) for it in (task.updates, task.grids.blocks))
            self.model.set_adapters(updates, train=[*trained], grids=grids)
        if self._compute:
            self.model.narrow_frozen()

    def advance(self, batches: Sequence[Batch], learning_rate: float) -> Callable[[], Measures]:
        """Start one update; several batches are evaluated one by one to bound the memory."""
        self._memory.begin()
        if not self._twice:
            self._held.forget()  # or the new state could not take its room
        self._optimizer.set_rate(learning_rate)
        self._enter(self._training)
        parts = shares(self.weight, batches)
        if len(parts) == 1 and not self._cached and self.ranks.size == 1:
            figures = self._update(_feed(parts[0][0].inputs))
        else:
            buffers = self._buffers()
            total, gradients = self._accumulate(parts, sum(map(self.weight, batches)))
            figures = self._finish(total, self._finish.measure(gradients), gradients, buffers)
        changed = self.model.trainable_parameters(), self._buffers(), self._optimizer.state
        mx.async_eval(*figures, changed, self._extras.state, _random_state())

        def read() -> Measures:
            found = measures(*map(_number, figures))
            for batch in batches:
                self._require_held(batch.inputs, found.loss)
            return found

        return read

    def gradients(self, batch: Batch) -> tuple[float, dict[str, Array]]:
        """Return the loss of BATCH and the gradient of every parameter that MLX would train."""
        if self._cached:
            (_, cached), found = self._cached.gradient(batch.inputs)
            return _number(cached), _flat(tree_map(lambda it: it / self._extras.scale, found))
        inputs = _feed(batch.inputs)
        with self._unchanged():
            self._enter(self._training and not self._draws(inputs))
            loss, gradients = nn.value_and_grad(self.model, self._call)(inputs)
            require_held(self.model, inputs, _number(loss))
            return _number(loss), _flat(gradients)

    def loss(self, inputs: Arrays) -> float:
        """Return the loss of a batch in eval mode."""
        self._enter(False)
        with self._averaged():
            loss = self._cached.loss(inputs) if self._cached else self._call(_feed(inputs))
            self._require_held(inputs, _number(loss))
            return _number(loss)

    def embed(self, inputs: Arrays) -> Array:
        """Return what the objective's module for evaluation computes, in eval mode."""
        if self._evaluated is None:
            with in_mode(self._task.evaluated, False) as module:
                dynamic = self._task.objective.evaluated_dynamic
                if dynamic is None:
                    dynamic = {name: {0: "batch"} for name, array in inputs.items() if array.ndim}
                self._evaluated = capture(
                    module, inputs=inputs, dynamic=dynamic, modes="one", compute=self._compute
                )
            self._evaluated.share(self.model)
        with self._averaged():
            found = np.array(self._evaluated(**_feed(inputs)).astype(mx.float32))
            require_held(self._evaluated, inputs, found)
            return found

    def trainable(self) -> dict[str, Array]:
        """Return a copy of every trainable parameter."""
        return _flat(self.model.trainable_parameters())

    def weights(self) -> dict[str, Array]:
        """Return a copy of the parameters or their averages, and of the buffers that train mode writes."""
        return self.trainable() | _flat(self._extras.average) | _flat(self._buffers())

    def assign(self, values: Arrays) -> None:
        """Set trainable parameters, and their averages, or buffers."""
        weights = {name: mx.array(value) for name, value in values.items()}
        self.model.load_weights([*weights.items()], strict=False)
        average = self._extras.average
        average.update({name: weights[name] for name in average.keys() & weights.keys()})

    def state(self) -> dict[str, Array]:
        """Return parameters, buffers, moments, step count and random state, flat."""
        return {name: np.array(it) for name, it in self._tensors().items()}

    def held(self) -> Held:
        """Return the state by reference: arrays of MLX are never written over."""
        self._held = Held(self._tensors(), np.array)
        return self._held

    def _tensors(self) -> dict[str, mx.array]:
        parts = {
            PARAMETERS: self.model.trainable_parameters(),
            BUFFERS: self._buffers(),
            OPTIMIZER: self._optimizer.state,
            EXTRAS: self._extras.state,
        }
        flat: Any = {kind: tree_flatten(part) for kind, part in parts.items()}
        named = {kind + name: it for kind, leaves in flat.items() for name, it in leaves}
        return named | {RANDOM: _random_state()[0]}

    def random(self) -> Array:
        """Return the random state."""
        return np.array(_random_state()[0])

    def restore(self, state: Arrays) -> None:
        """Go back to a state."""
        self.assign(below(PARAMETERS, state) | below(BUFFERS, state))
        for kind, part in ((OPTIMIZER, self._optimizer.state), (EXTRAS, self._extras.state)):
            fill(part, {name: mx.array(value) for name, value in below(kind, state).items()})
        _seed(state[RANDOM])

    def peak_memory(self) -> int:
        """Return the most bytes in use beyond what there was at the start."""
        return self._memory.peak()

    def passes(self, batch: Batch) -> tuple[Callable[[], object], Callable[[], object]]:
        """Return a forward pass on BATCH and one with its backward pass, compiled as an update is."""
        forward = self._cached.loss if self._cached else self._forward
        return (
            lambda: mx.eval(forward(batch.inputs)),
            lambda: mx.eval(self._gradient(batch.inputs)),
        )

    def _build(self, *, compiled: bool, optimizer: bool) -> None:
        """Set the functions of an update, COMPILED with everything that they change, or the OPTIMIZER's alone."""
        self._twice = fits_twice(sum(it.nbytes for it in self._tensors().values()))
        state = [self.model.state, self._optimizer.state, self._extras.state, _random_state()]
        compiler = partial(mx.compile, inputs=state, outputs=state)
        wrap: Any = compiler if compiled else lambda function: function
        self._measured = wrap(self._differentiate_measured)
        self._update = wrap(self._update_whole) if self.ahead else self._update_looked_at
        forward, differentiate = wrap(self._scaled), wrap(self._differentiate)
        self._forward: Any = lambda inputs: forward(_feed(inputs))
        self._gradient: Any = lambda inputs: differentiate(_feed(inputs))
        self._finish.build(compiler if optimizer else wrap)
        if self._cached:
            self._cached.build(wrap)
            self._gradient = partial(self._cached.gradient, ranks=self.ranks)

    def _require_held(self, inputs: Arrays, loss: float) -> None:
        """Refuse INPUTS of LOSS where the model would decide otherwise than recorded."""
        if not self._cached:  # that looks itself, at every part
            require_held(self.model, inputs, loss)

    def _call(self, inputs: dict[str, mx.array]) -> mx.array:
        loss: mx.array = self.model(**inputs).astype(mx.float32)
        return loss

    def _scaled(self, inputs: dict[str, mx.array]) -> tuple[mx.array, mx.array]:
        """Return the loss times its scale, which is differentiated, and the loss."""
        loss = self._call(inputs)
        return loss * self._extras.scale, loss

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        """Let the parameters have their averages in the block, where there are some."""
        average = self._extras.average
        own: Any = dict(tree_flatten(self.model.trainable_parameters())) if average else {}
        self.model.load_weights([*average.items()], strict=False)
        yield
        self.model.load_weights([*own.items()], strict=False)

    def _enter(self, training: bool) -> None:
        """Go into train or eval mode."""
        if self.model.training is not training:
            self.model.train(training)

    def _buffers(self) -> dict[str, mx.array]:
        """Return the buffers that train mode writes."""
        if not self.written:
            return {}
        tensors: Any = dict(tree_flatten(self.model.parameters()))
        return {name: tensors[name] for name in self.written}

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Put buffers and random state back after the block."""
        buffers, key = self._buffers(), np.array(_random_state()[0])
        yield
        self.model.load_weights([*buffers.items()], strict=False)
        _seed(key)

    def _draws(self, inputs: dict[str, mx.array]) -> bool:
        """Return whether train mode draws random numbers; nothing but their state is computed."""
        with self._unchanged():
            before = np.array(_random_state()[0])
            self._enter(True)
            self._call(inputs)
            return not np.array_equal(before, np.array(_random_state()[0]))

    def _differentiate_measured(self, inputs: dict[str, mx.array]) -> tuple[mx.array, Any, Any]:
        (_, loss), gradients = self._differentiate(inputs)
        return loss, self._finish.norm(gradients), gradients

    def _update_looked_at(self, inputs: dict[str, mx.array]) -> Figures:
        """Update in two functions: what is not finite does not get into the second."""
        buffers = self._buffers()
        loss, norm, gradients = self._measured(inputs)
        return self._finish(loss, norm, gradients, buffers)

    def _update_whole(self, inputs: dict[str, mx.array]) -> Figures:
        buffers = self._buffers()
        (_, loss), gradients = self._differentiate(inputs)
        return self._finish.unseen(loss, gradients, buffers)

    def _accumulate(
        self, parts: Sequence[tuple[Batch, float]], weight: float
    ) -> tuple[mx.array, Any]:
        """Return the sums of loss and gradient over batches, each times its share, the mean of all ranks."""
        total: Any = None
        for batch, share in parts:
            (_, loss), gradients = self._gradient(batch.inputs)
            part = tree_map(lambda x, w=share: x * w, (loss, gradients))
            total = part if total is None else tree_map(mx.add, total, part)
            mx.eval(total, self._buffers())
        if self.ranks.size > 1:
            names, arrays = zip(*tree_flatten(total), strict=True)
            means = self.ranks.average([*arrays], weight)
            total = tree_unflatten([*zip(names, means, strict=True)])
        return total[0], total[1]


def _capture_loss(task: Task, compute: str, *, training: bool) -> Any:
    """Capture the loss module of TASK, its parts in their own modes or all of it in eval mode.

    Raises:
        UnsupportedError: it cannot be recorded; says whether it can in eval mode.
    """
    example = example_of(task.splits["train"]).inputs
    try:
        with in_mode(task.loss, training) as module:
            return capture(module, inputs=example, dynamic=task.objective.dynamic, compute=compute)
    except UnsupportedError as error:
        if not training:
            raise
        _capture_loss(task, compute, training=False)
        raise UnsupportedError(
            f"in train mode: {error}; in eval mode it can be recorded: --set mode=eval trains it so,"
            " without dropout and with its batch statistics as they are"
        ) from error


def _prefixed(them: Mapping[str, Any]) -> dict[str, Any]:
    """Return THEM by their names in the loss module."""
    return {PREFIX + name: it for name, it in them.items()}


def _written(model: Any) -> tuple[str, ...]:
    """Return the names of the buffers that MODEL writes in train mode."""
    recording = model.in_mode(True)
    return tuple(sorted({recording.names[name][0] for name in recording.writes.values()}))


def _compiler(wanted: bool | None) -> tuple[bool, str | None]:
    """Return whether to compile, and why not although it is WANTED."""
    if wanted is None:
        return not on_processor(), None
    on_linux_cpu = on_processor() and sys.platform == "linux"
    problem = compile_problem() if wanted and on_linux_cpu else None
    if problem:
        mx.disable_compile()  # MLX compiles some of its own activations too
    return wanted and not problem, problem


def _device_memory() -> int:
    """Return the most bytes in use of a GPU with memory of its own."""
    return int(mx.get_peak_memory()) if mx.cuda.is_available() else 0


def _random_state() -> Any:
    return mx.random.state  # untyped in the stubs


def _seed(key: Array) -> None:
    """Set the random state to KEY: in MLX 0.32 there is no other way."""
    mx.random.seed((int(key[0]) << 32) | int(key[1]))


def _feed(inputs: Arrays) -> dict[str, mx.array]:
    return {name: mx.array(value) for name, value in inputs.items()}


def _number(array: mx.array) -> float:
    return float(np.array(array))


def _flat(tree: Any) -> dict[str, Array]:
    leaves: Any = tree_flatten(tree)
    return {name: np.array(value) for name, value in leaves}
