"""A map is learned once, and again when the code that it says changes."""

import os
from dataclasses import replace

import pytest

from weighbridge.converters.checkpoints import Header
from weighbridge.converters.common import cache
from weighbridge.converters.libraries import Target, packages
from weighbridge.converters.maps.sources import learned as module

TARGET = Target("mlx-lm", "1.0", "llama", "mlx_lm.models.llama")
HEADERS = {"a": Header("F32", (2, 3)), "b": Header("F32", (5,))}


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """Return how often a map was learned anew; the library is a file that a test may edit."""
    calls = []

    def learn_now(target, config, headers):
        calls.append((target, config, headers))
        return module.Found(f"map {len(calls)}", dict(headers))

    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "llama.py").write_text("")
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(packages, "folder", lambda _: tmp_path / "library")
    monkeypatch.setattr(module, "learn_now", learn_now)
    module.edited.cache_clear()
    yield calls
    module.edited.cache_clear()


def test_the_same_question_is_asked_once(asked):
    first = module.learned(TARGET, {"layer_types": ["a", "b"]}, HEADERS)
    assert module.learned(TARGET, {"layer_types": ["a", "b"]}, HEADERS) == first
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("target", "config", "headers"),
    [
        (replace(TARGET, version="1.1"), {"layer_types": ["a", "b"]}, HEADERS),
        (TARGET, {"layer_types": ["b", "a"]}, HEADERS),
        (TARGET, {"layers": "2"}, HEADERS),
        (TARGET, {}, dict(reversed(HEADERS.items()))),
        (TARGET, {}, HEADERS | {"a": Header("BF16", (2, 3))}),
    ],
)
def test_another_question_is_asked_anew(asked, target, config, headers):
    module.learned(TARGET, {"layer_types": ["a", "b"]}, HEADERS)
    module.learned(target, config, headers)
    assert len(asked) == 2


def test_an_edited_library_is_asked_anew(asked, tmp_path):
    module.learned(TARGET, {}, HEADERS)
    os.utime(tmp_path / "library" / "llama.py", (2e9, 2e9))
    module.edited.cache_clear()  # as another process would begin
    assert module.learned(TARGET, {}, HEADERS).text == "map 2"
