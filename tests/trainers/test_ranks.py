"""Several ranks train as one process with larger batches: in threads here, and started by the launchers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from weighbridge.errors import (
    MismatchError,
    StoppedElsewhereError,
    UnsupportedError,
    WeighbridgeError,
)
from weighbridge.jobs.training.live import train_live
from weighbridge.tests.trainers.conftest import make_forecaster
from weighbridge.trainers import ranks as module
from weighbridge.trainers.config import dump_config
from weighbridge.trainers.launchers import LAUNCHERS, launched, require_alone
from weighbridge.trainers.objectives.own import FILE as OWN_FILE
from weighbridge.trainers.ranks import ALONE, Ranks, ranks_of
from weighbridge.trainers.runs import loop
from weighbridge.trainers.runs.interrupts import TrainingInterrupted
from weighbridge.trainers.runs.loop import make_step, train
from weighbridge.trainers.tasks import build_task

FACTORY = """
import numpy as np
import torch
from torch import nn

from weighbridge.tests.trainers.conftest import make_forecaster as make


class Mixed(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model, self.mix = model, nn.Linear(3, 3)

    def forward(self, series):
        return self.mix(self.model(series))


class Likelihood(nn.Module):
    evaluated = Mixed

    def __init__(self, model):
        super().__init__()
        self.model, self.mix = model, nn.Linear(3, 3)
        self.log_width = nn.Parameter(torch.zeros([]))
        self.register_buffer("slope", torch.rand([]))

    def forward(self, series, target):
        error = self.mix(self.model(series)) - target
        fixed = self.slope * self.log_width.square()
        return (error.square() * torch.exp(-2 * self.log_width)).mean() / 2 + self.log_width + fixed


class Drawn(Likelihood):
    def __init__(self, model):
        super().__init__(model)
        rank = int(np.random.default_rng().integers(1 << 30))
        with torch.no_grad():
            self.log_width.add_(rank / (1 << 30))
"""
OWN = {"log_width", "mix.weight", "mix.bias"}
LOSS, WEIGHT = 1e-6, 2e-6  # how far apart two ranks and one may be


class Meeting:
    """Where the threads of a group add up what each has."""

    def __init__(self, size):
        self.barrier, self.parts, self.sums = threading.Barrier(size, timeout=600), [None] * size, 0

    def total(self, rank, array):
        self.parts[rank] = array
        self.barrier.wait()
        found = sum(self.parts)
        self.barrier.wait()
        return found


class Threads(Ranks):
    """A rank that is a thread, with PyTorch's tensors."""

    def __init__(self, rank, size, meeting):
        super().__init__(rank, size)
        self.meeting = meeting

    def _total(self, array):
        return self.meeting.total(self.rank, array)

    def _sums(self, arrays):
        return [self.meeting.total(self.rank, it) for it in arrays]

    def _zeros(self, array):
        return torch.zeros_like(array)


def together(function, size=2):
    """Return what FUNCTION returns, or raises, on each of SIZE ranks."""
    meeting, found = Meeting(size), [None] * size

    def run(rank):
        try:
            found[rank] = function(Threads(rank, size, meeting))
        except BaseException as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def run_of(folder):
    """Return the losses, the validations and the last state of the run in FOLDER."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    last = max((folder / "checkpoints").glob("step-*"))
    losses = [row["loss"] for row in rows if "loss" in row]
    checks = [row["validation"]["loss"] for row in rows if "validation" in row]
    state = load_file(last / "state.safetensors")
    state.pop("random")
    return losses, checks, state


def assert_alike(one, other):
    """Assert that two runs have the same losses and weights up to rounding."""
    (losses, checks, state), (those, others, theirs) = run_of(one), run_of(other)
    assert len(losses) == len(those) > 0
    np.testing.assert_allclose(losses, those, atol=LOSS, rtol=0)
    np.testing.assert_allclose(checks, others, atol=LOSS, rtol=0)
    assert state.keys() == theirs.keys()
    for name, value in state.items():
        np.testing.assert_allclose(value, theirs[name], atol=WEIGHT, rtol=0, err_msg=name)


@pytest.fixture
def train_in_threads(monkeypatch):
    """Return a function that trains in torch on two ranks, and returns what each returned or raised."""
    here = threading.local()
    monkeypatch.setattr(loop, "ranks_of", lambda _backend: getattr(here, "ranks", ALONE))

    def start(config, out, make_task, **how):
        tasks = [make_task(config) for _ in range(2)]  # threads have one random state in common

        def run(ranks):
            here.ranks = ranks
            with ranks.together():
                return train(config, out, backend="torch", task=tasks[ranks.rank], **how)

        return together(run)

    return start


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_tell_each_other_things_of_any_size(size):
    def tell(ranks):
        short = ranks.exchange(("rank", ranks.rank))
        long = ranks.exchange(np.arange(1000 * ranks.rank, dtype=np.int64))
        return short, [it.shape for it in long], ranks.first(lambda: "of the first")

    for short, shapes, first in together(tell, size):
        assert short == [("rank", rank) for rank in range(size)]
        assert shapes == [(1000 * rank,) for rank in range(size)]
        assert first == "of the first"


def test_a_mean_counts_what_each_rank_has_as_it_weighs():
    values = [torch.tensor([1.0, 4.0]), torch.tensor([7.0, torch.nan])]
    mean = lambda ranks, weights: ranks.average([values[ranks.rank]], weights[ranks.rank])[0]  # noqa: E731
    for found in together(lambda ranks: mean(ranks, [3.0, 0.0])):
        assert found.tolist() == [1.0, 4.0]  # what counts for nothing may be anything
    for found in together(lambda ranks: mean(ranks, [1.0, 2.0])):
        assert found[0] == pytest.approx(5.0)
        assert found[1].isnan()
    assert ALONE.average(values, 0.0) is values


@pytest.mark.parametrize("failing", [0, 1])
def test_all_ranks_end_where_one_fails_and_that_one_says_why(failing):
    def fail(ranks):
        with ranks.together():
            if ranks.rank == failing:
                raise MismatchError("this does not fit", ["a part"])
            ranks.exchange("more")

    found = together(fail)
    assert isinstance(found[failing], MismatchError)
    assert isinstance(found[1 - failing], StoppedElsewhereError)
    assert "this does not fit" in str(found[1 - failing])


@pytest.mark.parametrize(
    "error", [MismatchError("all refuse", ["it"]), TrainingInterrupted("stopped")]
)
def test_where_all_fail_the_first_says_why(error):
    def fail(ranks):
        with ranks.together():
            raise error

    first, second = together(fail)
    assert first is error
    assert isinstance(second, StoppedElsewhereError)


@pytest.mark.parametrize("dimensions", [2, 1])
@pytest.mark.parametrize("times", [0, 1, 2])
def test_a_part_that_does_not_arrive_whole_is_noticed(dimensions, times):
    """MLX's ring may return a sum without the part of a rank that was killed."""

    class Broken(Threads):
        def _total(self, array):
            whole = super()._total(array)
            return array * times if array.ndim == dimensions else whole

    def tell(ranks):
        broken = Broken(ranks.rank, 2, ranks.meeting)
        with broken.together():
            broken.exchange(b"." * 1000)

    first, second = together(tell)
    assert type(first) is WeighbridgeError
    assert isinstance(second, StoppedElsewhereError)
    assert str(first) == str(second)
    assert "another rank has ended (what it said did not arrive)" in str(first)


def test_the_others_wait_for_the_first_to_end():
    done = []

    def end(ranks):
        with ranks.together():
            ranks.write(lambda: (time.sleep(0.05), done.append(ranks.rank)))
        return [*done]

    assert together(end) == [[0], [0]]


@pytest.mark.parametrize("changes", [{}, {"accumulation": 2}, {"clip_norm": 0.05, "ema": 0.9}])
def test_two_ranks_train_as_one_with_twice_the_batch(
    changes, series_config, series_task, train_in_threads, tmp_path
):
    whole = series_config(batch_size=8, **changes)
    train(whole, tmp_path / "one", backend="torch", task=series_task(whole))
    config = series_config(batch_size=4, **changes)
    first, second = train_in_threads(config, tmp_path / "two", series_task)
    assert first == second
    assert first.ranks == json.loads((tmp_path / "two/result.json").read_text())["ranks"] == 2
    assert_alike(tmp_path / "one", tmp_path / "two")


def test_two_ranks_train_what_the_objective_has_of_its_own(
    series_config, train_in_threads, tmp_path, monkeypatch
):
    (tmp_path / "made.py").write_text(FACTORY)
    monkeypatch.syspath_prepend(tmp_path)
    changes = {"objective": "made:Likelihood", "clip_norm": 0.05, "ema": 0.9}
    make_task = lambda config: build_task(config, make_forecaster())  # noqa: E731
    whole = series_config(batch_size=8, **changes)
    train(whole, tmp_path / "one", backend="torch", task=make_task(whole))
    config = series_config(batch_size=4, **changes)
    first, second = train_in_threads(config, tmp_path / "two", make_task)
    assert first == second
    assert_alike(tmp_path / "one", tmp_path / "two")
    one, two = (load_file(tmp_path / name / OWN_FILE) for name in ("one", "two"))
    assert one.keys() == two.keys() == OWN
    for name in OWN:
        np.testing.assert_allclose(one[name], two[name], atol=WEIGHT, rtol=0)


def test_uneven_ranks_train_as_one(series_config, series_task, train_in_threads, tmp_path):
    """Each example counts another number of times: a mean of the ranks' means is another gradient."""

    def make_task(config):
        task = series_task(config)
        weight = lambda batch: float(np.abs(batch.inputs["series"]).sum())  # noqa: E731
        loss = task.objective.make_loss

        class Weighted(torch.nn.Module):
            def __init__(self, model):
                super().__init__()
                self.model, self.part = model, loss(model)

            def forward(self, series, target):
                counts = series.abs().sum((1, 2))
                each = ((self.model(series) - target) ** 2).mean(1)
                return (each * counts).sum() / counts.sum()

        objective = replace(task.objective, weight=weight, make_loss=Weighted)
        return replace(task, objective=objective, loss=None)

    whole = series_config(batch_size=8)
    train(whole, tmp_path / "one", backend="torch", task=make_task(whole))
    results = train_in_threads(series_config(batch_size=4), tmp_path / "two", make_task)
    assert results[0] == results[1]
    assert_alike(tmp_path / "one", tmp_path / "two")


def test_two_ranks_compare_the_texts_of_the_whole_batch(
    pairs_config, pairs_task, train_in_threads, tmp_path
):
    sgd = {
        "name": "sgd",
        "learning_rate": 0.5,
    }  # AdamW makes as much of a gradient of rounding alone
    # A temperature of 0.05 makes twenty times as much of the rounding of a cosine.
    objective = {"name": "contrastive", "temperature": 0.5}
    settings = {"mode": "eval", "grad_cache": 3, "optimizer": sgd, "objective": objective}
    whole = pairs_config(batch_size=4, **settings)
    train(whole, tmp_path / "one", backend="torch", task=pairs_task(whole))
    config = pairs_config(batch_size=2, **settings)
    results = train_in_threads(config, tmp_path / "two", pairs_task)
    assert results[0] == results[1]
    assert_alike(tmp_path / "one", tmp_path / "two")


def test_a_module_in_memory_gets_the_same_weights_on_every_rank(monkeypatch, tmp_path):
    here = threading.local()
    for place in (module, loop):
        monkeypatch.setattr(place, "ranks_of", lambda _backend: here.ranks)
    linear = [torch.nn.Linear(3, 1) for _ in range(2)]  # of other weights each
    draws = np.random.default_rng(0).normal(size=(24, 3)).astype("f4")
    rows = {"input": draws, "target": draws[:, :1]}

    def fit(ranks):
        here.ranks = ranks
        settings = {"steps": 2, "batch_size": 2}
        given = linear[ranks.rank], "regression", rows, settings
        return train_live(given, tmp_path / "fit", "torch")

    first, second = together(fit)
    assert first == second
    one, other = (it.state_dict() for it in linear)
    assert all((one[name] == other[name]).all() for name in one)


@pytest.mark.parametrize("sizes", [{"dynamic_batch": {"min": 2, "max": 4}}, {"batch_tokens": 64}])
def test_what_cannot_be_divided_is_refused_before_anything_is_written(
    sizes, pairs_config, pairs_task, train_in_threads, tmp_path
):
    config = pairs_config(**sizes)
    first, second = train_in_threads(config, tmp_path / "two", pairs_task)
    assert isinstance(first, MismatchError)
    assert isinstance(second, StoppedElsewhereError)
    assert next(iter(sizes)) in first.problems[0]
    assert "objective contrastive: its loss compares all texts of a batch" in first.problems[1]
    assert not list(tmp_path.iterdir())


def test_batch_statistics_are_refused_by_name(series_config, train_in_threads, tmp_path):
    from weighbridge.tests.trainers.conftest import Forecaster

    class Normed(Forecaster):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(2)

        def forward(self, series):
            return super().forward(self.norm(series))

    make_task = lambda config: build_task(config, Normed())  # noqa: E731
    first, _ = train_in_threads(series_config(), tmp_path / "two", make_task)
    assert "model.norm.running_mean: batch statistics would be those of a rank" in str(first)


def test_a_run_goes_on_with_as_many_ranks_alone(
    series_config, series_task, train_in_threads, tmp_path
):
    config, out = series_config(batch_size=4), tmp_path / "run"
    train_in_threads(config, out, series_task)
    with pytest.raises(MismatchError) as caught:
        train(None, out, backend="torch", task=series_task(config), resume=True)
    assert caught.value.problems == ("ranks: 2 in the checkpoint, 1 now",)


def test_a_resumed_run_of_two_ranks_is_the_whole_one(
    series_config, series_task, train_in_threads, tmp_path
):
    config, parts = series_config(batch_size=4), tmp_path / "parts"
    train_in_threads(config, tmp_path / "whole", series_task)
    train_in_threads(config, parts, series_task)
    (last,) = (parts / "checkpoints").glob("step-00000006")
    for file in last.iterdir():
        file.unlink()
    last.rmdir()
    results = train_in_threads(None, parts, lambda _: series_task(config), resume=True)
    assert results[0] == results[1]
    one, other = (run_of(it) for it in (parts, tmp_path / "whole"))
    assert one[:2] == other[:2]
    assert one[2].keys() == other[2].keys()
    assert all((one[2][name] == other[2][name]).all() for name in one[2])


@pytest.mark.parametrize("backend", ["mlx", "torch"])
def test_what_ranks_average_is_the_gradient_of_the_whole_batch(backend, series_config, series_task):
    config = series_config(clip_norm=None)
    task = series_task(config)
    rows = task.splits["train"].batch
    loss, gradients = make_step(backend, task, config).gradients(rows(range(8)))
    seen = []

    class Noting(Ranks):
        def average(self, arrays, weight):
            seen.append(([np.array(it.tolist()) for it in arrays], weight))
            return arrays

    for rank, part in enumerate((range(3), range(3, 8))):
        make_step(backend, task, config, Noting(rank, 2)).advance([rows(part)], 1e-3)()
    weights = [weight for _, weight in seen]
    found = [
        np.average(them, axis=0, weights=weights)
        for them in zip(*(it for it, _ in seen), strict=True)
    ]
    for one, other in zip(found, [loss, *gradients.values()], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6, rtol=0)


@pytest.mark.parametrize("backend", ["mlx", "torch"])
def test_ranks_are_told_apart_by_their_random_numbers(backend, series_config, series_task):
    config = series_config()
    task = series_task(config)
    states = [make_step(backend, task, config, it).random() for it in (ALONE, Ranks(1, 2))]
    assert (states[0] != states[1]).any()
    assert (make_step(backend, task, config).random() == states[0]).all()


def test_torchs_ranks_disconnect_before_python_ends(monkeypatch, tmp_path):
    """Where threads of gloo still held tensors, one run in many ended with SIGABRT."""
    at_end, group = [], torch.distributed
    monkeypatch.setattr(module.atexit, "register", at_end.append)
    join = partial(group.init_process_group, init_method=(tmp_path / "store").as_uri())
    monkeypatch.setattr(group, "init_process_group", partial(join, rank=0, world_size=1))
    module.TorchRanks()
    assert group.is_initialized()
    at_end.pop()()
    assert not group.is_initialized()


def test_no_launcher_no_ranks(monkeypatch):
    for launcher in LAUNCHERS:
        monkeypatch.delenv(launcher.rank, raising=False)
    assert launched() is None
    assert ranks_of.__wrapped__("mlx") is ALONE
    require_alone("this")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert launched() is None


@pytest.mark.parametrize(
    ("names", "backend", "fitting"),
    [
        ({"RANK": "0", "WORLD_SIZE": "2"}, "mlx", "mlx.launch or mpirun"),
        ({"MLX_RANK": "0"}, "torch", "torchrun"),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "3"}, "torch", "torchrun"),
    ],
)
def test_a_launcher_of_the_other_backend_is_refused(names, backend, fitting, monkeypatch):
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UnsupportedError, match=f"--backend {backend} trains .* with {fitting}"):
        ranks_of.__wrapped__(backend)
    with pytest.raises(UnsupportedError, match="bench runs in one process"):
        require_alone("bench")
    monkeypatch.setenv(next(iter(names)), "1")
    with pytest.raises(StoppedElsewhereError):
        ranks_of.__wrapped__(backend)


