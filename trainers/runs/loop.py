"""A training run from its configuration to an adapter on disk, resumable at any moment."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Final, TypedDict, Unpack

from ...converters.checkpoints import (
    Sources,
    Staging,
    locked,
    require_space,
    require_target,
    sweep,
)
from ...converters.common.hints import command
from ...converters.common.system import writing
from ...converters.documents import RECORD, read_optional
from ...errors import BadInputError, MismatchError, Terminated, WeighbridgeError
from ..bundled import provide
from ..checks.cancelled import cancelled, cancelled_note
from ..checks.decisions import require_recordable
from ..checks.exact import Exact
from ..checks.explained import explained
from ..checks.hardest import hardest_batches
from ..config import TrainConfig, differences, dump_config, load_config
from ..export import check_result
from ..memory.freed import kept
from ..preflight import (
    Differentiated,
    Preflight,
    check_gradients,
    with_cancelled,
    with_cause,
    with_hardest,
)
from ..ranks import ALONE, Ranks, ranks_of, require_divisible
from ..steps.base import Step
from ..tasks import Task, build_task
from .events import Notice, Progress
from .interrupts import TrainingInterrupted, TrainingTerminated
from .result import TrainResult
from .run import Run, Watcher
from .tensorboard import TensorBoard

CONFIG, PREFLIGHT, RESULT = "config.yaml", "preflight.json", "result.json"
BACKENDS: Final = ("mlx", "torch")


class Watching(TypedDict, total=False):
    """What a run calls; see :class:`~weighbridge.trainers.runs.run.Watcher`."""

    progress: Progress
    complete: Callable[[Path], None]


__all__ = ["BACKENDS", "TrainResult", "admitted", "backend_of", "make_step", "preflight", "train"]


def train(
    config: TrainConfig | None,
    out: Path,
    *,
    backend: str = "mlx",
    resume: bool = False,
    task: Task | None = None,
    **watching: Unpack[Watching],
) -> TrainResult:
    """Train as CONFIG says and leave the run in OUT: the best adapter or weights, its records, plots.

    A killed run goes on with RESUME and ends as if it had not been (in MLX on a CPU).

    Args:
        config: the run; ``None`` for the one in OUT.
        out: its folder; must not exist unless RESUME.
        backend: ``mlx`` or ``torch``.
        resume: go on from the last checkpoint.
        task: a model and data in memory, in place of those of CONFIG.
        watching: what is called with every event, and with folders that have got weights.

    Raises:
        TargetExistsError: OUT exists and RESUME was not given.
        MismatchError: it would not train what it should, or OUT holds another run.
        DivergedError: too many updates in a row were not finite.
        TrainingInterrupted: Ctrl-C; a checkpoint was written.
    """
    started, ranks = time.monotonic(), ranks_of(backend)
    config = ranks.first(lambda: admitted(config, out, resume=resume))
    watcher = Watcher() if ranks.rank else watcher_of(config, out, **watching)
    sources = _provided(config, ranks)
    with ranks.folder(out, made=resume) as own, computing(backend, config):
        with nullcontext() if resume else Staging(own, kind="run") as staging:
            task = task or build_task(config)
            step = make_step(backend, task, config, ranks)
            _admit_step(step, task, own, config, watcher.progress)
            if staging:
                _create(staging, task, config, step, watcher)
        with locked(own), _resumable(own):
            return _completed(Run(config, task, step, own, watcher), own, sources, started)


def backend_of(out: Path) -> str:
    """Return the backend of the run in OUT, the first that its preflight looked at; MLX where there is none."""
    losses = read_optional(out / PREFLIGHT, RECORD).get("losses")
    own = next(iter(losses), "") if isinstance(losses, dict) else ""
    return own if own in BACKENDS else BACKENDS[0]


def _provided(config: TrainConfig, ranks: Ranks) -> Sources:
    """Return what CONFIG names, made where it is bundled: by the first rank, then by those on other machines."""
    ranks.first(lambda: provide(config.sources()))
    provide(config.sources())
    return Sources.of(*config.sources())


def watcher_of(config: TrainConfig, out: Path, **watching: Unpack[Watching]) -> Watcher:
    """Return what the run in OUT calls, TensorBoard with it where CONFIG asks for that."""
    watcher = Watcher(**watching)
    return (
        watcher._replace(progress=TensorBoard(out, watcher.progress))
        if config.tensorboard
        else watcher
    )


def _require_same_sources(sources: Sources, out: Path) -> None:
    """Refuse to record as what the run in OUT was made from files that were changed meanwhile.

    Raises:
        BadInputError: they were; the last checkpoint stays.
    """
    if files := sources.changed():
        raise BadInputError(
            f"{files[0]} changed during the run, so the result would be recorded for another model or"
            f" other data; put it back, then: weighbridge train {out} --resume"
        )


@contextmanager
def _resumable(out: Path) -> Iterator[None]:
    """Add to the error of a disk that is full or refuses, and to a signal, how the run in OUT goes on."""
    onward = command("train", out, "--resume")
    try:
        with writing(out):
            yield
    except TrainingInterrupted:
        raise
    except KeyboardInterrupt as error:
        kind = TrainingTerminated if isinstance(error, Terminated) else TrainingInterrupted
        raise kind(f"stopped; {out} has its last checkpoint; go on with: {onward}") from None
    except WeighbridgeError as error:
        if not isinstance(error.__cause__, OSError):
            raise
        raise WeighbridgeError(f"{error}; then: {onward}") from error


def _bytes_of(step: Step, config: TrainConfig, out: Path) -> int:
    """Return how much a run writes: checkpoints kept and one more, the best and the result.

    What lies in OUT of a run that goes on is written already.
    """
    state = sum(array.nbytes for array in step.state().values())
    result = sum(array.nbytes for array in step.weights().values())
    written = sum(path.stat().st_size for path in out.rglob("*.safetensors"))
    return (config.keep + 1) * (state + result) + 3 * result - written


def _admit_step(step: Step, task: Task, out: Path, config: TrainConfig, progress: Progress) -> None:
    """Make sure that the ranks of STEP can share it and OUT has room; say what is special about it."""
    require_divisible(config, step.ranks, task.objective, step.written)
    step.ranks.write(lambda: require_space(out, _bytes_of(step, config, out)))
    _tell(progress, step.notices)


def _tell(progress: Progress, texts: Iterable[str]) -> None:
    for text in texts:
        progress(Notice(text))


def _completed(run: Run, out: Path, sources: Sources, started: float) -> TrainResult:
    """Carry RUN to its end; return what it has done since STARTED after writing it to OUT."""
    run.run()

    def finish() -> TrainResult:
        _require_same_sources(sources, out)
        result = run.finish(started)
        (out / RESULT).write_text(json.dumps(result.document(), indent=1) + "\n", encoding="utf-8")
        return result

    return run.ranks.first(finish)


def preflight(config: TrainConfig, *, backend: str = "mlx") -> Preflight:
    """Compare loss and gradients of CONFIG's first batch between MLX and PyTorch; train nothing."""
    provide(config.sources())
    with computing(backend, config):
        task = build_task(config)
        return _check(task, config, make_step(backend, task, config))


