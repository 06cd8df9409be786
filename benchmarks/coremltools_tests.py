"""Run coremltools' own tests of operations, which predict on a Mac alone, against our evaluator.

    python benchmarks/coremltools_tests.py [--sample K/N] [FILE ...]

FILE is one of coremltools' test files, below its ``converters/mil`` (``mil/ops/tests/iOS17/test_linear.py``);
without any, all of ``FILES``. ``--sample 2/5`` runs every fifth test from the second. A test counts where it
asks for a prediction of an ML program: ``mismatch`` where its values are not those that the test expects, ``not
implemented`` where the evaluator refuses the program, ``other`` where anything else fails after a prediction.
Rows are added to ``results/coremltools_tests.json``.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import coremltools
import numpy as np
import pytest

from weighbridge.converters.captures.mlprogram.program import load_program
from weighbridge.errors import UnsupportedError
from weighbridge.tests.support.side_by_side import machine

RESULT: Final = Path(__file__).with_name("results") / "coremltools_tests.json"
HERE: Final = Path(coremltools.__file__).parent / "converters" / "mil"
FILES: Final = (
    *(str(it.relative_to(HERE)) for it in sorted((HERE / "mil/ops/tests").rglob("test_*.py"))),
    "frontend/torch/test/test_torch_ops.py",
    "frontend/torch/test/test_torch_stateful_model.py",
)


class Counted:
    """A plugin of pytest: predictions are the evaluator's, and every test that asks for one is counted."""

    def __init__(self, part: tuple[int, int]) -> None:
        self.part = part
        self.asked: set[str] = set()
        self.refused: dict[str, str] = {}
        self.rows: dict[str, Counter[str]] = {}
        self.failed: dict[str, str] = {}
        self.test = ""

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Keep the tests of the sample."""
        first, step = self.part
        items[:] = items[first - 1 :: step]

    def pytest_runtest_setup(self, item: Any) -> None:
        """Remember which test runs, and draw the same numbers in each run."""
        self.test = item.nodeid
        np.random.seed(0)  # noqa: NPY002 - coremltools' tests draw from it

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Count what became of a test that asked for a prediction."""
        if report.when != "call" or report.nodeid not in self.asked:
            return
        told = str(report.longrepr).strip().splitlines()[-1:] if report.failed else []
        kind = report.outcome if not report.failed else self.kind(report)
        row = self.rows.setdefault(report.nodeid.partition("::")[0], Counter())
        row[kind] += 1
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            reason = self.refused.get(report.nodeid) or getattr(crash, "message", "".join(told))
            self.failed[report.nodeid] = f"{kind}: {reason[:300]}"

    def kind(self, report: Any) -> str:
        """Return how a test failed."""
        if report.nodeid in self.refused:
            return "not implemented"
        words = str(report.longrepr)
        return "mismatch" if "Not equal to tolerance" in words else "other"

    def predict(self, model: Any, data: Mapping[str, Any], state: Any = None) -> dict[str, Any]:
        """Return what the evaluator makes of DATA, in the shapes and dtypes in which Core ML gives it out."""
        if model.get_spec().WhichOneof("Type") != "mlProgram":
            pytest.skip("no ML program")
        self.asked.add(self.test)
        try:
            program = load_program(Path(model.package_path), model.function_name or None)
        except UnsupportedError as error:
            self.refused[self.test] = str(error)
            raise
        given = {
            name: np.asarray(data[name]).astype(it.dtype).reshape(shape_of(data[name], it.shape))
            for name, it in program.inputs.items()
        }
        made = program.run(given, state=state)
        return {name: outward(value) for name, value in made.items()}


def shape_of(value: Any, declared: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the shape of VALUE, without the axis that tests give a number where none is DECLARED."""
    return np.asarray(value).shape if declared else ()


def outward(value: Any) -> Any:
    """Return VALUE as Core ML gives it: halves as float32, numbers and booleans with an axis and as int32."""
    value = value.astype("float32") if value.dtype == np.float16 else value
    return value if value.shape else value.reshape(1)


def on_a_mac(patch: pytest.MonkeyPatch, counted: Counted) -> None:
    """Let coremltools' tests predict, by COUNTED."""
    from coremltools.converters.mil import testing_utils
    from coremltools.converters.mil.frontend.torch.test import testing_utils as of_torch

    for module in (testing_utils, of_torch):
        patch.setattr(module, "_IS_MACOS", True)
    patch.setattr(coremltools.models.utils, "_macos_version", lambda: (26, 0))
    model = coremltools.models.MLModel

    def predict(self: Any, data: Mapping[str, Any], state: Any = None) -> dict[str, Any]:
        return counted.predict(self, data, state)

    patch.setattr(model, "predict", predict)
    patch.setattr(
        model, "make_state", lambda self: load_program(Path(self.package_path)).new_state()
    )


def main() -> None:
    """Run the files that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", default="1/1")
    parser.add_argument("files", nargs="*")
    asked = parser.parse_args()
    os.environ.setdefault("PYMIL_TEST_TARGETS", "mlprogram")
    first, step = map(int, asked.sample.split("/"))
    counted = Counted((first, step))
    with pytest.MonkeyPatch.context() as patch:
        on_a_mac(patch, counted)
        files = [str(HERE / it) for it in asked.files or FILES]
        quiet = ["-q", "--no-header", "-p", "no:cacheprovider", "--tb=line", "-W", "ignore"]
        pytest.main([*quiet, "--rootdir", str(HERE), "-c", os.devnull, *files], plugins=[counted])
    keep(counted, asked.sample)


def keep(counted: Counted, sample: str) -> None:
    """Print what was COUNTED in SAMPLE, and add it to the results."""
    known = json.loads(RESULT.read_text()) if RESULT.is_file() else {}
    rows = known.get("files", {}) | {
        name: {"sample": sample, **row} for name, row in counted.rows.items()
    }
    failed = {
        k: v for k, v in known.get("failed", {}).items() if k.partition("::")[0] not in counted.rows
    }
    failed |= counted.failed
    total: Counter[str] = Counter()
    for row in rows.values():
        total.update({k: v for k, v in row.items() if k != "sample"})
    versions = {"coremltools": coremltools.__version__, "numpy": np.__version__}
    document = {"versions": versions, "total": total, "files": rows, "failed": failed}
    RESULT.write_text(json.dumps(document | {"machine": machine()}, indent=1) + "\n")
    for name, reason in counted.failed.items():
        print(name, reason)
    print(dict(total))


if __name__ == "__main__":
    main()