@pytest.fixture
def launch(tmp_path, series_config, free_ports):
    """Return a function that trains the forecaster by the verb, as many ranks as asked for."""
    root = Path(__file__).parents[3]
    (tmp_path / "made.py").write_text(FACTORY)
    places = os.pathsep.join([str(root), str(tmp_path)])
    clean = {key: it for key, it in os.environ.items() if key not in {"RANK", "MLX_RANK"}}
    environment = {**clean, "PYTHONPATH": places, "OMP_NUM_THREADS": "1"}
    settings = {"model": "made:make", "trust_code": "made", "batch_size": 4, "accumulation": 2}
    (tmp_path / "recipe.yaml").write_text(dump_config(series_config(**settings)))
    torchrun = [
        "-m",
        "torch.distributed.run",
        "--nproc-per-node=2",
        f"--master-port={free_ports[0]}",
    ]
    mlx = ["-c", "from mlx._distributed_utils.launch import main; main()", "-n2"]
    mlx += [f"--starting-port={free_ports[0]}", "--", sys.executable]
    before = {("mlx", 2): mlx, ("torch", 2): torchrun}

    def start(backend, ranks, *words, wait=True):
        chosen = [] if backend == "mlx" else ["--backend", backend]
        command = [sys.executable, *before.get((backend, ranks), []), "-m", "weighbridge", "train"]
        run = partial(subprocess.run, check=False) if wait else subprocess.Popen
        kept = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
        return run([*command, *words, *chosen], cwd=tmp_path, env=environment, text=True, **kept)

    return start


