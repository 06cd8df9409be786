"""The bundled encoder and texts: made when needed, once, the same every time, whole or not at all."""

from __future__ import annotations

import json

import pytest

from weighbridge import open as open_model
from weighbridge.errors import BadInputError
from weighbridge.trainers import bundled
from weighbridge.trainers.bundles import docstrings
from weighbridge.trainers.config import load_config


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Return an empty cache, and let a few pairs stand for those of the whole library."""

    def write_pairs(out):
        for split in ("train", "validation", "test"):
            rows = [{"query": f"read a file {n}", "document": f"def f{n}(): ..."} for n in range(9)]
            (out / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    monkeypatch.setenv("WEIGHBRIDGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(docstrings, "write_pairs", write_pairs)
    return tmp_path / "cache"


def files(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.*")}


def test_what_the_default_recipe_names_is_made_and_opens(cache):
    config = load_config("docstrings")
    bundled.provide(config.sources())
    model = open_model(config.model)
    assert (model.framework, model.config["model_type"]) == ("torch", "bert")
    assert all(path.is_file() for path in config.sources()[1:])
    assert [path.name for path in cache.iterdir()] == [bundled.folder().name]


def test_a_bundled_file_alone_is_the_data(cache):
    overrides = ["model=bundled:encoder", "data=bundled:train.jsonl", "objective=contrastive"]
    config = load_config(None, overrides)
    assert (config.data.kind, config.data.train) == ("pairs", bundled.folder() / "train.jsonl")
    with pytest.raises(BadInputError, match=r"nothing\.jsonl"):
        load_config(None, [*overrides[:1], "data=bundled:nothing.jsonl", *overrides[2:]])


def test_it_is_made_once_and_the_same_every_time(cache, monkeypatch):
    paths = load_config("docstrings").sources()
    bundled.provide(paths)
    first = files(bundled.folder())
    monkeypatch.setenv("WEIGHBRIDGE_CACHE", str(cache.parent / "another"))
    bundled.provide(load_config("docstrings").sources())
    assert files(bundled.folder()) == first
    monkeypatch.setattr(bundled, "_make", lambda name, target: pytest.fail("made again"))
    bundled.provide(load_config("docstrings").sources())


def test_nothing_is_made_for_a_run_that_does_not_need_it(cache):
    bundled.provide(["minilm-mlx", cache / "train.jsonl", None])
    assert not cache.exists()


def test_what_fails_leaves_nothing(cache, monkeypatch):
    def fail(target, kind, config):
        raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr(docstrings, "_save_encoder", fail)
    with pytest.raises(Exception, match="No space left"):
        bundled.provide(load_config("docstrings").sources())
    assert [*cache.iterdir()] == []


def test_without_a_cache_it_is_refused_and_nothing_is_made(cache, monkeypatch, tmp_path):
    monkeypatch.setenv("WEIGHBRIDGE_CACHE", "")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with pytest.raises(BadInputError, match="WEIGHBRIDGE_CACHE"):
        load_config("docstrings")
    bundled.provide([tmp_path / "train.jsonl"])
    assert [*tmp_path.iterdir()] == []
