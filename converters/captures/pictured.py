"""A torch module recorded with pictures in the place of the numbers that it takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..models.pictures import Picture
from ..models.signature import Signature
from .positional import Positional


class Pictured(Positional):
    """A module that is given pictures, 0 to 255; see ``Positional``.

    With SCORES, an output, it gives their softmax besides.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        signature: Signature,
        pictures: Mapping[str, Picture],
        scores: str | None = None,
    ) -> None:
        super().__init__(module, signature)
        self.pictures, self.scores = dict(pictures), scores

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Call the module by name and return its outputs in the order of the signature."""
        given = dict(zip(self.names, inputs, strict=True))
        given |= {name: numbers(it, given[name]) for name, it in self.pictures.items()}
        outputs = super().forward(*given.values())
        if self.scores is None:
            return outputs
        scores = outputs[self.outputs.index(self.scores)]
        return (*outputs, torch.softmax(scores, -1))


def numbers(picture: Picture, given: Tensor) -> Tensor:
    """Return what a model is given of a PICTURE with the numbers GIVEN, 0 to 255."""
    mean, scale = (
        torch.tensor(it, dtype=torch.float32).reshape(1, -1, 1, 1)
        for it in (picture.mean, [1 / std for std in picture.std])
    )
    return (given - mean) * scale


def before_model(graph: Any, taken: Sequence[bool]) -> Iterator[str]:
    """Yield the nodes of GRAPH that make numbers of pictures; TAKEN says which of its inputs are some."""
    own = zip(graph.graph_signature.user_inputs, taken, strict=True)
    pictures = {name for name, is_picture in own if is_picture}
    for node in (it for it in graph.graph.nodes if it.name in pictures):
        for first in node.users:
            yield first.name
            yield from (second.name for second in first.users)
