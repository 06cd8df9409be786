"""The fixtures are what their script makes, and enough to begin with."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest

import weighbridge
from weighbridge.fixtures import FIRST, HERE
from weighbridge.fixtures.make import FAMILIES, FIXTURES, LANGUAGE_MODELS, made, recorded
from weighbridge.parity.check.distances import distance
from weighbridge.parity.goldens.golden import Golden

ROOT = Path(__file__).parent.parent
LARGEST = 5_000_000  # bytes of all fixtures
# Where the class of the MLX library is known to compute otherwise, the check says so.
FAULTS = {
    "modernbert": "mlx_embeddings.models.modernbert computes the tanh form of gelu;"
    " it does not read hidden_activation"
}
EACH = [
    pytest.param(name, marks=[] if name == FIRST else [pytest.mark.heavy], id=name)
    for name in FIXTURES
]


def test_every_table_has_a_fixture():
    tables = {path.stem for path in (ROOT / "converters" / "maps" / "tables").glob("*.wmap")}
    assert set(FAMILIES) == tables
    assert len(LANGUAGE_MODELS) == 6


def test_the_fixtures_are_small_and_only_those_of_the_script():
    assert {path.name for path in HERE.iterdir() if (path / "model").exists()} == set(FIXTURES)
    assert sum(path.stat().st_size for path in HERE.rglob("*.*")) <= LARGEST


@pytest.mark.parametrize("name", EACH)
def test_the_script_makes_the_model_that_is_kept(name, tmp_path):
    made(FIXTURES[name], tmp_path)
    file = "model.safetensors"
    assert (tmp_path / file).read_bytes() == (HERE / name / "model" / file).read_bytes()


@pytest.mark.parametrize("name", EACH)
def test_a_fresh_recording_is_the_golden_within_its_own_errors(name):
    kept, fresh = Golden.load(HERE / name / "golden"), recorded(name)
    assert (kept.spec, kept.signature, kept.level) == (name, fresh.signature, "verdict")
    assert kept.provenance["hashes"] == fresh.provenance["hashes"]
    assert {n: s.hashes for n, s in kept.sketches.items()} == {
        n: s.hashes for n, s in fresh.sketches.items()
    }
    for one, other in zip(kept.probes, fresh.probes, strict=True):
        assert one.name == other.name
        assert all(np.array_equal(one.inputs[key], other.inputs[key]) for key in one.inputs)
    rows = kept.outputs["stored"], fresh.outputs["stored"], kept.errors["stored/float32"]
    for wanted, found, errors in zip(*rows, strict=True):
        for output, error in errors.items():
            assert distance(found[output], wanted[output], None).whole <= error.whole


@pytest.mark.parametrize("name", EACH)
def test_a_conversion_passes_against_the_golden_alone(name, tmp_path):
    weighbridge.convert(HERE / name / "model", tmp_path / "mlx", to="mlx", check="none")
    verdict = weighbridge.check(HERE / name / "golden", tmp_path / "mlx")
    failed = [stage for stage in verdict.stages if stage.status in ("fail", "unverified")]
    known = {"configuration": FAULTS[name]} if name in FAULTS else {}
    found = {it.name: it.detail.partition(", ")[2] for it in failed if it.name != "layout"}
    assert found == known, failed


def core() -> dict[str, Path]:
    """Return what the core requires, by the name of its file or folder: each distribution's own."""
    waiting, seen, found = ["weighbridge"], set(), {}
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        distribution = importlib.metadata.distribution(name)
        needed = (line for line in distribution.requires or () if ";" not in line)
        waiting += [re.match(r"[\w.-]+", line)[0] for line in needed]
        for file in distribution.files or () if name != "weighbridge" else ():
            top = file.parts[0]
            if top not in ("..", "__pycache__"):
                found[top] = Path(distribution.locate_file(top))
    return found


@pytest.fixture(scope="module")
def bare(tmp_path_factory) -> Path:
    """Return the Python of an environment with the core's requirements and nothing else."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    venv.create(folder, symlinks=True)
    site = next(folder.glob("lib/python*/site-packages"))
    for name, path in core().items():
        (site / name).symlink_to(path)
    return folder / "bin" / "python"


def in_core(python: Path, package: Path, *words: str, cwd: Path, code: int = 0) -> str:
    """Run WORDS with PYTHON and the weighbridge that lies in the folder PACKAGE; return its output."""
    done = subprocess.run(
        [python, *words],
        cwd=cwd,
        env={"PYTHONPATH": str(package), "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def first_minute(python: Path, package: Path, cwd: Path) -> None:
    """What the README says, typed in CWD."""

    def run(line: str, code: int = 0) -> str:
        return in_core(python, package, "-m", *line.split(), cwd=cwd, code=code)

    absent = "import importlib.util as u; print([u.find_spec(n) for n in ('torch', 'mlx')])"
    assert in_core(python, package, "-c", absent, cwd=cwd) == "[None, None]\n"
    said = run("weighbridge.fixtures tiny").splitlines()
    convert, check = (line for line in said if line.startswith("weighbridge "))
    run(convert)
    shown = run(check, 4)
    assert "39 weights explained: 39 equal" in shown
    assert "mlx is not installed, so nothing was run" in shown
    assert "a golden" in run("weighbridge inspect tiny/bert-golden")
    (cwd / "first_minute.py").write_bytes((ROOT / "examples" / "first_minute.py").read_bytes())
    shown = in_core(python, package, "first_minute.py", cwd=cwd)
    assert "as converted: UNVERIFIED" in shown
    assert "two rows lost: DIFFERS" in shown
    assert "rows 3-4 (2 of 24) are zeros" in shown


def test_the_first_minute_needs_the_core_alone(bare, tmp_path):
    (tmp_path / "clone").mkdir()
    (tmp_path / "clone" / "weighbridge").symlink_to(ROOT)
    (tmp_path / "here").mkdir()
    first_minute(bare, tmp_path / "clone", tmp_path / "here")


@pytest.mark.heavy
def test_the_first_minute_works_from_the_wheel(bare, tmp_path):
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT,
                            capture_output=True, text=True, check=True)  # fmt: skip
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, tmp_path / "source" / name)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir"]
    build += [str(tmp_path / "dist"), str(tmp_path / "source")]
    subprocess.run(build, capture_output=True, check=True)
    wheel = next((tmp_path / "dist").glob("*.whl"))
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    (tmp_path / "here").mkdir()
    first_minute(bare, tmp_path / "site", tmp_path / "here")


def test_unpacking_overwrites_nothing(tmp_path):
    command = [sys.executable, "-m", "weighbridge.fixtures", str(tmp_path)]
    assert subprocess.run(command, capture_output=True, check=True)
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (again.returncode, "is there already" in again.stderr) == (1, True)
