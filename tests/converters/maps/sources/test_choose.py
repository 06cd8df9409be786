"""The user's map before the table, the table before what a class's own code says."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from weighbridge.converters.checkpoints import Header
from weighbridge.converters.checkpoints.base import different
from weighbridge.converters.common import cache
from weighbridge.converters.configs import to_mlx
from weighbridge.converters.libraries import find, transformers
from weighbridge.converters.maps import apply
from weighbridge.converters.maps.sources.choose import known_map, map_of
from weighbridge.converters.models import open as open_model
from weighbridge.converters.models.model import Model
from weighbridge.converters.values import Dense
from weighbridge.errors import BadInputError, MismatchError

IDENTITY = "weighbridge map 1\n{**} <-> same\n"


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory):
    """Return folders of a tiny mixtral, torch's and mlx-lm's, the latter without a manifest."""
    import mlx.core as mx

    from weighbridge.tests.support.atlas.tiny import make

    root = tmp_path_factory.mktemp("choose")
    folder = make("mixtral", root / "torch").folder
    config = json.loads((folder / "config.json").read_text())
    target = find(config)
    config = to_mlx(config, target).config
    (root / "mlx").mkdir()
    weights = target.sanitize(config, mx.load(str(folder / "model.safetensors")))
    mx.save_safetensors(
        str(root / "mlx" / "model.safetensors"), weights, metadata={"format": "mlx"}
    )
    (root / "mlx" / "config.json").write_text(json.dumps(config))
    return folder, root / "mlx"


def test_a_given_map_comes_first():
    model = Model("x", "torch", None, {"model_type": "bert"}, map_text=IDENTITY)
    assert len(map_of(model).rules) == 1


def test_a_tabled_family_has_its_table():
    names = [str(rule) for rule in map_of(Model("x", "torch", None, {"model_type": "bert"})).rules]
    assert any("word_embeddings" in name for name in names)


def test_where_nothing_is_known_there_is_no_map():
    model = Model("x", "torch", None, {"model_type": "unheard-of"})
    assert map_of(model) is None
    with pytest.raises(BadInputError, match=r"--map FILE.wmap"):
        known_map(model)


def test_both_sides_of_a_learned_family_find_the_same_way(mixtral):
    torch, mlx = map(open_model, mixtral)
    made = load_file(mixtral[1] / "model.safetensors")
    for model in (torch, mlx):
        plan = map_of(model).bind(torch.checkpoint.headers, config=torch.config)
        given = {name: Dense(torch.checkpoint.read(name)) for name in torch.checkpoint.headers}
        values = apply(plan, given)
        assert {name: value.array.tobytes() for name, value in values.items()} == {
            name: array.tobytes() for name, array in made.items()
        }


def test_a_directory_that_the_class_would_not_make_is_refused_with_all_that_differs(
    mixtral, tmp_path
):
    tensors = load_file(mixtral[1] / "model.safetensors")
    tensors["model.odd.weight"] = np.ones((2, 3), np.float32)
    tensors["model.norm.weight"] = tensors["model.norm.weight"][:-1]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "mlx"})
    (tmp_path / "config.json").write_text((mixtral[1] / "config.json").read_text())
    with pytest.raises(MismatchError) as caught:
        map_of(open_model(tmp_path))
    assert "model.odd.weight is unexpected" in str(caught.value)
    assert "model.norm.weight: expected [48], found [47]" in str(caught.value)


def test_what_transformers_would_write_is_found_out_once(mixtral, tmp_path, monkeypatch):
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    first = map_of(open_model(str(mixtral[1])))
    asked = []
    monkeypatch.setattr(transformers, "meta_model", lambda *_: asked.append(1))
    assert str(map_of(open_model(str(mixtral[1])))) == str(first)
    assert not asked


def test_a_factory_s_directory_without_files_has_no_learned_map():
    assert map_of(Model("x", "torch", None, {"model_type": "mixtral"})) is None


def test_only_names_and_shapes_are_compared():
    one, other = Header("F32", (2, 3)), Header("BF16", (2, 3))
    assert list(different({"a": one}, {"a": other})) == []
