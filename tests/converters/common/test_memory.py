"""Too little memory is one line that names the need, before the work starts where that can be known."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file

from weighbridge.cli import main
from weighbridge.converters.adapters import write_adapter
from weighbridge.converters.common import memory
from weighbridge.converters.common.memory import VARIABLE, Room
from weighbridge.converters.runtimes.mlx import MlxRunner
from weighbridge.converters.values import LowRank
from weighbridge.trainers.config import dump_config, load_config

UPDATED = "encoder.layer.0.attention.self.query.weight"
GB = 10**9


@pytest.fixture
def adapter(tiny_bert_dir, tmp_path) -> Path:
    out, into = load_file(tiny_bert_dir / "model.safetensors")[UPDATED].shape
    update = LowRank(np.ones((2, into), np.float32), np.ones((out, 2), np.float32), 1.0)
    write_adapter(tmp_path / "adapter", {UPDATED: update}, config={"num_layers": -1})
    return tmp_path / "adapter"


def run(*arguments, code=3):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output + repr(result.exception)
    assert "Traceback" not in result.output
    return result


SERIES = (
    *(
        "--config",
        "examples/timeseries.yaml",
        "--set",
        "trust_code=examples.timeseries",
        "--set",
        "model=examples.timeseries:build",
    ),
    *("--set", "data.train=x.npz", "--set", "data.validation=x.npz"),
)
VERBS = {
    "convert": ("convert", "torch-to-mlx", "{source}", "{out}"),
    "merge": ("merge", "{source}", "{adapter}", "{out}"),
    "convert an adapter": ("convert", "mlx-to-peft", "{adapter}", "{out}", "--base", "{source}"),
    "record": ("parity", "record", "{source}", "{out}"),
    "check": ("parity", "check", "{source}", "{source}"),
    "export": ("export", "coreml", "{source}", "{out}.mlpackage"),
    "export gguf": ("export", "gguf", "{source}", "{out}.gguf", "--like", "{source}/config.json"),
    "infer": (
        "map",
        "infer",
        "examples.ports.encoder:build",
        "examples.ports.encoder:build_mlx",
        "{out}.wmap",
    ),
    "train": ("train", "{out}", *SERIES),
    "preflight": ("preflight", *SERIES),
}


@pytest.mark.parametrize("verb", VERBS.values(), ids=list(VERBS))
def test_what_cannot_fit_is_refused_before_it_starts(
    tiny_bert_dir, adapter, tmp_path, monkeypatch, verb
):
    monkeypatch.setenv(VARIABLE, "0.05")
    paths = {"source": tiny_bert_dir, "adapter": adapter, "out": tmp_path / "out"}
    before = sorted(tmp_path.iterdir())
    output = run(*(word.format_map(paths) for word in verb)).output
    assert "needs about" in output
    assert "0.05 GB" in output
    assert output.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


def test_a_check_needs_no_more_than_what_is_held_at_once(fixtures, monkeypatch):
    monkeypatch.setenv(VARIABLE, "0.05")
    model = fixtures / "llama" / "model"
    assert "largest tensor; all others pass by" in run("parity", "check", model, model).output


def test_a_run_that_goes_on_needs_as_much(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, "0.1")
    (tmp_path / "run").mkdir()
    config = load_config("examples/timeseries.yaml", SERIES[3::2])
    (tmp_path / "run" / "config.yaml").write_text(dump_config(config))
    assert (
        "to train examples.timeseries:build needs"
        in run("train", tmp_path / "run", "--resume").output
    )


def test_a_conversion_without_a_check_needs_little(tiny_bert_dir, tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, "0.1")
    verb = ("convert", "torch-to-mlx", tiny_bert_dir, tmp_path / "out")
    assert "--check none" in run(*verb).output
    run(*verb, "--check", "none", code=0)


def test_what_may_fit_later_is_begun_with_a_warning(tiny_bert_dir, monkeypatch):
    monkeypatch.setattr(memory, "room", lambda: Room(1, 64 * GB, "this machine has"))
    result = run("parity", "check", tiny_bert_dir, tiny_bert_dir, "--quick", "--json", code=0)
    assert "warning: to check" in result.stderr
    assert result.stdout.startswith("{")


def test_a_user_may_count_on_more(tiny_bert_dir, monkeypatch):
    monkeypatch.setenv(VARIABLE, "many")
    assert VARIABLE in run("parity", "check", tiny_bert_dir, tiny_bert_dir).output


SAID = {
    "Python": MemoryError(),
    "numpy": MemoryError("Unable to allocate 119. MiB for an array with shape (125018112,)"),
    "torch": RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"),
    "MLX": RuntimeError("[malloc_or_wait] Unable to allocate 1000000000 bytes."),
    "C++": RuntimeError("std::bad_alloc"),
    "the loader, by an import": ImportError("libtorch_cpu.so: failed to map segment from shared object"),
    "the loader": OSError("libtorch_cpu.so: cannot allocate memory in static TLS block"),
    "threads": RuntimeError("can't start new thread"),
}  # fmt: skip


@pytest.mark.parametrize("error", SAID.values(), ids=list(SAID))
def test_memory_that_runs_out_is_one_line_whoever_says_it(tiny_bert_dir, monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("weighbridge.jobs.parity.compare", fail)
    output = run("parity", "check", tiny_bert_dir, tiny_bert_dir).output
    assert "memory ran out" in output
    assert "to check" in output
    assert "needs about" in output
    assert output.count("\n") == 1


@pytest.mark.heavy
def test_a_candidate_that_finds_no_memory_is_not_said_to_differ(tiny_bert_dir, monkeypatch):
    def fail(*_):
        raise MemoryError

    monkeypatch.setattr(MlxRunner, "run", fail)
    verb = ("parity", "check", tiny_bert_dir, tiny_bert_dir, "--runtime", "mlx", "--quick")
    assert "memory ran out" in run(*verb).output


def test_another_failure_of_the_same_kind_is_no_shortage():
    assert not memory.ran_out(RuntimeError("shapes differ"))
    assert not memory.ran_out(OSError(2, "cannot allocate memory"))
    assert not memory.ran_out(ValueError("bad_alloc"))


def limited(
    size: int, *arguments: object, entry: tuple[str, ...] = ("-m", "weighbridge")
) -> subprocess.CompletedProcess[str]:
    """Run the command with SIZE bytes of addresses."""
    return subprocess.run(
        [sys.executable, *entry, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (size, size)),
    )


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps this limit")
@pytest.mark.parametrize("size", [300_000_000, 800_000_000])
def test_ulimit_is_told_before_a_library_fails(tiny_bert_dir, tmp_path, size):
    done = limited(size, "parity", "record", tiny_bert_dir, tmp_path / "golden")
    assert done.returncode == 3, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert "memory" in done.stderr
    assert "ulimit -v" in done.stderr
    assert list(tmp_path.iterdir()) == []


ENTRIES = {
    "python -m": ("-m", "weighbridge"),
    "console script": ("-c", "from weighbridge.cli import main; main()"),
}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps this limit")
@pytest.mark.parametrize("entry", ENTRIES.values(), ids=list(ENTRIES))
@pytest.mark.parametrize("size", [17_000_000, 30_000_000, 100_000_000, 153_600_000])
def test_a_limit_below_what_python_and_numpy_take_is_told_before_they_fail(tmp_path, size, entry):
    done = limited(size, "inspect", tmp_path, entry=entry)
    assert done.returncode == 3, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert f"ulimit -v allows {size / 1e6:.0f} MB" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps this limit")
def test_help_needs_little_memory():
    assert limited(30_000_000, "--help").returncode == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps this limit")
def test_a_limit_that_is_large_enough_refuses_nothing(tiny_bert_dir, tmp_path):
    verb = ("convert", "torch-to-mlx", tiny_bert_dir, tmp_path / "out", "--check", "none")
    done = limited(4 * GB, *verb)
    assert done.returncode == 0, done.stderr


def groups(tmp_path, monkeypatch, lines, files) -> list[Room]:
    """Return the limits of a process of the groups in LINES, with FILES below the root."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    read = Path.read_text

    def reads(path, *arguments, **options):
        return lines if str(path) == "/proc/self/cgroup" else read(path, *arguments, **options)

    monkeypatch.setattr(Path, "read_text", reads)
    return list(memory.group_limits(tmp_path))


def test_a_control_group_limits_in_its_second_version(tmp_path, monkeypatch):
    files = {
        "docker/memory.max": "2000\n",
        "docker/memory.current": "1500\n",
        "docker/memory.stat": "anon 1\ninactive_file 300\n",
        "docker/job/memory.max": "max\n",
        "docker/job/memory.current": "1500\n",
    }
    [limit] = groups(tmp_path, monkeypatch, "0::/docker/job\n", files)
    assert (limit.free, limit.limit) == (800, 2000)


def test_a_control_group_limits_in_its_first_version(tmp_path, monkeypatch):
    files = {
        "memory/job/memory.limit_in_bytes": "2000\n",
        "memory/job/memory.usage_in_bytes": "500\n",
    }
    [limit] = groups(tmp_path, monkeypatch, "7:cpu:/\n4:memory:/job\n", files)
    assert (limit.free, limit.limit) == (1500, 2000)
