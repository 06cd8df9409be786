"""A model to be quantized: what becomes of each weight, before a byte is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...converters.checkpoints import Checkpoint, Header
from ...converters.common.dtypes import FLOATS
from ...converters.common.hints import command, dequantizing, unused
from ...converters.libraries import Target, find
from ...converters.libraries.quantizing import Decided, decide
from ...converters.maps.execution.view import Mapped
from ...converters.models import Model
from ...converters.planning.conversion import conversion_of
from ...converters.planning.fitting import packed
from ...converters.planning.job import Job, plan_job
from ...converters.quantization.mlx import SUFFIX, layout
from ...converters.quantization.recipe import COPY, KEY
from ...converters.quantization.scheme import Scheme
from ...errors import BadInputError, MismatchError, UnsupportedError
from ..options import Options
from .request import Request

NARROWEST = ("F32", "F16", "BF16")  # what MLX quantizes


@dataclass(frozen=True)
class Plan:
    """A model, planned.

    Attributes:
        job: the way from the source's tensors to those of MLX's class.
        tensors: the latter, made as they are read.
        target: the class.
        decided: what its library quantizes.
        request: what the user wants.
    """

    job: Job
    tensors: Checkpoint
    target: Target
    decided: Decided
    request: Request

    @cached_property
    def schemes(self) -> Mapping[str, Scheme]:
        """The scheme of each weight that is quantized, by name."""
        return {path + SUFFIX: scheme for path, scheme in self.decided.schemes.items()}

    def dtype(self, name: str) -> str:
        """Return the dtype of the scales of the weight NAME."""
        return self.request.dtype or self.tensors.headers[name].dtype

    def parts(self, name: str) -> dict[str, Header]:
        """Return the headers of the tensors that store NAME."""
        header, scheme = self.tensors.headers[name], self.schemes.get(name)
        if scheme is None:
            return {name: header}
        return layout(name, header.shape, scheme, self.dtype(name))

    @cached_property
    def layout(self) -> dict[str, Header]:
        """The headers of all that is written."""
        return {full: it for name in self.tensors.headers for full, it in self.parts(name).items()}

    @property
    def sizes(self) -> tuple[int, int]:
        """Bytes of the tensors as they are, and quantized."""
        found = (self.tensors.headers, self.layout)
        before, after = (sum(it.nbytes for it in headers.values()) for headers in found)
        return before, after

    @property
    def key(self) -> str:
        """A fingerprint: an interrupted run resumes only if nothing of it changed."""
        schemes = sorted(f"{name} {scheme}" for name, scheme in self.schemes.items())
        texts = [path.read_text("utf-8") for path in [self.request.calibrate] if path]
        how = f"{self.request.method}-{self.request.dtype}-{hash_of([*schemes, *texts])}"
        return f"{self.job.key}-{how}"

    def lines(self) -> tuple[str, ...]:
        """Return the plan, a line each."""
        count = Counter(map(str, self.schemes.values()))
        kinds = [f"{number} weights: {scheme}" for scheme, number in count.most_common()]
        rest = len(self.tensors.headers) - len(self.schemes)
        before, after = self.sizes
        size = f"{before:,} bytes before, {after:,} after ({after / max(before, 1):.1%})"
        return (*self.job.lines(), *self.request.lines(), *kinds, f"{rest} tensors kept", size)


def hash_of(texts: list[str]) -> str:
    """Return a hash of TEXTS."""
    import xxhash

    return xxhash.xxh3_64("\n".join(texts).encode()).hexdigest()


def plan(model: Model, request: Request, options: Options) -> Plan:
    """Return how MODEL is quantized as REQUEST says, or say why it cannot be.

    Raises:
        BadInputError: an adapter is live on it, no class of MLX reads it, or a rule is about nothing.
        MismatchError: its tensors are not those that the class quantizes.
        UnsupportedError: it is quantized already, or nothing in it can be.
    """
    require_quantizable(model)
    conversion = conversion_of(model, "mlx", options.original)
    job = plan_job(conversion)
    config = conversion.config
    target = model.library if model.framework == "mlx" else find(config, model.reader)
    if target is None:
        raise UnsupportedError(
            f"{model.spec}: no class in MLX reads model_type {config.get('model_type')}, so nothing"
            " says what of it is quantized"
        )
    decided = decide(target, config, request.scheme, request.wish)
    made = Plan(job, Mapped(job.plan, job.checkpoint), target, decided, request)
    require_obeyed(made, str(target))
    require_there(made, str(target))
    return made


def require_quantizable(model: Model) -> None:
    """Refuse a MODEL with an adapter, or one that is quantized already.

    Raises:
        BadInputError: it has an adapter.
        UnsupportedError: its weights are quantized.
    """
    if model.adapter:
        merged = command(
            "merge", model.path or model.spec, model.adapter.path, unused(model.spec, "-merged")
        )
        raise BadInputError(f"{model.spec} has an adapter, which has to be merged first: {merged}")
    there = packed(model.checkpoint.headers) if model.path else []
    sections = [key for key in (KEY, COPY) if model.config.get(key)]
    if there or sections:
        what = (
            f"{len(there)} weights such as {there[0]}" if there else f"config.json: {sections[0]}"
        )
        dense = f": {dequantizing(model.spec)}" if model.framework == "mlx" else ""
        raise UnsupportedError(
            f"{model.spec} is quantized already ({what}); take the model that it was made from, or"
            f" make its weights dense first{dense}"
        )


def require_obeyed(made: Plan, target: str) -> None:
    """Refuse rules that are about nothing, or that the library does not follow.

    Raises:
        MismatchError: tells all of them.
        UnsupportedError: nothing is quantized at all.
    """
    decided, request = made.decided, made.request
    problems = [
        f"--rule {rule.text} fits no module; there are {', '.join(sorted(decided.shapes)[:3])}, ..."
        for rule in request.rules
        if not any(map(rule.fits, decided.shapes))
    ]
    for path, shape in decided.shapes.items():
        wish = request.wish(path)
        if isinstance(wish, Scheme) and decided.schemes.get(path) != wish:
            problems.append(
                f"{path} {list(shape)} is not quantized as {wish}, for {shape[-1]} columns are no"
                f" multiple of {request.scheme.group_size}, the group of the whole model; choose a"
                " smaller --group-size"
            )
    if problems:
        raise MismatchError(f"{target} does not follow the rules", problems)
    if not decided.schemes:
        raise UnsupportedError(nothing(made, target))


def nothing(made: Plan, target: str) -> str:
    """Say why no weight can be quantized."""
    group, shapes = made.request.scheme.group_size, made.decided.shapes
    if not shapes:
        return f"{target} has no layers that can be quantized"
    path, shape = next(iter(shapes.items()))
    return (
        f"no weight is left to be quantized in groups of {group}: {path} is {list(shape)}, for"
        " example; choose a --group-size that divides the last number"
    )


def require_there(made: Plan, target: str) -> None:
    """Refuse tensors that are not those that the class quantizes.

    Raises:
        MismatchError: tells all of them.
    """
    headers, problems = made.tensors.headers, []
    for name in made.schemes:
        shape = made.decided.shapes[name.removesuffix(SUFFIX)]
        if name not in headers:
            problems.append(f"{name} {list(shape)} is not there")
        elif headers[name].shape != shape:
            problems.append(f"{name} is {headers[name]}, expected {list(shape)}")
        elif headers[name].dtype not in FLOATS or made.dtype(name) not in NARROWEST:
            problems.append(f"{name} is {headers[name]}; MLX quantizes {', '.join(NARROWEST)}")
    if problems:
        raise MismatchError(f"{made.job.model.spec} does not fit {target}", problems)


def config_of(made: Plan, written: Mapping[str, Any]) -> dict[str, Any]:
    """Return WRITTEN, the config of the model in floating point, with what its library adds and changes."""
    before, after = made.job.conversion.config, made.decided.config
    changed = {key: value for key, value in after.items() if before.get(key) != value}
    return {**written, **changed, COPY: after[KEY]}
