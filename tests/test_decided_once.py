"""What a job has to find out and to decide, it does in one place."""

import ast
from collections import Counter
from pathlib import Path

import pytest

from weighbridge import jobs
from weighbridge.converters.maps.sources import choose
from weighbridge.converters.planning import conversion

ROOT = Path(__file__).parent.parent
FOLDERS = ("converters/models", "converters/planning", "jobs", "verbs")
# Each function with the files that call it, once for each call.
CALLS = {
    "Conversion": ["converters/planning/conversion.py"],
    "build_factory": ["converters/models/specs.py"],
    "map_of": ["converters/planning/conversion.py"],
    "translated": ["converters/planning/conversion.py"],
    "source_headers": ["converters/planning/conversion.py"],
    "plan_job": [
        "converters/planning/transcoding.py",  # once more, where codes of some weights cannot move
        "converters/planning/view.py",
        "jobs/converting.py",
        "jobs/export_gguf.py",
        "jobs/quantizing/plan.py",
        "jobs/quantizing/transcoded.py",  # of the candidate
    ],
    "Staging": ["jobs/pipeline.py"],
}


def called(node: ast.AST) -> str | None:
    """Return the plain name that NODE calls."""
    if not isinstance(node, ast.Call):
        return None
    return getattr(node.func, "id", None)


def test_a_decision_is_taken_in_one_place():
    places = {name: [] for name in CALLS}
    for path in (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))):
        for name in filter(CALLS.get, map(called, ast.walk(ast.parse(path.read_text())))):
            places[name].append(path.relative_to(ROOT).as_posix())
    assert places == CALLS


@pytest.fixture
def found_out(monkeypatch):
    """How often each thing is found out of each model, by what it is and the model's folder."""
    counts = Counter()

    def counted(module, name):
        find = getattr(module, name)

        def finding(model, *more):
            counts[name, model.path, *more] += 1
            return find(model, *more)

        monkeypatch.setattr(module, name, finding)

    counted(choose, "chosen_map")
    counted(conversion, "translated")
    counted(conversion, "source_headers")
    return counts


@pytest.mark.heavy
def test_a_conversion_with_its_check_finds_out_each_thing_once(tiny_bert_dir, tmp_path, found_out):
    assert jobs.convert(str(tiny_bert_dir), tmp_path / "mlx", "mlx").status == "PASS"
    assert found_out["chosen_map", tiny_bert_dir] == 1
    assert set(found_out.values()) == {1}
    found_out.clear()
    assert jobs.convert(str(tmp_path / "mlx"), tmp_path / "back", "torch").status == "PASS"
    assert found_out["chosen_map", tmp_path / "mlx"] == 1
    assert set(found_out.values()) == {1}
