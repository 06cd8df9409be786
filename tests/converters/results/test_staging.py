"""A target is there whole or not at all, whatever ends the run."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from weighbridge.converters.checkpoints import Staging, sweep
from weighbridge.converters.results import records, staging
from weighbridge.converters.results.records import RECORD, write_record
from weighbridge.errors import TargetExistsError, WeighbridgeError


def names(folder: Path) -> list[str]:
    """Return what is in FOLDER, records apart."""
    found = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
    return [name for name in found if not name.endswith(RECORD)]


def make(target: Path, text: str, **options) -> Path:
    with Staging(target, **options) as stage:
        (stage.folder / "w").write_text(text)
        return stage.publish()


def test_a_published_target_is_all_that_is_left(tmp_path):
    assert make(tmp_path / "deep" / "out", "1", key="k") == tmp_path / "deep" / "out"
    assert names(tmp_path) == ["deep", "deep/out", "deep/out/w"]


def test_nothing_is_seen_at_the_target_before_it_is_published(tmp_path):
    with Staging(tmp_path / "out") as stage:
        (stage.folder / "w").touch()
        assert not (tmp_path / "out").exists()
        assert stage.folder.parent.name.startswith(".")
        assert stage.folder.parent.parent == tmp_path


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt, SystemExit])
def test_a_block_left_without_publishing_leaves_nothing(error, tmp_path):
    with contextlib.suppress(error or ()), Staging(tmp_path / "out", key="k") as stage:
        (stage.folder / "w").touch()
        if error:
            raise error
    assert names(tmp_path) == []


def test_a_target_that_exists_is_refused_at_once(tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(TargetExistsError, match="out exists; choose another name or give --force"):
        Staging(tmp_path / "out")


def test_a_dangling_link_counts_as_there(tmp_path):
    (tmp_path / "out").symlink_to("nowhere")
    with pytest.raises(TargetExistsError):
        Staging(tmp_path / "out")


def test_a_target_that_appears_meanwhile_is_refused(tmp_path):
    with Staging(tmp_path / "out") as stage:
        (tmp_path / "out").mkdir()
        with pytest.raises(TargetExistsError):
            stage.publish()
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("atomic", [True, False], ids=["exchange", "two renames"])
def test_force_replaces_the_whole_target(atomic, tmp_path, monkeypatch):
    if not atomic:
        monkeypatch.setattr(staging, "exchange", lambda *_: False)
    make(tmp_path / "out", "old")
    make(tmp_path / "out", "new", force=True)
    assert names(tmp_path) == ["out", "out/w"]
    assert (tmp_path / "out" / "w").read_text() == "new"


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("place", [None, 0, 15, 29])
def test_a_large_file_is_known_by_all_of_its_parts_whichever_way_it_was_recorded(
    place, older, tmp_path, monkeypatch
):
    monkeypatch.setattr(records, "PART", 10)
    target = make(tmp_path / "out", "parts of ten bytes: three here")
    recorded = json.loads((target / RECORD).read_text())["files"]["w"]["hash"]
    assert recorded.startswith("xxh3/256M:")
    if older:  # as versions did that had no parts
        write_record_without_parts(target, monkeypatch)
    data = bytearray((target / "w").read_bytes())
    if place is None:
        assert make(tmp_path / "out", "2", force=True) == target
        return
    data[place] ^= 1
    (target / "w").write_bytes(data)
    with pytest.raises(TargetExistsError, match="changed since it was written"):
        make(tmp_path / "out", "2", force=True)


def write_record_without_parts(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Record TARGET with the hashes of whole files."""
    with monkeypatch.context() as patched:
        patched.setattr(records, "PART", 1 << 28)
        write_record(target, "model")
    assert json.loads((target / RECORD).read_text())["files"]["w"]["hash"].startswith("xxh3:")


def test_a_failed_run_with_force_leaves_the_old_target(tmp_path):
    make(tmp_path / "out", "old")
    with pytest.raises(ZeroDivisionError), Staging(tmp_path / "out", force=True):
        1 / 0  # noqa: B018
    assert (tmp_path / "out" / "w").read_text() == "old"
    assert names(tmp_path) == ["out", "out/w"]


def test_a_second_rename_that_fails_puts_the_old_target_back(tmp_path, monkeypatch):
    monkeypatch.setattr(staging, "exchange", lambda *_: False)
    make(tmp_path / "out", "old")
    with Staging(tmp_path / "out", force=True) as stage:
        stage.folder.rmdir()  # so that there is nothing to move
        with pytest.raises(WeighbridgeError, match="No such file"):
            stage.publish()
    assert names(tmp_path) == ["out", "out/w"]


