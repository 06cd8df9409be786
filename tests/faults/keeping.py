"""Give every writing verb with ``--force`` to a folder of the zoo and count what was lost."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from weighbridge.tests.faults.commands import COMMANDS
from weighbridge.tests.faults.mounts import unmount
from weighbridge.tests.faults.worlds import FAILED, PASSED, World
from weighbridge.tests.faults.zoo import ANIMALS, REPLACEABLE, Asked, Pen, everything


class Visit(NamedTuple):
    """What one verb did to one folder.

    Attributes:
        command: the verb.
        animal: the folder.
        code: the exit code.
        said: the last line.
        lost: files that are gone or changed.
        left: files that were not there.
        problems: what should not be.
    """

    command: str
    animal: str
    code: int
    said: str
    lost: tuple[str, ...]
    left: tuple[str, ...]
    problems: tuple[str, ...]


def visit(world: World, animal: str, results: Mapping[str, Path]) -> Visit:
    """Give the command of WORLD to ANIMAL; RESULTS are those of each command, with their records."""
    folder = world.place
    world.clear()
    pen = Pen(
        folder,
        world.target.name,
        lambda: _put(results[world.name], COMMANDS[world.name].target, world.target),
        lambda name, path: _put(results[name], COMMANDS[name].target, path),
        world.sources,
    )
    given = ANIMALS[animal](pen)
    asked = given if isinstance(given, Asked) else Asked(str(given))
    before = everything(folder)
    words = world.command.given(world.sources, Path(asked.target))
    words = [asked.target if word == str(Path(asked.target)) else word for word in words]
    force = [] if world.command.trains else ["--force"]
    ended = world.server.run([*words, *force], [], **asked.more)
    after = everything(folder)
    unmount(world.target)
    may = animal in REPLACEABLE or (ended.code in PASSED and _was_ours(animal, world.name))
    mine = [name for name in before if not (may and _within(name, pen.name))]
    lost = tuple(name for name in mine if after.get(name) != before[name])
    left = tuple(
        name for name in after if name not in before and not (ended.code in PASSED and may)
    )
    lines = ended.output.strip().splitlines() or [""]
    problems = [f"lost {name}" for name in lost] + [f"left {name}" for name in left]
    if ended.code not in ((FAILED, *PASSED) if may else (FAILED,)):
        problems.append(f"ended with {ended.code}: {ended.output[-500:]}")
    if ended.code == FAILED and not lines[-1].startswith("Error: "):
        problems.append(f"not one line: {ended.output[-500:]}")
    return Visit(world.name, animal, ended.code, lines[-1], lost, left, tuple(problems))


class Results(Mapping[str, Path]):
    """A folder with an older result of each of WORLDS, made when it is asked for."""

    def __init__(self, worlds: Sequence[World]) -> None:
        self._worlds = {world.name: world for world in worlds}

    def __getitem__(self, name: str) -> Path:
        """Return the folder with the result of the command NAME."""
        return self._worlds[name].kept()

    def __iter__(self) -> Iterator[str]:
        """Return the names of the commands."""
        return iter(self._worlds)

    def __len__(self) -> int:
        """Return the number of commands."""
        return len(self._worlds)


def _put(folder: Path, name: str, target: Path) -> None:
    """Copy the result NAME in FOLDER, and what lies beside it, to TARGET."""
    for path in folder.iterdir():
        if path.name.startswith(name):
            place = target.with_name(target.name + path.name.removeprefix(name))
            (shutil.copytree if path.is_dir() else shutil.copy)(path, place)


KIND = {
    "a golden of ours": ("record",),
    "an adapter of ours": ("mlx-to-peft", "peft-to-mlx"),
    "a map of ours": ("infer",),
    "a GGUF file of ours": ("gguf", "quantized-to-gguf"),
    "a package of ours": (*("coreml", "coreml-compressed", "coreml-functions", "coreml-pictures"),),
    "an asset of ours": ("coreai", "coreai-stateful"),
    "a model of ours": (
        *(
            "quantize",
            "quantize-library",
            "repaired",
            "quantized-to-torch",
            "torch-to-quantized",
            "dequantized",
        ),
        *("gguf-to-mlx", "gguf-to-torch", "onnx-to-torch", "coreml-to-mlx"),
        *("torch-to-mlx", "mlx-to-torch", "shards", "checked"),
        *("merge", "merge-quantized"),
    ),
}


def _was_ours(animal: str, command: str) -> bool:
    return command in KIND.get(animal, ())


def _within(name: str, target: str) -> bool:
    """Tell whether NAME is the target, in it, or its record."""
    return name.split("/", maxsplit=1)[0] in (target, f"{target}.weighbridge.json")
