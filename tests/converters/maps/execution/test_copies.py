"""Moving a stack of experts takes no more memory than a part of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from weighbridge.converters.checkpoints import Header
from weighbridge.converters.checkpoints.formats.safetensors import encode_header

EXPERTS, ROWS, COLUMNS = 64, 1024, 2048  # 268 MB in 16 bit
MOVES = {
    "stacked": "x.{e}.w [o i] <-> y.w [e o i]",
    "taken apart": "y.w [e o i] <-> x.{e}.w [o i]",
    "transposed": "y.w [e o i] <-> x.w [e i o]",
    "stacked and transposed": "x.{e}.w [o i] <-> y.w [e i o]",
    "split": "y.w [e (g + u) i] <-> g.w [e g i], u.w [e u i] where g = 512",
    "computed": "x.{e}.w => y.w by $0 = Add(#0, #0)",
}
MOST = 150  # MB
MOVE = """
import sys
from pathlib import Path
from weighbridge.converters.checkpoints import Writer, open_checkpoint
from weighbridge.converters.maps import WeightMap, execute
source, target = map(Path, sys.argv[1:3])
checkpoint = open_checkpoint(source)
plan = WeightMap.parse(sys.argv[3]).bind(checkpoint.headers)
execute(plan, checkpoint, Writer(target, plan.layout))
# Not ru_maxrss, which begins with what the parent held at the fork.
status = Path("/proc/self/status").read_text()
print(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
"""


def make(folder, layout):
    """Write a file of zeros; it takes no room on the disk."""
    folder.mkdir()
    header = encode_header(layout, {})
    with (folder / "model.safetensors").open("wb") as file:
        file.write(header)
        file.truncate(len(header) + sum(what.nbytes for what in layout.values()))


@pytest.mark.heavy
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux only")
@pytest.mark.parametrize("move", MOVES)
def test_a_stack_larger_than_the_bar_is_moved_within_it(move, tmp_path):
    if MOVES[move].startswith("x"):
        layout = {f"x.{e}.w": Header("BF16", (ROWS, COLUMNS)) for e in range(EXPERTS)}
    else:
        layout = {"y.w": Header("BF16", (EXPERTS, ROWS, COLUMNS))}
    make(tmp_path / "source", layout)
    (tmp_path / "target").mkdir()
    command = [sys.executable, "-c", MOVE, tmp_path / "source", tmp_path / "target", MOVES[move]]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    assert int(answer.stdout) * 1024 / 1e6 < MOST
