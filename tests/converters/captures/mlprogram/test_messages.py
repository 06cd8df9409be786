"""A package is read without importing coremltools, which takes seconds, and prints nothing."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

CODE = """
import json, sys
import weighbridge.converters.captures.mlprogram.signatures
from weighbridge.converters.captures.mlprogram import messages
before = sorted({"coremltools", "sklearn", "torch"} & set(sys.modules))
import weighbridge.converters.captures.mlprogram.program
from weighbridge.converters.captures.mlprogram.toolkit import coremltools
proto = coremltools.proto
same = [proto.Model_pb2.Model is messages.Model_pb2.Model, proto.MIL_pb2.Program is messages.MIL_pb2.Program]
print(json.dumps([before, same]))
"""


@pytest.fixture(scope="module")
def imported():
    """Return what a process printed that imported one after the other: it takes seconds."""
    return subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)


def test_a_signature_is_read_without_coremltools_and_its_messages_are_coremltools_own(imported):
    assert json.loads(imported.stdout) == [[], [True, True]]


def test_importing_coremltools_prints_nothing(imported):
    assert (imported.stdout.count("\n"), imported.stderr) == (1, "")  # the answer alone
