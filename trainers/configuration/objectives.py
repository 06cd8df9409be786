"""What a run minimises."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt, Tag

from .section import CUSTOM, Fraction, Section, chosen_by


def _absolute(spec: str) -> str:
    """Return SPEC, absolute where it is a path: a run may be resumed anywhere."""
    return str(Path(spec).absolute()) if Path(spec).exists() else spec


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


class DistillationObjective(Section):
    """The distance of the logits from those of TEACHER, a directory or ``module:factory``.

    By COMPARE ``kl`` (of softmaxes at TEMPERATURE) or ``mse``; HARD is the share of the loss of labels.
    """

    name: Literal["distillation"]
    teacher: Annotated[str, AfterValidator(_absolute)]
    trust_code: str | None = None
    compare: Literal["kl", "mse"] = "kl"
    temperature: PositiveFloat = 2.0
    hard: Fraction = 0.0


class DPOObjective(Section):
    """Direct preference optimisation against the model as it was, BETA being how far it may go from it."""

    name: Literal["dpo"]
    beta: PositiveFloat = 0.1


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
    With WIDTH the model's hidden states are projected to it, by a fixed projection.
    """

    name: Literal["maxsim"]
    temperature: PositiveFloat = 1.0
    margin: PositiveFloat = 0.3
    margin_weight: Annotated[float, Field(ge=0)] = 0.0
    top_k: PositiveInt | None = None
    width: PositiveInt | None = None


class RegressionObjective(Section):
    """Mean squared error of what the model finds from ``target`` (or ``labels``)."""

    name: Literal["regression"]


class Seq2SeqObjective(Section):
    """Cross entropy of every token of a pair's document, which an encoder-decoder writes for its query."""

    name: Literal["seq2seq_lm"]


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
    | Annotated[DistillationObjective, Tag("distillation")]
    | Annotated[DPOObjective, Tag("dpo")]
    | Annotated[MarginObjective, Tag("margin")]
    | Annotated[MaskedObjective, Tag("masked_lm")]
    | Annotated[MaxSimObjective, Tag("maxsim")]
    | Annotated[RegressionObjective, Tag("regression")]
    | Annotated[Seq2SeqObjective, Tag("seq2seq_lm")]
    | Annotated[TripletObjective, Tag("triplet")]
    | Annotated[CustomObjective, Tag(CUSTOM)],
    chosen_by("name"),
]
