"""What is shipped is what is meant: every package, its data, nothing else, and no trace of a machine."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path, PurePosixPath

import pytest

import weighbridge

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ROOT_MODULES = {"__init__.py", "__main__.py", "cli.py", "errors.py"}
PACKAGES = ("converters", "jobs", "parity", "trainers", "verbs")
FIXTURES = ROOT / "fixtures"
CARRIED = (*FIXTURES.glob("*.py"), *FIXTURES.glob("bert/*/*"))  # of the fixtures, in the wheel
DATA = {".wmap", ".json", ".yaml", ".typed"}  # besides modules, all that a wheel carries
BINARY = {".safetensors", ".npz", ".png", ".pt", ".gz", ".zip"}
# Assembled, so that this file does not find itself.
TRACES = re.compile("|".join(rf"(?<![\w.~-])/{top}/" for top in ("work", "root", "home", "Users")))


def tracked() -> list[Path]:
    """Return the files of the project that git tracks or would add."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode:  # an unpacked sdist
        pytest.skip("not a git checkout")
    return [path for line in listing.stdout.splitlines() if (path := ROOT / line).is_file()]


def test_every_package_is_declared():
    inits = [init for name in PACKAGES for init in (ROOT / name).rglob("__init__.py")]
    found = {".".join(("weighbridge", *init.parent.relative_to(ROOT).parts)) for init in inits}
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == found | {
        "weighbridge",
        "weighbridge.fixtures",
    }


def test_every_folder_of_modules_is_a_package():
    modules = [module for name in PACKAGES for module in (ROOT / name).rglob("*.py")]
    assert {m.parent for m in modules if not (m.parent / "__init__.py").exists()} == set()


def test_only_known_modules_sit_at_the_root():
    """Whatever Python file lies at the root becomes part of the package."""
    assert {path.name for path in ROOT.glob("*.py")} == ROOT_MODULES


def test_tests_are_no_package():
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_every_data_file_of_a_package_is_declared():
    declared = PROJECT["tool"]["setuptools"]["package-data"]
    shipped = {
        path
        for package, globs in declared.items()
        for glob in globs
        for path in (ROOT / PurePosixPath(*package.split(".")[1:])).glob(glob)
    }
    found = {path for name in PACKAGES for path in (ROOT / name).rglob("*") if path.suffix in DATA}
    assert shipped == found | {ROOT / "py.typed", *FIXTURES.glob("bert/*/*")}


def test_the_version_is_the_installed_one():
    from importlib.metadata import version

    assert version("weighbridge") == weighbridge.__version__


def test_the_changelog_knows_the_version():
    text = (ROOT / "CHANGELOG.md").read_text()
    assert "## [Unreleased]" in text or f"## [{weighbridge.__version__}]" in text


def test_every_requirement_is_pinned():
    pins = {line.partition("==")[0].lower().replace("_", "-") for line in constraints()}
    project = PROJECT["project"]
    extras = project["optional-dependencies"].values()
    wanted = [*project["dependencies"], *(item for extra in extras for item in extra)]
    names = {re.split(r"[\[>=;<~!]", item)[0].strip().lower().replace("_", "-") for item in wanted}
    assert names - pins == {"weighbridge"}


def test_a_pin_is_a_plain_version():
    assert [line for line in constraints() if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []


def constraints() -> list[str]:
    return (ROOT / "constraints.txt").read_text().splitlines()


def test_no_file_names_the_machine_it_was_written_on():
    host = socket.gethostname()
    patterns = [TRACES, *([re.compile(re.escape(host))] if len(host) > 8 else [])]
    found = {
        f"{path.relative_to(ROOT)}: {hit[0]}"
        for path in tracked()
        if path.suffix not in BINARY
        for pattern in patterns
        if (hit := pattern.search(path.read_text(errors="replace")))
    }
    assert found == set()


@pytest.fixture(scope="module")
def distributions(tmp_path_factory) -> Path:
    """Build sdist and wheel from a copy of the tracked files; return the folder."""
    copy, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for path in tracked():
        target = copy / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


def test_the_wheel_holds_the_package_and_nothing_else(distributions):
    wheel = next(distributions.glob("*.whl"))
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    sources = [*CARRIED, *(ROOT / name for name in ROOT_MODULES | {"py.typed"})]
    for package in PACKAGES:
        sources += [p for p in (ROOT / package).rglob("*") if p.suffix in DATA | {".py"}]
    assert names == {f"weighbridge/{path.relative_to(ROOT).as_posix()}" for path in sources}


def test_the_wheel_runs_without_the_checkout(distributions, tmp_path):
    wheel = next(distributions.glob("*.whl"))
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = (
        "import weighbridge; from weighbridge.cli import main; print(weighbridge.__file__); main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--help"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(str(tmp_path))


def test_the_sdist_holds_everything_that_the_tests_need(distributions):
    with tarfile.open(next(distributions.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    folders = ("benchmarks/", "docs/", "examples/", "fixtures/", "tests/")
    wanted = {path.relative_to(ROOT).as_posix() for path in tracked()}
    needed = {name for name in wanted if name.startswith((*folders, *(f"{p}/" for p in PACKAGES)))}
    assert needed | {"CHANGELOG.md", "LICENSE", "Makefile", "constraints.txt"} <= names