@pytest.mark.parametrize("place", [".", "..", "~"])
def test_force_never_replaces_where_the_user_is_at_home(place, tmp_path, monkeypatch):
    (inner := tmp_path / "inner").mkdir()
    monkeypatch.chdir(inner)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(TargetExistsError, match="is never replaced"):
        Staging(Path(place).expanduser(), force=True)


def test_a_rejected_result_is_kept_aside_and_the_last_one_only(tmp_path):
    for text in ("1", "2"):
        with Staging(tmp_path / "out") as stage:
            (stage.folder / "w").write_text(text)
            assert stage.reject() == tmp_path / "out.rejected"
    assert names(tmp_path) == ["out.rejected", "out.rejected/w"]
    assert (tmp_path / "out.rejected" / "w").read_text() == "2"


KILLED = """
import os, signal, sys
from pathlib import Path
from weighbridge.converters.checkpoints import Staging
with Staging(Path(sys.argv[1]), key=sys.argv[2]) as staging:
    (staging.folder / "w").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("key", "found"), [("k", ["w"]), ("other", []), ("", [])])
def test_what_a_killed_run_left_is_taken_up_with_the_same_key_only(key, found, tmp_path):
    command = [sys.executable, "-c", KILLED, str(tmp_path / "out"), "k"]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    with Staging(tmp_path / "out", key=key) as stage:
        assert names(stage.folder) == found
    assert names(tmp_path) == []


def test_an_empty_key_takes_nothing_up(tmp_path):
    command = [sys.executable, "-c", KILLED, str(tmp_path / "out"), ""]
    subprocess.run(command, check=False)
    with Staging(tmp_path / "out") as stage:
        assert names(stage.folder) == []


def test_a_run_killed_after_the_exchange_is_not_taken_up(tmp_path, monkeypatch):
    make(tmp_path / "out", "old")
    with Staging(tmp_path / "out", force=True, key="k") as stage:
        (stage.folder / "w").write_text("new")
        stage.publish()
        assert (stage.folder / "w").read_text() == "old"
        os.close(stage._lock)  # as the kernel would
        with Staging(tmp_path / "out", force=True, key="k") as second:
            assert names(second.folder) == []
        second._lock = stage._lock = os.open(tmp_path, os.O_RDONLY)


def test_a_target_lost_between_two_renames_is_put_back(tmp_path):
    make(tmp_path / "out", "old")
    (root := tmp_path / ".out.staging").mkdir()
    (root / "key").touch()
    (tmp_path / "out").rename(root / "replaced")
    with Staging(tmp_path / "out", force=True):
        assert (tmp_path / "out" / "w").read_text() == "old"
    assert names(tmp_path) == ["out", "out/w"]


def test_two_runs_to_one_target_do_not_meet(tmp_path):
    with Staging(tmp_path / "out", key="k") as first:
        (first.folder / "w").touch()
        with (
            pytest.raises(WeighbridgeError, match=r"another run is writing .*out; wait for it"),
            Staging(tmp_path / "out", key="k"),
        ):
            pass
        assert (first.folder / "w").exists()
        first.publish()
    assert names(tmp_path) == ["out", "out/w"]


def test_the_lock_ends_with_the_run(tmp_path):
    for _ in range(2):
        with Staging(tmp_path / "out"):
            pass
    assert make(tmp_path / "out", "1").exists()


def test_a_place_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(WeighbridgeError, match=r"cannot write .*out: "),
        Staging(tmp_path / "file" / "out"),
    ):
        pass


def test_what_a_run_left_that_was_killed_after_it_published_is_swept(tmp_path):
    left = tmp_path / ".run.staging"
    (left / "content").mkdir(parents=True)
    (left / "key").write_text("")
    sweep(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
    sweep(tmp_path / "run")  # nothing there


def test_a_folder_of_somebody_with_the_name_of_the_staging_folder_is_not_swept(tmp_path):
    (tmp_path / ".run.staging").mkdir()
    (tmp_path / ".run.staging" / "thesis.tex").write_text("mine")
    sweep(tmp_path / "run")
    assert (tmp_path / ".run.staging" / "thesis.tex").read_text() == "mine"


def test_the_draft_of_a_record_is_not_recorded(tmp_path):
    (tmp_path / "config.yaml").write_text("{}")
    (tmp_path / ".weighbridge.json.new").write_text("{")  # a kill came before it was renamed
    write_record(tmp_path, "run")
    assert set(json.loads((tmp_path / "weighbridge.json").read_text())["files"]) == {"config.yaml"}
