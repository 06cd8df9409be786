"""A recipe means to us what it means to mlx-lm."""

from __future__ import annotations

import json

import pytest
from mlx_lm.utils import load_model

from weighbridge.converters.checkpoints import Header
from weighbridge.converters.quantization import Recipe, Scheme
from weighbridge.errors import BadInputError, UnsupportedError

from .conftest import AFFINE, FLOATS, LLAMA, save

DEFAULT = {"group_size": 64, "bits": 4, "mode": "affine"}
OTHERS = {
    "lm_head": {"group_size": 32, "bits": 8, "mode": "affine"},
    "model.layers.0.self_attn.v_proj": {"bits": 6},
    "model.layers.1.mlp.down_proj": {"mode": "mxfp4"},
    "model.embed_tokens": False,
    "model.layers.0.mlp.up_proj": True,
}


def headers(scheme, columns=256, rows=3):
    dtype = "F16" if scheme.affine else "U8"
    return (
        Header("U32", (rows, columns * scheme.bits // 32)),
        Header(dtype, (rows, columns // scheme.group_size)),
    )


def test_a_config_without_quantization_has_no_recipe():
    assert Recipe.parse(LLAMA) is None
    assert Recipe.parse({"quantization_config": {"quant_method": "gptq", "bits": 4}}) is None


def test_mlx_lm_s_copy_of_the_section_will_do():
    assert Recipe.parse({"quantization_config": DEFAULT}).default == Scheme(4, 64)


def test_paths_are_named_with_settings_or_false_or_true():
    recipe = Recipe.parse({"quantization": {**DEFAULT, **OTHERS}})
    assert list(recipe.named.values()) == [
        Scheme(8, 32),
        Scheme(6, 64),
        Scheme(4, 32, "mxfp4"),
        None,
        Scheme(4, 64),
    ]


def test_a_changed_recipe_is_loaded_by_mlx_lm(tmp_path):
    _, config = save(
        tmp_path, LLAMA, group_size=32, bits=4, predicate=lambda p, m: OTHERS.get(p, True)
    )
    recipe = Recipe.parse(config)
    assert (
        recipe.named["model.embed_tokens"] is None if "model.embed_tokens" in recipe.named else True
    )
    same = recipe.changed({"lm_head": Scheme(8, 32)})
    (tmp_path / "config.json").write_text(json.dumps(same.applied_to(config)))
    model, _ = load_model(tmp_path)
    assert (model.lm_head.bits, model.lm_head.group_size) == (8, 32)


def test_a_change_to_the_default_needs_no_word():
    recipe = Recipe.parse({"quantization": {**DEFAULT, **OTHERS}})
    changed = recipe.changed({"lm_head": Scheme(4, 64), "model.norm": None})
    assert "lm_head" not in changed.section
    assert changed.section["model.norm"] is False
    assert {**changed.section, "lm_head": 0, "model.norm": 0} == {
        **recipe.section,
        "lm_head": 0,
        "model.norm": 0,
    }


@pytest.mark.parametrize("scheme", AFFINE + FLOATS, ids=str)
def test_the_named_scheme_is_believed_where_it_fits(scheme):
    recipe = Recipe.parse({"quantization": {**DEFAULT, "up": scheme.record}})
    assert recipe.scheme_of("up", *headers(scheme)) == scheme


@pytest.mark.parametrize("scheme", AFFINE + FLOATS, ids=str)
def test_where_the_config_is_silent_the_columns_tell(scheme):
    recipe = Recipe.parse({"quantization": DEFAULT})
    assert recipe.scheme_of("up", *headers(scheme), columns=256) == scheme


@pytest.mark.parametrize("scheme", [s for s in AFFINE if s.group_size == 64] + FLOATS, ids=str)
def test_or_the_group_size_of_the_default_or_a_mode_that_has_one(scheme):
    recipe = Recipe.parse({"quantization": DEFAULT})
    assert recipe.scheme_of("up", *headers(scheme)) == scheme


def test_what_shapes_leave_open_is_refused():
    recipe = Recipe.parse({"quantization": {"group_size": 128, "bits": 5}})
    with pytest.raises(
        BadInputError, match=r"up: .* fits 4-bit affine, groups of 32 and 2-bit"
    ) as it:
        recipe.scheme_of("up", *headers(Scheme(4, 32)))
    assert "name it in config.json" in str(it.value)


@pytest.mark.parametrize("said", [False, {"bits": 3, "group_size": 64}])
def test_what_the_config_says_and_the_shapes_deny_is_refused(said):
    recipe = Recipe.parse({"quantization": {**DEFAULT, "up": said}})
    with pytest.raises(BadInputError, match=r"up: config.json says .*; stored is U32\[3, 32\]"):
        recipe.scheme_of("up", *headers(Scheme(4, 64)))


@pytest.mark.parametrize(
    ("section", "error", "message"),
    [
        ([4, 64], BadInputError, "expected an object"),
        ({"bits": "4"}, BadInputError, "quantization: bits is '4', expected a number"),
        ({**DEFAULT, "up": {"group_size": 1.5}}, BadInputError, "up: group_size is 1.5"),
        ({**DEFAULT, "up": {"bits": 7}}, UnsupportedError, "up: quantization 7-bit affine"),
        ({**DEFAULT, "mode": ["x"]}, BadInputError, r"mode is \['x'\], expected a string"),
        ({**DEFAULT, "mode": "nf4"}, UnsupportedError, "is unknown; MLX has"),
    ],
)
def test_a_recipe_that_mlx_never_wrote_is_refused(section, error, message):
    with pytest.raises(error, match=message):
        Recipe.parse({"quantization": section})
