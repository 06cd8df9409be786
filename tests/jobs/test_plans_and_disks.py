"""What an export says before and instead of writing: a target that is there, a disk that is full."""

import resource
import sys

import pytest
from click.testing import CliRunner

from weighbridge.cli import main
from weighbridge.tests.support.coreml import modules

SOURCE = f"{modules.__name__}:normed"
pytestmark = pytest.mark.filterwarnings("ignore")


def run(*arguments):
    """Run the command line; return the exit code and all that was said."""
    result = CliRunner().invoke(main, [*map(str, arguments)])
    return result.exit_code, result.output


@pytest.mark.parametrize(("kind", "name"), [("coreml", "m.mlpackage"), ("onnx", "m.onnx")])
def test_a_dry_run_says_that_its_target_is_there(kind, name, tmp_path):
    (tmp_path / name).mkdir()
    code, told = run("export", kind, SOURCE, tmp_path / name, "--dry-run")
    assert code == 0
    assert f"{name} exists" in told
    assert "exists" not in run("export", kind, SOURCE, tmp_path / f"other-{name}", "--dry-run")[1]


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        ("coreml", "m.mlpackage", "coremltools cannot write its weights to"),
        ("onnx", "m.onnx", "m.onnx: File too large; free some space"),
        ("onnx", "folder", "File too large; free some space"),
    ],
)
def test_a_disk_without_room_is_named_and_nothing_is_left(kind, name, words, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # of what is imported half would be kept
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    apart = () if "." in name else ("--external-data",)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    try:
        code, told = run("export", kind, SOURCE, tmp_path / name, "--check", "none", *apart)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert code == 3
    assert words in told
    assert not [*tmp_path.iterdir()]