@pytest.fixture
def free_ports():
    """Return two ports that nothing listens on."""
    import socket

    with socket.socket() as one, socket.socket() as other:
        for it in (one, other):
            it.bind(("127.0.0.1", 0))
        return [it.getsockname()[1] for it in (one, other)]


def errors(done):
    """Return the lines of what was started that are ours."""
    return [line for line in done.stderr.splitlines() if line.startswith(("Error:", "Traceback"))]


@pytest.mark.heavy
@pytest.mark.parametrize("backend", ["mlx", "torch"])
def test_two_launched_ranks_train_as_one_with_twice_the_batch(backend, launch, tmp_path):
    recipe = ("--recipe", "recipe.yaml")
    done = launch(backend, 1, "one", *recipe, "--set", "batch_size=8")
    assert done.returncode == 0, done.stderr
    done = launch(backend, 2, "two", *recipe)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("on 2 ranks") == 1
    assert_alike(tmp_path / "one", tmp_path / "two")
    done = launch(backend, 2, "two", *recipe)
    ours = [line for line in errors(done) if line.startswith("Error:")]
    assert len(ours) == 1
    assert "two exists" in ours[0]
    done = launch(backend, 1, "two", "--resume")
    assert "ranks: 2 in the checkpoint, 1 now" in done.stderr


