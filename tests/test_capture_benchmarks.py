"""The benchmarks of captures, in small: they run, and judge right what is right."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "benchmarks" / "captures"
ENTRIES = ("clamp", "cummax", "fft.rfft", "linalg.det", "special.entr", "sinc")


@pytest.mark.heavy
def test_entries_of_the_table_of_torch_pass_forward_and_gradient(tmp_path):
    log = tmp_path / "log.jsonl"
    script = SCRIPTS / "op_db.py"
    subprocess.run([sys.executable, script, "--jobs", "1", "--log", log, *ENTRIES], check=True)
    records = map(json.loads, log.read_text().splitlines())
    found = {r["entry"]: r["status"] for r in records if r["status"] != "started"}
    assert found == dict.fromkeys(ENTRIES, "pass")
