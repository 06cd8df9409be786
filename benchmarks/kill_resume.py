"""Kill a conversion at random moments, give the same command again, and compare the files.

    python benchmarks/kill_resume.py [--kills 50] [--gigabytes 0.9]

A mixture of 64 experts is stacked into several shards. Each time ``kill -9`` ends the process at a
random moment; whatever is visible under the target's name then must be whole: nothing, the old
directory (every other time there is one, to be replaced), or the new one. The same command again
must give, file by file, what an undisturbed run gives. Writes ``results/kill_resume.json``.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import xxhash
from large_models import KINDS, make_model
from side_by_side import convert, environment, machine

RESULT = Path(__file__).parent / "results" / "kill_resume.json"
SHARD = 0.3  # GB
EARLY = 5  # one kill in so many is at any time; the others while tensors are written
OLD = b"something that was here before"


class Kill(NamedTuple):
    """One attempt: what was seen when the process was killed, and whether the end was right."""

    after_seconds: float
    replaced: bool
    visible: str  # nothing, old, new, or HALF-WRITTEN
    finished_tensors: int
    identical: bool


class Bench:
    """A source, the command that converts it, and what it should give."""

    def __init__(self, folder: Path, gigabytes: float) -> None:
        self.target = folder / "target"
        self.staging = folder / ".target.staging"
        self.variables = environment(folder)
        make_model(folder / "source", KINDS["experts"], gigabytes * 1e9, 5_000_000_000)
        options = ("--map", str(folder / "by_hand.wmap"), "--max-shard-size", str(SHARD), "--force")
        self.command = convert("torch-to-mlx", folder / "source", self.target, *options)
        self.finish()  # compiles the bytecode
        self.seconds, self.moving = self.timed()
        self.expected = hashes(self.target)
        facts = json.loads((self.target / "weighbridge.json").read_text(encoding="utf-8"))
        self.tensors = len(facts["tensors"])

    def start(self) -> subprocess.Popen[bytes]:
        """Start the command."""
        return subprocess.Popen(
            self.command, env=self.variables, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )

    def finish(self) -> None:
        """Run the command to its end; show what it said if it failed."""
        process = self.start()
        _, said = process.communicate()
        if process.returncode:
            raise SystemExit(said.decode())

    def await_staging(self, process: subprocess.Popen[bytes]) -> None:
        """Return when PROCESS begins to write."""
        while process.poll() is None and not (self.staging / "content").exists():
            time.sleep(0.002)

    def await_tensors(self, process: subprocess.Popen[bytes], count: int) -> None:
        """Return when PROCESS has written COUNT tensors, or has ended."""
        self.await_staging(process)
        while process.poll() is None and self.finished() < count and self.staging.exists():
            time.sleep(0.001)

    def timed(self) -> tuple[float, float]:
        """Return how long the command takes, and how long of that it writes."""
        shutil.rmtree(self.target)
        start = time.perf_counter()
        process = self.start()
        self.await_staging(process)
        begun = time.perf_counter()
        process.communicate()
        end = time.perf_counter()
        return end - start, end - begun

    def kill(self, chance: random.Random, number: int) -> Kill:
        """Kill the command at a random moment, give it again, and look at what there is."""
        old = self.prepare(replace=bool(number % 2))
        process = self.start()
        start = time.perf_counter()
        if number % EARLY:
            self.await_tensors(process, chance.randint(0, self.tensors))
            time.sleep(chance.random() * 2 * self.moving / self.tensors)
        else:
            time.sleep(chance.random() * self.seconds)
        process.send_signal(signal.SIGKILL)
        moment = time.perf_counter() - start
        process.communicate()
        visible = self.visible()
        finished = self.finished()
        self.finish()
        identical = hashes(self.target) == self.expected and not self.staging.exists()
        return Kill(round(moment, 3), old, visible, finished, identical)

    def prepare(self, *, replace: bool) -> bool:
        """Remove what is at the target; put something there to be replaced if so wanted."""
        shutil.rmtree(self.target, ignore_errors=True)
        if replace:
            self.target.mkdir()
            (self.target / "old").write_bytes(OLD)
        return replace

    def visible(self) -> str:
        """Say what the target's name stands for."""
        if not self.target.exists():
            return "nothing"
        found = hashes(self.target)
        if found == {"old": xxhash.xxh3_64_hexdigest(OLD)}:
            return "old"
        return "new" if found == self.expected else "HALF-WRITTEN"

    def finished(self) -> int:
        """Return how many tensors the journal has."""
        try:
            lines = (self.staging / "content" / ".model.journal").read_bytes().count(b"\n")
        except FileNotFoundError:  # it goes when all is written
            return 0
        return max(0, lines - 1)


def hashes(folder: Path) -> dict[str, str]:
    """Return file name -> hash of everything in FOLDER."""
    found = {}
    for path in sorted(folder.rglob("*")):
        digest = xxhash.xxh3_64()
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
        found[str(path.relative_to(folder))] = digest.hexdigest()
    return found


def summary(bench: Bench, kills: list[Kill]) -> dict[str, Any]:
    """Return the counts, and every kill."""
    states = [kill.visible for kill in kills]
    return {
        "kills": len(kills),
        "identical": sum(kill.identical for kill in kills),
        "half_written": states.count("HALF-WRITTEN"),
        "visible": {state: states.count(state) for state in sorted(set(states))},
        "resumed_with_tensors": sum(kill.finished_tensors > 0 for kill in kills),
        "undisturbed_seconds": round(bench.seconds, 3),
        "files": bench.expected,
        "all": [kill._asdict() for kill in kills],
        "machine": machine(),
    }


def show(result: Mapping[str, Any]) -> None:
    """Print the counts."""
    print(
        f"killed {result['kills']} times, identical {result['identical']},"
        f" half-written targets {result['half_written']}"
    )
    seen = ", ".join(f"{state} {count}" for state, count in result["visible"].items())
    print(f"visible after the kill: {seen}; went on from {result['resumed_with_tensors']} journals")


def main() -> int:
    """Run, print, keep; return 1 when anything differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--gigabytes", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(Path(name), arguments.gigabytes)
        kills = [bench.kill(chance, number) for number in range(arguments.kills)]
        result = summary(bench, kills) | {"seed": arguments.seed}
    show(result)
    arguments.out.parent.mkdir(exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0 if result["identical"] == result["kills"] and not result["half_written"] else 1


if __name__ == "__main__":
    sys.exit(main())
