"""What a run minimises."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, Tag

from .section import CUSTOM, Section, chosen_by


class CausalObjective(Section):
    """Cross entropy of every next token of ``labels``; -100 is none."""

    name: Literal["causal_lm"]


class ClassificationObjective(Section):
    """Cross entropy of ``labels``: one class of each example, or 1 for every class that it has."""

    name: Literal["classification"]


class MaskedObjective(Section):
    """Cross entropy of the tokens that were hidden, those whose ``labels`` are not -100."""

    name: Literal["masked_lm"]


class ContrastiveObjective(Section):
    """InfoNCE over the pairs of a batch: each query finds its document, SYMMETRIC also the reverse."""

    name: Literal["contrastive"]
    temperature: PositiveFloat = 0.05
    symmetric: bool = True


class MarginObjective(Section):
    """Each document of a batch but its own is MARGIN further from a query, by cosine."""

    name: Literal["margin"]
    margin: PositiveFloat = 0.3


class TripletObjective(Section):
    """The ``negative_*`` of a query are MARGIN further away than its document."""

    name: Literal["triplet"]
    margin: PositiveFloat = 0.3
    distance: Literal["cosine", "euclidean"] = "cosine"


class MaxSimObjective(Section):
    """InfoNCE of late interaction, with a margin where MARGIN_WEIGHT is not 0.

    With TOP_K only that many matches of each token of a query within the batch count (XTR).
    """

    name: Literal["maxsim"]
    temperature: PositiveFloat = 1.0
    margin: PositiveFloat = 0.3
    margin_weight: Annotated[float, Field(ge=0)] = 0.0
    top_k: PositiveInt | None = None


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
    | Annotated[MarginObjective, Tag("margin")]
    | Annotated[MaskedObjective, Tag("masked_lm")]
    | Annotated[MaxSimObjective, Tag("maxsim")]
    | Annotated[RegressionObjective, Tag("regression")]
    | Annotated[TripletObjective, Tag("triplet")]
    | Annotated[CustomObjective, Tag(CUSTOM)],
    chosen_by("name"),
]
