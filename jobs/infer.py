"""Infer the map of somebody's own port: draft it, then let parity say whether it is done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..converters.common.arrays import to_mlx
from ..converters.common.policy import Policy
from ..converters.common.steps import step
from ..converters.maps import WeightMap, apply
from ..converters.maps.infer import Draft, Guess, Runs, Side, infer
from ..converters.models import Model, Signature
from ..converters.models.factories import framework_of
from ..converters.planning.memory import require_memory
from ..converters.runtimes.blas import mlx_on
from ..converters.values import Array, Dense
from ..errors import BadInputError, WeighbridgeError
from ..parity.check.verdict import Verdict
from .options import CheckOptions
from .pipeline import UNCHECKED

if TYPE_CHECKING:
    from ..parity.probes.probes import Probe


@dataclass(frozen=True)
class Inferred:
    """An inferred map.

    Attributes:
        text: the map in the notation; comments say how each rule is known.
        guesses: the pairs that neither values nor outputs nor shapes prove.
        ambiguous: those of them for which something else is about as likely.
        proofs: tensors of torch by proof: ``value``, ``outputs``, ``shape``, ``guess``.
        notes: what a reader should know of the whole.
        verdict: parity of the candidate's module with the torch weights put through the map;
            ``None`` where it could not be asked.
    """

    text: str
    guesses: tuple[Guess, ...]
    ambiguous: tuple[Guess, ...]
    proofs: Mapping[str, int]
    notes: tuple[str, ...]
    verdict: Verdict | None

    @property
    def done(self) -> bool:
        """Whether parity passes with this map; nothing else makes it done."""
        return self.verdict is not None and self.verdict.passed

    @property
    def status(self) -> str:
        """The verdict's status; UNVERIFIED where parity was not asked."""
        return self.verdict.status if self.verdict else UNCHECKED


@mlx_on("cpu")
def infer_map(
    torch_model: Model, candidate: Model, options: CheckOptions = CheckOptions()
) -> Inferred:
    """Infer the map from TORCH_MODEL to CANDIDATE, a port of it to MLX with other names.

    Args:
        torch_model: a directory or a factory.
        candidate: an MLX directory or file, whose values then count; or a factory of a native
            ``mlx.nn`` module, which is run on weights of our own.
        options: ``candidate_code`` names the native module of a candidate that is a directory;
            ``inputs`` are a user's own; with ``check="none"`` parity is not asked.

    Raises:
        BadInputError: a side is of the wrong framework or has no weights, or they cannot be the same.
    """
    step("pairing the tensors")
    candidate = as_mlx(candidate)
    require_sides(torch_model, candidate)
    require_memory("infer the map of", torch_model, candidate)
    module = native(candidate, options)
    bench = Bench.of(torch_model, candidate, module, options)
    draft = infer(side_of(torch_model), side_of(candidate), bench.runs() if bench else None)
    verdict = bench.verdict(draft) if bench and options.checks else None
    return concluded(draft, verdict, why_not(bench, module, options))


def why_not(bench: Bench | None, module: Any, options: CheckOptions) -> str:
    """Say why parity was not asked, and what to do."""
    if bench is not None:
        return "parity was not asked (--check none)" if not options.checks else ""
    if module is None:
        return (
            "nothing runs the candidate; name its mlx.nn module: --candidate-code MODULE:FUNCTION"
        )
    return "nothing says what the models take; give inputs (--inputs FILE.npz), or a Signature"


def concluded(draft: Draft, verdict: Verdict | None, missing: str) -> Inferred:
    """Return DRAFT with what parity says of it written on top."""
    if verdict:
        done = "done" if verdict.passed else "NOT DONE"
        line = f"{done}: parity with this map says {verdict.status}"
    else:
        line = f"NOT DONE: {missing}"
    return Inferred(
        text=f"# {line}.\n{draft.text}",
        guesses=draft.guesses,
        ambiguous=draft.ambiguous,
        proofs=draft.proofs,
        notes=(*draft.notes, *([line] if missing else [])),
        verdict=verdict,
    )


def as_mlx(candidate: Model) -> Model:
    """Return CANDIDATE as an MLX model where nothing says that its files are torch's."""
    if candidate.framework != "torch" or candidate.path is None:
        return candidate
    written_by = candidate.checkpoint.metadata.get("format")
    pickled = any(file.suffix in (".bin", ".pt", ".pth") for file in candidate.checkpoint.files)
    return candidate if written_by == "pt" or pickled else replace(candidate, framework="mlx")


def require_sides(torch_model: Model, candidate: Model) -> None:
    """Refuse sides of the wrong framework.

    Raises:
        BadInputError: the first is not torch's, or the second not MLX's.
    """
    if torch_model.framework != "torch":
        raise BadInputError(
            f"{torch_model.spec} is {torch_model.framework}, but the first model must be torch's;"
            " the order is map infer TORCH CANDIDATE"
        )
    if candidate.framework != "mlx":
        raise BadInputError(
            f"{candidate.spec} is {candidate.framework}, but a candidate is a port to MLX: a directory,"
            " .npz or .safetensors of its weights, or MODULE:FUNCTION that returns its mlx.nn module"
        )


