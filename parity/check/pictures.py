"""A picture in a text: what the source makes of it, and the class that runs the candidate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from ...converters.common.memory import pass_on_shortage
from ...converters.common.policy import full_tokens
from ...converters.common.steps import step
from ...converters.common.users_code import described
from ...converters.models import Model, Signature
from ...converters.runtimes import Runner
from ...converters.runtimes.native.caches import takes_pictures
from ...converters.values import Array
from ...errors import UnsupportedError
from ..configuration.reach import Sides, not_at_hand
from ..goldens.golden import Golden
from ..probes.pictures import (
    PICTURES,
    Arrays,
    fitted,
    mirrored,
    signature_with,
    tokens_of,
    with_picture,
)
from ..probes.probes import Probe, make_probes
from ..reference.floors import floor
from .candidate import Candidate
from .distances import Distance, distance
from .stages import error_stage, outputs_stage, unstudied
from .verdict import Stage

if TYPE_CHECKING:
    from ..reference.several import Once

NAME: Final = "towers"
MOVES: Final = 1000  # times the source's own error: at least so much another picture has to change
QUICK: Final = 1_000_000_000  # weights up to which a quick check runs towers


class Seen(NamedTuple):
    """What the source makes of a picture.

    Attributes:
        probe: the text with it.
        signature: the source's, with ports for what a picture brings along.
        wanted: its outputs in float64.
        once: its own errors in float32, of one run.
    """

    probe: Probe
    signature: Signature
    wanted: dict[str, Array]
    once: Once


def picture_stage(golden: Golden, candidate: Candidate, storage: str, *, quick: bool) -> Stage:
    """Return whether CANDIDATE makes of a picture in a text what the source makes of it.

    Where one side is in MLX, its own class runs it. What cannot be run says why.

    Args:
        golden: the reference.
        candidate: what is judged.
        storage: how the candidate keeps its weights.
        quick: whether only a little time may be spent.
    """
    try:
        runners = [seeing(it) for it in sides_of(golden, candidate, storage)]
        sides = Sides(golden, candidate, storage)
        step("checking: a picture")
        seen = seen_by(sides, quick=quick)
        stages = [judged(sides, seen, it) for it in runners]
    except UnsupportedError as error:
        return Stage(NAME, "unverified", str(error))
    return next((it for it in stages if it.status != "pass"), stages[0])


def sides_of(golden: Golden, candidate: Candidate, storage: str) -> list[Candidate]:
    """Return what is to be run besides the source's own code.

    Raises:
        UnsupportedError: the one or the other cannot be run here.
    """
    if reason := not_at_hand(golden, candidate, storage):
        raise UnsupportedError(reason)
    require_known(golden.model)
    if golden.model is None or golden.framework != "mlx":
        return [candidate]
    return [Candidate(golden.model, "mlx", candidate.policy), candidate]


def seeing(candidate: Candidate) -> Runner:
    """Return what runs CANDIDATE in float32, if it takes pictures."""
    runner: Any = candidate.structure
    known = runner.runtime == "torch" or (
        runner.kind == "library" and takes_pictures(runner.module)
    )
    if not known:
        raise UnsupportedError(f"{runner.name}, which runs {candidate.model.spec}, takes text only")
    found: Runner = runner
    return found


def seen_by(sides: Sides, *, quick: bool) -> Seen:
    """Return what the source of SIDES makes of a picture.

    Raises:
        UnsupportedError: it does not take one, it is too large, or no output depends on what is seen.
    """
    from ..reference.reference import float64_outputs, module_outputs
    from ..reference.several import in_one_run

    signature, single = sides.golden.signature, sides.modules["float32"]
    model: Any = sides.golden.model
    probe = probe_for(model, single, quick=quick)
    more = signature_with(signature, probe)
    try:
        [wanted] = float64_outputs(sides.modules["float64"], more, [probe])
        own, other = module_outputs(single, more, [probe, mirrored(probe)], "float32")
    except UnsupportedError:
        raise
    except Exception as error:
        pass_on_shortage(error)
        raise UnsupportedError(f"the source does not take a picture: {described(error)}") from error
    once = in_one_run(single, more, [probe], ([own], [wanted]))
    if any(not np.isfinite(it).all() for it in wanted.values()):
        raise UnsupportedError("the source gives NaN for a picture")
    if not moves(wanted, other, once.errors[0]):
        raise UnsupportedError("another picture does not change what the source gives")
    return Seen(probe, more, wanted, once)


def moves(wanted: Mapping[str, Array], other: Mapping[str, Array], own: Mapping[str, Any]) -> bool:
    """Say whether an output is as far from the WANTED in OTHER that it depends on the picture."""
    return any(distance(other[it], wanted[it]).whole > MOVES * own[it].whole for it in wanted)


def require_known(model: Model | None) -> None:
    """Refuse MODEL if nothing here says how its type is given pictures."""
    kind = str(model.config.get("model_type") if model else "")
    if kind not in PICTURES:
        raise UnsupportedError(f"how pictures are given to {kind} is not known here")


def probe_for(model: Model, module: Any, *, quick: bool) -> Probe:
    """Return a text with a picture for MODULE, which runs MODEL in PyTorch, of as many tokens as its size allows.

    Raises:
        UnsupportedError: it takes no picture, or is too large for one.
    """
    from ...converters.runtimes.streamed.together import together

    def count(pixels: Arrays) -> int:
        import torch

        tensors = {name: torch.from_numpy(it) for name, it in pixels.items()}
        with torch.no_grad():
            [found] = together(module, [partial(module.get_image_features, **tensors)])
        return tokens_of(getattr(found, "pooler_output", found))

    require_known(model)
    weights = sum(math.prod(it.shape) for it in model.checkpoint.headers.values())
    small, *_ = make_probes(model.signature, tokenizer=None, quick=True)
    if quick and weights > QUICK:
        raise UnsupportedError("the model is large; a full check runs pictures")
    try:
        probe = with_picture(module.config, small.inputs["input_ids"][:1], count)
    except (AttributeError, KeyError, StopIteration, RuntimeError, ValueError) as error:
        pass_on_shortage(error)
        raise UnsupportedError(f"the source does not take a picture: {described(error)}") from error
    tokens, most = probe.inputs["input_ids"].size, full_tokens(weights)
    if most is not None and tokens > most:
        raise UnsupportedError(f"the model is large, and a picture in it is {tokens} tokens long")
    return probe


def judged(sides: Sides, seen: Seen, runner: Any) -> Stage:
    """Return whether RUNNER makes of what the source has SEEN the same, as far as rounding allows."""
    about = runner.describe()
    key = (about["runtime"], about["device"], about["dtype"], about["accumulate"])
    study = floor(*key, blas=about.get("blas", ""))
    if study is None:
        return unstudied(NAME, about)
    try:
        found = fitted(runner, seen.probe).run(seen.probe.inputs)
    except Exception as error:
        pass_on_shortage(error)
        name = getattr(runner, "name", type(runner.module).__name__)
        reason = f"{name} does not take a picture as the source does: {described(error)}"
        raise UnsupportedError(reason) from error
    finite = outputs_stage(sides.golden, [seen.probe], [found], [seen.wanted])
    if finite.status == "fail":
        return finite._replace(name=NAME)

    def ask(errors: Mapping[str, Distance]) -> Stage:
        runs = [seen.probe], [found], [seen.wanted]
        return error_stage(NAME, sides.golden, *runs, (study, [errors]))

    stage = ask(seen.once.errors[0])
    if stage.status == "fail" and any(seen.once.more):
        stage = ask(in_several(sides, seen))
    library = str(getattr(runner, "library", ""))
    detail = f"a picture in a text: it {stage.detail}"
    return stage._replace(detail=detail, figures={**stage.figures, "upstream": library})


def in_several(sides: Sides, seen: Seen) -> Mapping[str, Distance]:
    """Return how far the source errs on a picture in several runs."""
    from ..reference.several import in_several_runs

    about = seen.signature, [seen.probe], [seen.wanted], seen.once
    [errors] = in_several_runs(sides.modules["float32"], "float32", *about)
    return errors