@contextmanager
def computing(backend: str, config: TrainConfig) -> Iterator[None]:
    """Let BACKEND compute where CONFIG says in the block, and keep freed memory if CONFIG says so.

    Raises:
        BadInputError: on entering it in MLX: a GPU is wanted, and there is none.
    """
    from ...converters.runtimes.blas import mlx_on

    where = mlx_on(config.device) if backend == "mlx" else nullcontext()
    with kept(config.keep_freed), where:
        yield


def make_step(backend: str, task: Task, config: TrainConfig, ranks: Ranks = ALONE) -> Step:
    """Return TASK under training in BACKEND, together with the other RANKS.

    Raises:
        BadInputError: there is no such backend.
        UnsupportedError: MLX cannot record a module of TASK.
    """
    if backend == "mlx":
        from ..steps.mlx import MlxStep

        require_recordable(task.loss)
        return MlxStep(task, config, ranks)
    if backend == "torch":
        from ..steps.torch import TorchStep

        return TorchStep(task, config, ranks=ranks)
    raise BadInputError(f"there is no backend {backend}; choose from {', '.join(BACKENDS)}")


def admitted(config: TrainConfig | None, out: Path, *, resume: bool) -> TrainConfig:
    """Return the configuration of the run in OUT, new or resumed.

    Raises:
        BadInputError: there is no configuration, or with RESUME no run.
        MismatchError: the run is one of another CONFIG.
        TargetExistsError: OUT exists and RESUME was not given.
    """
    saved = out / CONFIG
    if not resume:
        if config is None:
            raise BadInputError(
                "a new run needs a configuration: load_config(FILE or the name of a recipe)"
            )
        require_target(out, "run")
        return config
    if not saved.is_file():
        raise BadInputError(f"{out} holds no run to resume: it has no {CONFIG}")
    sweep(out)
    old = load_config(saved)
    if config and (problems := differences(old, config)):
        alone = command("train", out, "--resume")
        raise MismatchError(
            f"{out} holds a run of another configuration, with which {alone} goes on", problems
        )
    return old


