"""A package is read without importing coremltools, which takes seconds."""

from __future__ import annotations

import json
import subprocess
import sys


def test_a_signature_is_read_without_coremltools_and_its_messages_are_coremltools_own():
    code = """
import json, sys
import weighbridge.converters.captures.mlprogram.signatures
from weighbridge.converters.captures.mlprogram import messages
before = sorted({"coremltools", "sklearn", "torch"} & set(sys.modules))
from weighbridge.converters.captures.mlprogram.toolkit import coremltools
proto = coremltools.proto
same = [proto.Model_pb2.Model is messages.Model_pb2.Model, proto.MIL_pb2.Program is messages.MIL_pb2.Program]
print(json.dumps([before, same]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == [[], [True, True]]
