"""What a model makes of the arrays of a batch: its call, and what is read from its outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn

from ...converters.common.memory import ran_out
from ...converters.common.users_code import fault_of, first_line
from ...converters.values import Array
from ...errors import BadInputError
from ..evaluation import ANSWERS, without_answers

OF_TRANSFORMERS: Final = {"ids": "input_ids", "mask": "attention_mask"}


def run(model: nn.Module, inputs: Mapping[str, Tensor]) -> Any:
    """Return what MODEL makes of INPUTS: one alone in order, several by name.

    Texts, ``ids`` and ``mask``, are given as transformers calls them.
    """
    if "ids" in inputs:
        return model(**{OF_TRANSFORMERS.get(name, name): value for name, value in inputs.items()})
    return model(*inputs.values()) if len(inputs) == 1 else model(**inputs)


def logits_of(output: Any) -> Tensor:
    """Return the logits of what a model returned: a tensor, a tuple that begins with it, or ``.logits``."""
    if isinstance(output, Tensor):
        return output
    logits: Tensor = output.logits if hasattr(output, "logits") else output[0]
    return logits


def hidden_states(output: Any) -> Tensor:
    """Return the hidden states of what an encoder returned, shape ``(batch, sequence, width)``."""
    if isinstance(output, Tensor):
        return output
    hidden: Tensor = output.last_hidden_state if hasattr(output, "last_hidden_state") else output[0]
    return hidden


@contextmanager
def looked_at(inputs: Mapping[str, Array]) -> Iterator[dict[str, Tensor]]:
    """Yield the arrays of an example as tensors, to run a module on without a gradient.

    Raises:
        BadInputError: they do not fit; says what PyTorch or the model refuses, and the last of the user's own lines.
    """
    tensors = {name: torch.tensor(array) for name, array in inputs.items()}
    try:
        with torch.no_grad():
            yield {n: it.float() if it.is_floating_point() else it for n, it in tensors.items()}
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        if ran_out(error):
            raise
        shapes = ", ".join(f"{name} {[*array.shape]}" for name, array in inputs.items())
        reason = fault_of(error) or first_line(error)
        raise BadInputError(
            f"the model cannot take an example of the data, {shapes}: {reason}"
        ) from error


class Prediction(nn.Module):
    """What a model finds, without a loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: Tensor) -> Tensor:
        """Return the logits, or what a model returns in their place."""
        return logits_of(run(self.model, inputs))


class Supervised(nn.Module):
    """A loss of what the model finds of a batch's inputs, all but ``labels`` or ``target``."""

    evaluated = Prediction

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: Tensor) -> Tensor:
        """Return the loss, a scalar."""
        known = without_answers(inputs)
        (wanted,) = (value for name, value in inputs.items() if name in ANSWERS)
        return self.loss(logits_of(run(self.model, known)), wanted)

    def loss(self, found: Tensor, wanted: Tensor) -> Tensor:
        """Return the loss of what was FOUND where WANTED is right."""
        raise NotImplementedError
