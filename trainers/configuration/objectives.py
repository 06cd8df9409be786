"""What a run minimises."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, Tag

from .section import CUSTOM, Section, chosen_by


class CausalObjective(Section):
    """Cross entropy of every next token of ``labels``; -100 is none."""

    name: Literal["causal_lm"]


class ClassificationObjective(Section):
    """Cross entropy of ``labels``: one class of each example, or 1 for every class that it has."""

    name: Literal["classification"]


class ContrastiveObjective(Section):
    """Symmetric InfoNCE over the pairs of a batch."""

    name: Literal["contrastive"]
    temperature: PositiveFloat = 0.05


class RegressionObjective(Section):
    """Mean squared error of what the model finds from ``target`` (or ``labels``)."""

    name: Literal["regression"]


class CustomObjective(Section):
    """A torch module of the user's, ``module:Class``, made of the model and OPTIONS.

    Its ``forward`` takes the arrays of a batch by name and returns the loss.
    """

    name: Annotated[str, Field(pattern=":")]
    options: dict[str, Any] = Field({})


Objective = Annotated[
    Annotated[CausalObjective, Tag("causal_lm")]
    | Annotated[ClassificationObjective, Tag("classification")]
    | Annotated[ContrastiveObjective, Tag("contrastive")]
    | Annotated[RegressionObjective, Tag("regression")]
    | Annotated[CustomObjective, Tag(CUSTOM)],
    chosen_by("name"),
]