def side_of(model: Model) -> Side:
    """Return the tensors of MODEL; the values of a bare mlx.nn module are random and mean nothing."""
    from ..parity.weights.weights import base_weights

    weights = base_weights(model)
    random = model.framework == "mlx" and model.path is None
    return Side(model.spec, weights.headers, None if random else weights.read)


def native(candidate: Model, options: CheckOptions) -> Any:
    """Return the mlx.nn module that runs CANDIDATE, ``None`` where nobody names one.

    Raises:
        BadInputError: ``--candidate-code`` builds something else.
    """
    module = candidate.factory
    if module is None and options.candidate_code:
        module = options.for_candidate.open(candidate.spec).factory
        if framework_of(module) != "mlx":
            raise BadInputError(f"{options.candidate_code} returns no mlx.nn.Module")
    if module is not None and candidate.path is not None:
        require_fit(module, candidate, options.candidate_code or "its code")
    return module


def require_fit(module: Any, candidate: Model, code: str) -> None:
    """Refuse a module that could not load the candidate's files.

    Raises:
        BadInputError: names or shapes differ.
    """
    from ..converters.runtimes.native.classes import differences

    if wrong := list(differences(module, candidate.checkpoint.headers)):
        shown = ", ".join(wrong[:4]) + (", ..." if len(wrong) > 4 else "")
        raise BadInputError(
            f"{candidate.spec}: its weights are not those of {code}, {len(wrong)} differ in name or"
            f" shape ({shown}); name the module that loads them: --candidate-code MODULE:FUNCTION"
        )


@dataclass
class Bench:
    """Both modules, ready to run on the same inputs.

    Attributes:
        torch_model: the source, with its signature.
        module: the candidate's native module; its weights are overwritten.
        spec: of the candidate.
        probes: a user's own inputs; ``None`` for ours.
        quick: whether parity asks the cheap questions only.
    """

    torch_model: Model
    module: Any
    spec: str
    probes: list[Probe] | None
    quick: bool

    @classmethod
    def of(
        cls, torch_model: Model, candidate: Model, module: Any, options: CheckOptions
    ) -> Bench | None:
        """Return the bench, ``None`` where a module or the inputs are not known."""
        if module is None:
            return None
        signature = signature_for(options.tried(torch_model), candidate)
        if signature is None:
            return None
        from ..parity.probes.given import probes_from_file

        probes = probes_from_file(options.inputs, signature) if options.inputs else None
        declared = replace(torch_model, declared=signature)
        return cls(declared, module, candidate.spec, probes, options.quick)

    def runs(self) -> Runs | None:
        """Return both modules as functions of their weights, ``None`` where torch's cannot be built."""
        from ..converters.runtimes.mlx import MlxRunner
        from ..converters.runtimes.torch import TorchRunner, empty_module
        from ..parity.probes.probes import make_probes

        try:
            torch_module = empty_module(self.torch_model).double()
        except WeighbridgeError:
            return None
        signature = self.torch_model.signature
        probe = (self.probes or make_probes(signature, tokenizer=None, quick=True))[0]
        policy = Policy(compute="float64")
        left = TorchRunner(self.torch_model, policy, torch_module)
        right = MlxRunner(self.candidate(), Policy(), self.module)

        def run_left(weights: Mapping[str, Array]) -> Mapping[str, Array]:
            fill_torch(torch_module, weights)
            return left.run(probe.inputs)

        def run_right(weights: Mapping[str, Array]) -> Mapping[str, Array]:
            fill_mlx(self.module, {name: it.astype(np.float32) for name, it in weights.items()})
            return right.run(probe.inputs)

        return Runs(run_left, run_right)

    def candidate(self) -> Model:
        """Return the candidate's module as a model, with the weights it has now."""
        signature = self.torch_model.signature
        return Model(self.spec, "mlx", None, {}, factory=self.module, declared=signature)

    def verdict(self, draft: Draft) -> Verdict:
        """Check the candidate's module, with torch's weights put through the map, against torch."""
        from ..parity.check.check import check
        from ..parity.weights.weights import base_weights

        weights = base_weights(self.torch_model)
        plan = WeightMap.parse(draft.text, "the inferred map").bind(weights.headers)
        dense = {name: Dense(weights.read(name)) for name in weights.headers}
        moved = apply(plan, dense)
        fill_mlx(self.module, {n: it.array for n, it in moved.items() if isinstance(it, Dense)})
        layout = (True, f"native MLX module {type(self.module).__name__}")
        return check(
            self.torch_model, self.candidate(), layout=layout, quick=self.quick, probes=self.probes
        )


def fill_torch(module: Any, weights: Mapping[str, Array]) -> None:
    """Put WEIGHTS into a torch module, rounded to its dtype; what they do not name stays."""
    import torch

    state = {name: torch.from_numpy(np.array(array)) for name, array in weights.items()}
    module.load_state_dict(state, strict=False)


def fill_mlx(module: Any, weights: Mapping[str, Array]) -> None:
    """Put WEIGHTS into an MLX module, strictly."""
    arrays = [(name, to_mlx(array)) for name, array in weights.items()]
    module.load_weights(arrays, strict=True)


def signature_for(torch_model: Model, candidate: Model) -> Signature | None:
    """Return what the models take: declared, or known by family; ``None`` where nothing says it."""
    try:
        return torch_model.signature
    except BadInputError:
        return candidate.declared
