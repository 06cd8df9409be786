"""Tiny checkpoints: every type has one, and no weight of it could be lost or turned unseen."""

from __future__ import annotations

import re
import warnings

import pytest

from weighbridge.tests.support.atlas import hub, sizes, tiny
from weighbridge.tests.support.atlas.verdicts import UNPAIRED


@pytest.fixture
def make(tmp_path):
    def made(kind, layout="saved", **own):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return tiny.make(kind, tmp_path / layout, layout, own)

    return made


# Where a class knows no size but the hidden one, a weight is square.
SQUARE = re.compile(
    r"\.(q_proj|k_proj|v_proj|o_proj|out_proj|c_proj|dense|linear_\w+)\.weight$"
    r"|altup_\w*projections|rg_lru|_decay$|vis|tower|audio|patch|projector|adapter"
)


@pytest.mark.heavy
def test_no_weight_is_square_unless_its_class_leaves_no_choice():
    import torch

    found = {}
    for kind in sorted(set(tiny.types()) - {*UNPAIRED["mlx-lm"], *sizes.BORROWED}):
        settings = tiny.configuration(kind, {})
        with torch.device("meta"):
            model = tiny.torch_class(settings).from_config(settings)
        for name, value in model.named_parameters():
            square = value.ndim > 1 and value.shape[-1] == value.shape[-2] > 4
            if square and not SQUARE.search(name):
                found.setdefault(kind, []).append((name, tuple(value.shape)))
    assert found == {}


def test_types_are_those_of_both_libraries():
    found = tiny.types()
    assert {"llama", "mistral", "qwen3_vl_moe", "falcon_mamba"} < set(found)  # remapped ones too
    assert set(UNPAIRED["mlx-lm"]) < set(found)
    assert len(found) >= 98


@pytest.mark.parametrize("kind", ["qwen2", "deepseek_v3"])
def test_no_vector_is_left_as_it_was_initialised(make, kind):
    state = make(kind).model.state_dict()
    vectors = {name: value for name, value in state.items() if value.ndim == 1}
    assert vectors
    assert [name for name, value in vectors.items() if len(set(value.tolist())) < len(value)] == []


def test_own_values_reach_nested_parts(make):
    made = make("gemma3", text_config={"hidden_size": 64})
    assert made.config.text_config.hidden_size == 64
    assert made.config.text_config.layer_types == sizes.SLIDING


ELSE = {*sizes.BORROWED, *hub.PACKED, "longcat_flash"}
READ = [kind for kind in hub.LAYOUTS if kind not in ELSE]


@pytest.mark.heavy
@pytest.mark.parametrize("kind", READ)
def test_transformers_reads_the_published_layout_as_the_same_model(make, kind):
    import torch

    made = make(kind, "hub")
    plain = {"attn_implementation": "eager", "experts_implementation": "eager"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again, info = type(made.model).from_pretrained(
            made.folder, output_loading_info=True, dtype=torch.float32, **plain
        )
    assert {key: value for key, value in info.items() if value} == {}
    state = again.state_dict()
    assert set(state) == set(made.model.state_dict())
    changed = [n for n, v in made.model.state_dict().items() if not torch.equal(v, state[n])]
    assert changed == []


@pytest.mark.heavy
@pytest.mark.parametrize("kind", hub.PACKED)
def test_transformers_reads_the_packed_layout_without_a_complaint(make, kind):
    made = make(kind, "hub")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, info = type(made.model).from_pretrained(made.folder, output_loading_info=True)
    assert {key: value for key, value in info.items() if value} == {}


@pytest.mark.heavy
def test_transformers_does_not_read_published_zero_experts(make):
    made = make("longcat_flash", "hub")  # turns red when it does: see faults.py
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        type(made.model).from_pretrained(made.folder)
