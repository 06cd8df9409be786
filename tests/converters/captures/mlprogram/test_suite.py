"""coremltools' own operation tests, with the evaluator in the place of Core ML."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(importlib.util.find_spec("coremltools").origin).parent
SUITE = PACKAGE / "converters" / "mil" / "mil" / "ops" / "tests"
# Not evaluated here (refused by name), or tests of coremltools that need a Mac.
LEFT_OUT = (
    "CropResize and test_builder_to_backend_smoke",  # a mode that is not documented for boxes
    "invalid_indices",  # of undefined outcome
    "TestFill and symbolic",  # coremltools' loader refuses it
    "State", "corner_case",  # call predict themselves
)  # fmt: skip


@pytest.mark.heavy
@pytest.mark.skipif(not SUITE.is_dir(), reason="this coremltools comes without its tests")
def test_the_evaluator_passes_the_tests_that_core_ml_passes_on_a_mac(tmp_path):
    choice = " and ".join(f"not ({words})" for words in LEFT_OUT)
    options = ["-q", "-W", "ignore", "-p", "no:cacheprovider", "-p", "suite_plugin", "--tb=line"]
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    place = ["-c", str(tmp_path / "pytest.ini"), "--rootdir", str(tmp_path)]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *place, "-k", choice, str(SUITE)],
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parent),
            "PYTHONDONTWRITEBYTECODE": "1",
            "WEIGHBRIDGE_CASES": "1",
        },
        check=False,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout[-3000:]
    assert int(re.search(r"compared (\d+)", result.stdout)[1]) > 150
