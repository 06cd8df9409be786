"""The configuration that is written says exactly what the tensors are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.converters.adapters import read_adapter, write_peft
from weighbridge.converters.adapters.peft.writer import alpha_of
from weighbridge.converters.values import LowRank
from weighbridge.errors import UnsupportedError

from ..models import config_in

Q, LONGER = "layers.0.q.weight", "model.layers.0.q.weight"


def lowrank(rank=2, scale=2.0, *, dora=False, lead=(), dtype=np.float32):
    generator = np.random.default_rng(rank)
    a = generator.normal(size=(*lead, rank, 5)).astype(dtype)
    b = generator.normal(size=(*lead, 7, rank)).astype(dtype)
    return LowRank(a, b, scale, np.ones(7, np.float32) if dora else None)


@given(st.integers(1, 4096), st.integers(1, 512))
def test_an_alpha_and_a_rank_come_back_as_they_were(alpha, rank):
    assert alpha_of(alpha / rank, rank) == alpha


@given(st.floats(1e-3, 1e3), st.integers(1, 512))
def test_a_scale_comes_back_to_the_last_digit_of_float64(scale, rank):
    assert abs(alpha_of(scale, rank) / rank - scale) <= np.spacing(scale)


@given(
    st.lists(
        st.tuples(st.integers(1, 5), st.sampled_from([0.5, 1 / 3, 20.0])), min_size=1, max_size=5
    ),
    st.sampled_from([np.float32, np.float16]),
)
def test_every_update_keeps_its_rank_its_scale_and_its_bytes(tmp_path_factory, terms, dtype):
    updates = {
        f"layers.{n}.q.weight": lowrank(rank, scale, dtype=dtype)
        for n, (rank, scale) in enumerate(terms)
    }
    folder = tmp_path_factory.mktemp("a")
    write_peft(folder, updates, kinds=None)
    found = read_adapter(folder).updates
    assert set(found) == set(updates)
    for name, update in updates.items():
        assert (found[name].rank, found[name].scale) == (update.rank, update.scale)
        assert found[name].a.tobytes() == update.a.tobytes()
        assert found[name].b.tobytes() == update.b.tobytes()


def test_a_module_of_which_another_ends_in_the_same_path_is_not_confused_with_it(tmp_path):
    kinds = {"layers.0.q": "linear", "model.layers.0.q": "linear"}
    write_peft(tmp_path, {Q: lowrank(3)}, kinds=kinds)
    config = config_in(tmp_path)
    assert (config["target_modules"], config["exclude_modules"]) == (["layers.0.q"], [LONGER[:-7]])
    write_peft(tmp_path, {Q: lowrank(3), LONGER: lowrank(2)}, kinds=kinds)
    found = read_adapter(tmp_path).updates
    assert (found[Q].rank, found[LONGER].rank) == (3, 2)


def test_the_configuration_names_the_base_and_plain_scales(tmp_path):
    write_peft(tmp_path, {Q: lowrank()}, kinds=None, base="org/model")
    found = config_in(tmp_path)
    assert found["base_model_name_or_path"] == "org/model"
    assert (found["r"], found["use_rslora"], found["lora_alpha"]) == (2, False, 4)


def test_whole_tensors_alone_are_no_adapter(tmp_path):
    whole = {Q: np.zeros((7, 5), np.float32)}
    with pytest.raises(
        UnsupportedError, match="a full fine-tune is weights of a model, not an ada"
    ):
        write_peft(tmp_path / "out", {}, kinds=None, saved=whole)
    assert not (tmp_path / "out").exists()


EMBEDDING = {"layers.0.q": "embedding"}
REFUSED = {
    "nothing": ({}, None, "there is nothing to write"),
    "a mixture": (
        {Q: lowrank(), "k.weight": lowrank(dora=True)},
        None,
        "1 of 2 updates are DoRA",
    ),
    "DoRA of an embedding": ({Q: lowrank(dora=True)}, EMBEDDING, f"{Q} has DoRA norms"),
    "DoRA of a Conv1D": ({Q: lowrank(dora=True)}, {"layers.0.q": "conv1d"}, "has DoRA norms"),
    "DoRA of a router": ({Q: lowrank(dora=True)}, {}, "has DoRA norms"),
    "four axes": ({"x.w": lowrank(lead=(2, 3))}, None, "x.w has 4 axes"),
    "parameters in no order": (
        {"x.w": lowrank(), "x.v": lowrank()},
        {"x.w": "experts"},
        "x.v is one of several parameters of its module",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_peft_has_no_form_for_is_refused_by_name(case, tmp_path):
    updates, kinds, message = REFUSED[case]
    with pytest.raises(UnsupportedError, match=message):
        write_peft(tmp_path / "out", updates, kinds=kinds)
    assert not (tmp_path / "out").exists()