def _create(
    staging: Staging, task: Task, config: TrainConfig, step: Step, watcher: Watcher
) -> None:
    """Make the run's folder with its configuration, in one step, once the run has passed its check."""
    checked = step.ranks.first(lambda: _checked(task, config, step, watcher))
    report = json.dumps(checked.document(), indent=1) + "\n"
    with writing(staging.target):
        (staging.folder / CONFIG).write_text(dump_config(config), encoding="utf-8")
        (staging.folder / PREFLIGHT).write_text(report, encoding="utf-8")
    staging.publish()


def _checked(task: Task, config: TrainConfig, step: Step, watcher: Watcher) -> Preflight:
    """Return the passed check of the run; what would end it later is refused before there is one."""
    check_result(task, config.adapter)
    checked = _check(task, config, step).require()
    _tell(watcher.progress, checked.notes)
    if task.objective.asked:
        task.objective.measure(step, task.splits["validation"], config.batch_size)
    return checked


def _check(task: Task, config: TrainConfig, step: Step) -> Preflight:
    """Check the gradients of the run's first batch in STEP's backend and in PyTorch, then the hardest.

    The first is compared in float32, so that nothing but rounding of float32 is accepted.
    """
    full = config.model_copy(update={"dtype": "float32"})
    compared = step if config == full else make_step(step.backend, task, full)
    steps: dict[str, Differentiated] = {step.backend: compared}
    exact = Exact(compared, config.tolerance)
    if step.backend != "torch":
        steps[step.backend] = exact
        plain = full.model_copy(update={"device": "cpu", "compile": None})
        steps["torch"] = make_step("torch", task, plain)
    train = task.splits["train"]
    order = task.order(step.ranks.whole(config))
    rows = order[0]
    first = train.batch(rows[step.ranks.part(config)])
    checked = check_gradients(
        steps, task.parameters(), first, seed=config.seed, tolerance=config.tolerance
    )
    checked = with_cause(checked, lambda: explained(task, step, first))
    batches = hardest_batches(train, config.largest_batch, order.divided)
    checked = with_hardest(checked, step, batches, lambda batch: explained(task, step, batch))
    names = cancelled(task, config)
    notes = (*task.notes(), *checked.notes, *exact.notes, *cancelled_note(names, config))
    problems = (*checked.problems, *exact.problems)
    return replace(with_cancelled(checked, names), notes=notes, problems=problems)