@pytest.mark.heavy
@pytest.mark.parametrize("backend", ["mlx", "torch"])
def test_launched_ranks_train_what_the_objective_has_of_its_own(backend, launch, tmp_path):
    recipe = ("--recipe", "recipe.yaml", "--set", "objective=made:Likelihood")
    done = launch(backend, 1, "one", *recipe, "--set", "batch_size=8")
    assert done.returncode == 0, done.stderr
    done = launch(backend, 2, "two", *recipe)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("of its own train with the model") == 1
    assert_alike(tmp_path / "one", tmp_path / "two")
    assert load_file(tmp_path / "two" / OWN_FILE).keys() == OWN
    assert not [it for it in tmp_path.rglob(OWN_FILE) if it.parents[0].name.startswith("rank")]


@pytest.mark.heavy
@pytest.mark.parametrize("backend", ["mlx", "torch"])
def test_what_ranks_draw_apart_is_that_of_the_first(backend, launch, tmp_path):
    """An objective may draw numbers that no seed of ours reaches."""
    recipe = ("--recipe", "recipe.yaml", "--set", "objective=made:Drawn")
    done = launch(backend, 2, "two", *recipe)
    assert done.returncode == 0, done.stderr
    before = run_of(tmp_path / "two")
    for path in (tmp_path / "two/checkpoints").glob("step-00000006"):
        shutil.rmtree(path)
    done = launch(backend, 2, "two", "--resume")
    assert done.returncode == 0, done.stderr
    after = run_of(tmp_path / "two")
    assert before[:2] == after[:2]
    assert all((before[2][name] == after[2][name]).all() for name in before[2])


@pytest.mark.heavy
@pytest.mark.parametrize("backend", ["mlx", "torch"])
def test_a_rank_that_is_killed_ends_all_and_the_run_goes_on(backend, launch, tmp_path):
    import psutil

    long = ("--recipe", "recipe.yaml", "--set", "steps=2000", "--set", "checkpoint_every=5")
    started = launch(backend, 2, "run", *long, wait=False)
    while not list((tmp_path / "run/checkpoints").glob("step-*")) and started.poll() is None:
        time.sleep(0.1)
    ranks = [
        it
        for it in psutil.Process(started.pid).children(recursive=True)
        if "weighbridge" in it.cmdline() and "-m" in it.cmdline()
    ]
    ranks[-1].send_signal(signal.SIGKILL)
    _, said = started.communicate(timeout=600)
    assert started.returncode is not None
    assert said.count("Error: another rank has ended") == 1 or "SIGTERM" in said
    assert str(Path(loop.__file__)) not in said
    assert all(not it.is_running() or it.status() == psutil.STATUS_ZOMBIE for it in ranks)
    done = launch(backend, 2, "run", "--resume", "--recipe", "recipe.yaml")
    assert done.stderr.count("holds a run of another configuration") == 1
