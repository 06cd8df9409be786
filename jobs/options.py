"""What verbs accept, each no more than it needs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, Self

from ..converters.common.arguments import require_kinds
from ..converters.models import Model
from ..converters.models.towers import read_by
from ..converters.planning.opening import open as open_model
from ..errors import BadInputError
from .pipeline import Target

Advance = Callable[[int], None]
Reporter = Callable[[str, int], Advance]


def silent(_: str, __: int) -> Advance:
    """Report no progress."""
    return lambda _amount: None


@dataclass(frozen=True)
class ReadOptions:
    """How models are read.

    Attributes:
        map: name or path of a ``.wmap``.
        trust_code: ``module:function`` that builds the architecture.
        original: directory or hub name of the checkpoint an MLX model comes from; ``none`` to go
            back to PyTorch without what only it has.
        inputs: an ``.npz`` of a user's own inputs, in place of probes.
        library: the MLX library whose class is to read the model; ``None`` for the one that has all of it.
    """

    map: str | None = None
    trust_code: str | None = None
    original: str | None = None
    inputs: Path | None = None
    library: str | None = None

    def __post_init__(self) -> None:
        """Refuse a value that its field does not have; paths and texts stand for each other.

        Raises:
            BadInputError: there is one.
        """
        require_kinds(self)

    def open(self, spec: str) -> Model:
        """Open SPEC."""
        model = open_model(spec, trust_code=self.trust_code, map=self.map)
        return self.tried(read_by(model, self.library) if self.library else model)

    def tried(self, model: Model) -> Model:
        """Return MODEL; a module that does not say what it takes is tried on a user's own inputs."""
        known = model.factory is None or model.declared or model.family
        if known or self.inputs is None:
            return model
        from ..parity.check.live import signature_given

        declared = signature_given(model.spec, model.factory, self.inputs)
        return replace(model, declared=declared)


@dataclass(frozen=True)
class CheckOptions(ReadOptions):
    """How two models are compared.

    Attributes:
        check: ``full``, ``quick`` or ``none``.
        candidate_code: as ``trust_code`` for the checked side alone, such as a native MLX module.
    """

    check: Literal["full", "quick", "none"] = "quick"
    candidate_code: str | None = None

    @property
    def checks(self) -> bool:
        """Whether a check is wanted."""
        return self.check != "none"

    @property
    def quick(self) -> bool:
        """Whether the check is to ask the cheap questions only."""
        return self.check == "quick"

    @property
    def for_candidate(self) -> Self:
        """The same for the checked side, which takes what the other side says."""
        return replace(self, trust_code=self.candidate_code or self.trust_code, inputs=None)


@dataclass(frozen=True)
class PublishOptions(ReadOptions):
    """How a result is written.

    Attributes:
        force: replace the target, atomically.
        dry_run: stop after pass 1 and return the plan.
        report: receives progress.
        accept: verdicts that count as success; with ``UPSTREAM`` a result is published that differs only
            because a library's class does not do as the configuration says.
    """

    force: bool = False
    dry_run: bool = False
    accept: Collection[str] = ()
    report: Reporter = field(default=silent, repr=False)

    def begin(self, path: Path, kind: str, *specs: str | Path | None) -> Target:
        """Return the target of a job that begins now and reads SPECS, and what the options name.

        Raises:
            TargetExistsError: something is there that is not to be replaced.
            WeighbridgeError: nothing can be written there.
        """
        reads = (*specs, self.map, self.original, self.inputs)
        target = Target.begin(path, kind, *reads, force=self.force, dry_run=self.dry_run)
        return target._replace(accept=self.accept)


@dataclass(frozen=True)
class WriteOptions(PublishOptions, CheckOptions):
    """How a result is written and checked."""


@dataclass(frozen=True)
class Options(WriteOptions):
    """How a model is written and checked.

    Attributes:
        sidecar: which tensors the way back to PyTorch may need are kept: ``small``, ``all`` or
            ``none``.
        max_shard_size: bytes per weights file.
        dequantize: what quantized weights become: ``bf16``, ``fp16`` or ``fp32``.
        quant_method: Hugging Face's name of the format that a quantized model is written in; the first
            that keeps every code and scale where none is given.
        allow_lossy: whether that may be one that moves weights.
        repair: whether a ``model.py`` is written that mends what mlx-lm's class computes wrongly.
    """

    sidecar: Literal["small", "all", "none"] = "small"
    max_shard_size: int = 5_000_000_000
    dequantize: Literal["bf16", "fp16", "fp32"] | None = None
    quant_method: str | None = None
    allow_lossy: bool = False
    repair: bool = False

    def __post_init__(self) -> None:
        """Refuse a size that no file has, and a value that its field does not have.

        Raises:
            BadInputError: there is one.
        """
        super().__post_init__()
        if self.max_shard_size <= 0:
            raise BadInputError(f"max_shard_size {self.max_shard_size} is no number of bytes")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Return those that are GIVEN by name.

        Raises:
            BadInputError: there is none of a name, or a value is of another kind.
        """
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                near = get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"options are {', '.join(known)}"
                raise BadInputError(f"there is no option {name}; {hint}")
        return cls(**given)
