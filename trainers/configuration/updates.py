"""What is trained, and how it is updated."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, Tag

from .section import Fraction, Section, chosen_by

Weight = Annotated[float, Field(ge=0)]
Betas = tuple[Fraction, Fraction]


class AdapterSection(Section):
    """Low-rank adapters on the linear modules whose path ends in one of TARGETS.

    ``dora`` trains the lengths of the rows apart (Liu et al. 2024). ``quantize_aware`` computes with the sums
    of weights and updates rounded as a merge into the model, which is quantized, will store them; where it
    names what the model was made from the updates are added to those weights.
    """

    rank: PositiveInt = 8
    scale: PositiveFloat = 2.0
    targets: Annotated[tuple[str, ...], Field(min_length=1)] = ("query", "value")
    dropout: Literal[0] = 0
    dora: bool = False
    quantize_aware: bool | Path = False


class GroupSection(Section):
    """Parameters updated in their own way: those that MATCH names, as ``freeze`` does; the first group counts."""

    match: Annotated[tuple[str, ...], Field(min_length=1)]
    learning_rate: PositiveFloat | None = None
    weight_decay: Weight | None = None


class OptimizerSection(Section):
    """What all optimizers have; the schedule scales every learning rate alike."""

    learning_rate: PositiveFloat = 1e-3
    weight_decay: Weight = 0.0
    groups: tuple[GroupSection, ...] = ()


class AdamSection(OptimizerSection):
    """Adam (Kingma and Ba 2015), weight decay added to the gradient; bias correction always on."""

    name: Literal["adam"]
    betas: Betas = (0.9, 0.999)
    eps: PositiveFloat = 1e-8


class AdamWSection(OptimizerSection):
    """Adam with the weight decay apart (Loshchilov and Hutter 2019); bias correction always on."""

    name: Literal["adamw"] = "adamw"
    betas: Betas = (0.9, 0.999)
    eps: PositiveFloat = 1e-8
    weight_decay: Weight = 0.01


class SGDSection(OptimizerSection):
    """Stochastic gradient descent, weight decay added to the gradient."""

    name: Literal["sgd"]
    momentum: Fraction = 0.0
    nesterov: bool = False


class LionSection(OptimizerSection):
    """Lion (Chen et al. 2023): the sign of an average of gradients."""

    name: Literal["lion"]
    betas: Betas = (0.9, 0.99)


class AdafactorSection(OptimizerSection):
    """Adafactor (Shazeer and Stern 2018) as in PyTorch: the learning rate is a bound of the relative one.

    ``eps`` are the least root of a second moment and the least scale of a parameter; ``d`` is the
    largest root mean square of an update.
    """

    name: Literal["adafactor"]
    learning_rate: PositiveFloat = 1e-2
    beta2_decay: Annotated[float, Field(lt=0)] = -0.8
    eps: tuple[PositiveFloat, PositiveFloat] = (2.0**-23, 1e-3)
    d: PositiveFloat = 1.0


class MuonSection(OptimizerSection):
    """Muon (Jordan et al. 2024) for matrices, in float32 where PyTorch rounds to bfloat16.

    What is no matrix, and what ADAMW names, is updated by AdamW at ADAMW_LEARNING_RATE.
    ``adjust`` scales the update by the matrix's shape as PyTorch's ``adjust_lr_fn``.
    """

    name: Literal["muon"]
    weight_decay: Weight = 0.1
    momentum: Fraction = 0.95
    nesterov: bool = True
    ns_steps: Annotated[int, Field(ge=1, lt=100)] = 5
    eps: PositiveFloat = 1e-7
    adjust: Literal["original", "match_rms_adamw"] = "original"
    adamw: tuple[str, ...] = ()
    adamw_learning_rate: PositiveFloat = 1e-3


Optimizer = Annotated[
    Annotated[AdamWSection, Tag("adamw")]
    | Annotated[AdamSection, Tag("adam")]
    | Annotated[SGDSection, Tag("sgd")]
    | Annotated[LionSection, Tag("lion")]
    | Annotated[AdafactorSection, Tag("adafactor")]
    | Annotated[MuonSection, Tag("muon")],
    chosen_by("name", default="adamw"),
]


class ScheduleSection(Section):
    """Learning rate over the run: WARMUP is a fraction of it, FINAL a fraction of the peak."""

    kind: Literal["cosine", "linear", "constant"] = "cosine"
    warmup: Fraction = 0.1
    final: Fraction = 0.0
