"""Answers kept between runs."""

import errno

import pytest

from weighbridge.converters.common import cache


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))


def test_an_answer_is_recalled_for_its_key_alone():
    cache.keep("map", ["llama", 1], {"text": "x"})
    assert cache.recall("map", ["llama", 1]) == {"text": "x"}
    assert cache.recall("map", ["llama", 2]) is None
    assert cache.recall("config", ["llama", 1]) is None


def test_another_version_of_ours_does_not_answer(monkeypatch):
    cache.keep("map", [1], "old")
    monkeypatch.setattr(cache, "__version__", "999")
    assert cache.recall("map", [1]) is None


def test_a_damaged_answer_is_none(tmp_path):
    cache.keep("map", [1], "x")
    [path] = (tmp_path / "cache").iterdir()
    path.write_text("{")
    assert cache.recall("map", [1]) is None


@pytest.mark.parametrize("text", ["[]", "null", "5", '{"text": "", "layout": {}}', "x\n[]", "\n"])
def test_json_that_is_not_what_was_kept_is_no_answer(tmp_path, text):
    cache.keep("map", [1], {"text": "x"})
    [path] = (tmp_path / "cache").iterdir()
    path.write_text(text)
    assert cache.recall("map", [1]) is None


def test_an_edited_answer_is_no_answer(tmp_path):
    cache.keep("map", [1], {"text": "where h = 4"})
    [path] = (tmp_path / "cache").iterdir()
    path.write_text(path.read_text().replace("h = 4", "h = 8"))
    assert cache.recall("map", [1]) is None


def test_an_empty_variable_keeps_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv(cache.VARIABLE, "")
    cache.keep("map", [1], "x")
    assert cache.recall("map", [1]) is None
    assert not (tmp_path / "cache").exists()


def test_a_folder_that_cannot_be_is_no_error(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "file"))
    cache.keep("map", [1], "x")
    assert cache.recall("map", [1]) is None


def test_an_answer_that_the_disk_does_not_take_leaves_nothing(monkeypatch, tmp_path):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cache.Path, "replace", full)
    cache.keep("map", [1], "x")
    assert list((tmp_path / "cache").iterdir()) == []


def test_the_number_of_answers_is_limited(monkeypatch, tmp_path):
    monkeypatch.setattr(cache, "MOST", 3)
    for number in range(5):
        cache.keep("map", [number], number)
    assert len(list((tmp_path / "cache").iterdir())) == 3
    assert cache.recall("map", [4]) == 4
