"""The judged side of a check: its weights, and its runs in float32 and as it ships."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from ...converters.captures.mlprogram.names import pictures_of, turned
from ...converters.checkpoints.formats.onnx_model import OnnxFile
from ...converters.common.memory import pass_on_shortage
from ...converters.common.policy import Policy
from ...converters.common.users_code import fault_of, raised_by_us
from ...converters.models import PROGRAMS, Model, Signature
from ...converters.models.pictures import Picture
from ...converters.models.ports import paired, under_other_names
from ...converters.models.program_files import ProgramFile, recorded
from ...converters.runtimes import Runner, load
from ...converters.runtimes.blas import mlx_on
from ...converters.runtimes.programs.llama import LLAMA_CPP
from ...converters.values import Array
from ...errors import BadInputError, RuntimeEndedError, UsersCodeError, WeighbridgeError
from ..packages.encoded import Encoded, behind_encoder, encoded_by
from ..weights.sketches.sketch import Weights
from ..weights.weights import own_copy, program_weights, storage_dtype, weights_of
from .verdict import Stage

if TYPE_CHECKING:
    from ...converters.captures.mlprogram.program import Program
    from ..goldens.golden import Golden

FLOAT32_RUNTIMES: Final = frozenset(("torch", "mlx"))  # run any weights in float32 if asked to
FRAMEWORKS: Final = frozenset(("torch", "transformers", "mlx", "coremltools", "coreai"))
MISSING: Final = "{} is not installed, so nothing was run; see weighbridge doctor"
RANDOM: Final = frozenset(
    f"random_{it}" for it in ("bernoulli", "categorical", "normal", "uniform")
)
ELSEWHERE: Final = "No Metal back-end"  # what MLX says where a class has a kernel for Metal alone
LACKING: Final = "data type is not supported with"  # what onnxruntime says of operations in float16
PRECISIONS: Final = frozenset(("float32", "float16", "bfloat16"))


@dataclass
class Candidate:
    """The judged side; its weights and runners are loaded when first needed.

    Attributes:
        model: the candidate.
        runtime: where it runs.
        policy: as the user chose it.
        exact: constants of an ML program as they were before rounding, for its float32 run.
        constants: those of an ONNX file as they were before it rounded them, for its float32 run.
        names: the reference's name -> its own of inputs and outputs that it calls otherwise.
        encoded: how it takes what the source's encoder gives, where it is a decoder's file.
        as_source: whether activations are rounded to 8 bits because the source does it.
    """

    model: Model
    runtime: str
    policy: Policy
    exact: Mapping[str, Array] = field(default_factory=dict)
    constants: Mapping[str, Array] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    encoded: Encoded | None = None
    as_source: bool = False

    def computing(self, reference: Model | Golden) -> AbstractContextManager[None]:
        """Return a block in which MLX, if a side is its, computes where the policy says, else on the CPU."""
        if self.runtime == "mlx":
            return mlx_on(self.policy.device)
        source = reference if isinstance(reference, Model) else reference.model
        sides = {it.framework for it in (self.model, source) if it}
        return mlx_on("cpu") if "mlx" in sides else nullcontext()

    def called_as(self, reference: Model | Golden) -> Candidate:
        """Return it, if it is a program, under the names of REFERENCE."""
        own = self.signature if self.model.framework in PROGRAMS else None
        if encoded := encoded_by(reference, self.model, own) if own else None:
            return replace(self, encoded=encoded)
        return replace(self, names=paired(reference.signature, own)) if own else self

    @cached_property
    def weights(self) -> Weights:
        """Its tensors, a live adapter merged."""
        return program_weights(self.program) if self.program else weights_of(self.model)

    @cached_property
    def program(self) -> Program | None:
        """What it computes, where it is an ML program."""
        if self.model.framework != "mlprogram" or self.model.path is None:
            return None
        from ...converters.captures.mlprogram import load_program

        return load_program(self.model.path)

    @cached_property
    def manifest(self) -> Mapping[str, Any] | None:
        """What its file says of its making, where it is a program; ``None`` where it is none."""
        if self.program is not None:
            return self.program.manifest
        tensors = self.model.tensors
        return recorded(tensors) if isinstance(tensors, ProgramFile) else None

    @property
    def rounds_constants(self) -> bool:
        """Whether it may keep single numbers in 16 bits that are in no weights, such as an epsilon."""
        narrow = self.model.framework in ("coreai", "onnx") and self.storage != "float32"
        return self.program is not None or narrow

    @property
    def draws(self) -> list[str]:
        """Operations by which an ML program draws numbers, which no other run draws."""
        return sorted(it for it in (self.program.census if self.program else ()) if it in RANDOM)

    @property
    def mixed(self) -> bool:
        """Whether it is an ML program that keeps some weights in 16 bits and others in float32."""
        kept = {header.dtype for header in self.weights.headers.values()} & {"F16", "F32"}
        return self.program is not None and len(kept) > 1

    @cached_property
    def storage(self) -> str:
        """The dtype in which it keeps its weights: a 16-bit one, or ``float32`` for any wider."""
        file = self.model.tensors
        if isinstance(file, ProgramFile) and file.narrow and not self.weights.headers:
            return "float16"  # the numbers that it computes with are, and no weight says so
        return storage_dtype(self.weights)

    @cached_property
    def declared(self) -> Runner:
        """It, running as the policy and its own files say."""
        return self.load(self.policy)

    def load(self, policy: Policy) -> Runner:
        """Load it under POLICY."""
        runner = load(own_copy(self.model), self.runtime, policy)
        if self.encoded:
            return behind_encoder(runner, self.encoded)
        if not self.names:
            return runner
        from ...converters.runtimes.programs.renamed import under_names

        return under_names(runner, self.names)

    @cached_property
    def missing(self) -> str | None:
        """Why it cannot run here, its framework not being installed; ``None`` where it can be tried."""
        if self.model.framework == "gguf":
            return None if LLAMA_CPP.installed else MISSING.format(LLAMA_CPP.package)
        try:
            _ = self.structure
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package not in FRAMEWORKS:
                raise
            return MISSING.format(package)
        return None

    @property
    def shipped(self) -> str:
        """The dtype in which it ships: the policy's, if narrow, else that of its weights."""
        if self.policy.compute != "float32":
            return self.policy.compute
        if self.runtime in FLOAT32_RUNTIMES:
            return self.storage
        declared = self.declared.describe()["dtype"]
        return declared if declared in PRECISIONS else self.storage

    @cached_property
    def structure(self) -> Runner | None:
        """It, running in float32; ``None`` where its runtime cannot."""
        if self.runtime in FLOAT32_RUNTIMES:
            return self.load(replace(self.policy, compute="float32"))
        if self.shipped == "float32":
            return self.unrounded(self.declared)
        shadow: Callable[[Mapping[str, Array]], Runner] | None
        shadow = getattr(self.declared, "shadow", None)
        return self.unrounded(shadow({**self.exact, **self.constants})) if shadow else None

    def unrounded(self, runner: Runner) -> Runner:
        """Return RUNNER without rounding of activations to 8 bits, where it can do without."""
        without: Callable[[], Runner] | None = getattr(runner, "unrounded", None)
        return without() if without and self.rounds_activations else runner

    @property
    def pictures(self) -> Mapping[str, Picture]:
        """What it takes as pictures, if it is an ML program."""
        return pictures_of(self.program.manifest) if self.program else {}

    @property
    def rounds_activations(self) -> bool:
        """Whether it is a program that rounds activations to 8 bits, as its source does not."""
        file: Any = self.model.tensors
        rounds = self.program.rounds_activations if self.program else False
        rounds = rounds or (isinstance(file, OnnxFile) and bool(file.rounded))
        rounds = rounds or (self.model.framework == "gguf" and bool(file.coded))
        return rounds and not self.as_source

    @cached_property
    def precision(self) -> Runner | None:
        """It, running in the dtype that ships; ``None`` where that is float32."""
        if self.shipped == "float32":
            return None
        if self.runtime in FLOAT32_RUNTIMES:
            return self.load(replace(self.policy, compute=self.shipped))
        return self.unrounded(self.declared)

    @property
    def signature(self) -> Signature | None:
        """What it says of its inputs, under the reference's names; ``None`` where it says nothing."""
        if self.encoded:
            return self.encoded.signature
        try:
            found: Signature | None = self.model.signature
        except BadInputError:
            runner = self.declared if self.program else self.structure or self.precision
            found = getattr(runner, "signature", None)
        return under_other_names(found, turned(self.names)) if found else None


def unrunnable(error: Exception) -> Stage:
    """Return the stage of a candidate that raised ERROR: what a library's class raises is the finding.

    Raises:
        UsersCodeError: a user's code raised it and is to hear of it.
        RuntimeEndedError: the runtime has died, which tells nothing of the candidate.
        Exception: ERROR itself, where a line of ours raised it: a bug is no finding.
    """
    pass_on_shortage(error)
    if isinstance(error, RuntimeEndedError):
        raise error
    if line := fault_of(error):
        raise UsersCodeError(line) from error
    if raised_by_us(error) and not isinstance(error, WeighbridgeError):
        raise error
    if LACKING in str(error):
        return Stage("outputs", "unverified", f"its runtime lacks an operation: {error}")
    if ELSEWHERE in str(error):
        return Stage("outputs", "unverified", "its class runs on Metal alone, which is not here")
    reason = error if isinstance(error, WeighbridgeError) else repr(error)
    return Stage("outputs", "fail", f"the candidate does not run: {reason}")
