"""A pytest plugin under which coremltools' own operation tests run our evaluator.

On a Mac these tests compare Core ML's predictions with expected values; elsewhere coremltools skips
the comparison. The plugin puts the evaluator in the place of Core ML and keeps a few cases of each
test: ``WEIGHBRIDGE_CASES`` of them.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

from weighbridge.converters.captures.mlprogram import load_program
from weighbridge.converters.captures.mlprogram.toolkit import quiet

with quiet():
    from coremltools.converters.mil import testing_utils
    from coremltools.converters.mil.mil.ops.tests import testing_utils as op_testing

COUNTS: Counter[str] = Counter()
LOOSER = {"fp32": 1, "fp16": 100}  # coremltools' own factor


def predicted(model, inputs):
    """Return what the evaluator computes for MODEL."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.mlpackage"
        model.save(str(path))
        program = load_program(path)
    given = {
        name: np.atleast_1d(np.asarray(inputs[name])).astype(feature.dtype)
        for name, feature in program.inputs.items()
    }
    return program.run(given)


def compare(mlmodel, input_key_values, expected_outputs, dtype="fp32", atol=1e-4, rtol=1e-5, **_):
    """Stand in for ``compare_backend``."""
    if not mlmodel.is_package or expected_outputs is None:
        return
    outputs = predicted(mlmodel, input_key_values)
    for name, expected in expected_outputs.items():
        got = testing_utils._get_coreml_out_from_dict(outputs, name)
        factor = LOOSER[dtype]
        np.testing.assert_allclose(got, expected, atol=atol * factor, rtol=rtol * factor)
        COUNTS[dtype] += 1


testing_utils.compare_backend = op_testing.compare_backend = compare


def pytest_collection_modifyitems(items):
    """Keep a few cases of each test, none of the older kind of model."""
    groups = defaultdict(list)
    for item in items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if getattr(parameters.get("backend"), "backend", "mlprogram") == "mlprogram":
            groups[item.nodeid.partition("[")[0]].append(item)
    chooser, cases = random.Random(0), int(os.environ["WEIGHBRIDGE_CASES"])
    items[:] = [
        item for group in groups.values() for item in chooser.sample(group, min(cases, len(group)))
    ]


def pytest_terminal_summary(terminalreporter):
    """Say how many outputs were compared."""
    terminalreporter.write_line(f"compared {COUNTS.total()}")
