"""System calls do what their names say, or say that they cannot."""

from __future__ import annotations

import errno
import os

import pytest

from weighbridge.converters.common import system
from weighbridge.errors import WeighbridgeError


def test_exchange_swaps_two_folders(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    assert system.exchange(tmp_path / "a", tmp_path / "b")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["a"]


def test_exchange_with_nothing_is_an_error(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(FileNotFoundError):
        system.exchange(tmp_path / "a", tmp_path / "none")


def test_a_call_that_is_not_there_is_no_error(tmp_path, monkeypatch):
    monkeypatch.setattr(system, "_function", lambda _: None)
    assert not system.exchange(tmp_path / "a", tmp_path / "b")
    with (tmp_path / "f").open("wb") as file:
        assert not system.reserve(file.fileno(), 10)


def test_reserve_never_leaves_a_file_shorter_and_keeps_its_bytes(tmp_path):
    (tmp_path / "f").write_bytes(b"hello")
    with (tmp_path / "f").open("r+b") as file:
        reserved = system.reserve(file.fileno(), 10_000)
        assert file.read(5) == b"hello"
    assert (tmp_path / "f").stat().st_size == (10_000 if reserved else 5)


def test_reserve_says_that_a_disk_is_full(tmp_path):
    with (tmp_path / "f").open("r+b" if (tmp_path / "f").exists() else "wb") as file:
        if not system.reserve(file.fileno(), 1):
            pytest.skip("this file system reserves nothing")
        with pytest.raises(OSError) as caught:  # noqa: PT011  # the code is what is asserted
            system.reserve(file.fileno(), 1 << 50)
    assert caught.value.errno in (errno.ENOSPC, errno.EFBIG)


def test_a_failure_of_the_disk_becomes_one_line(tmp_path):
    with (
        pytest.raises(WeighbridgeError, match="cannot write here: Permission denied"),
        system.writing("here"),
    ):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
