"""What Core ML makes of recurrent layers is taken apart again: every tensor back, and sums told."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from weighbridge.converters.captures.constants import UNREAD, origin_of
from weighbridge.converters.captures.described import picked_from, recorded_of, rows_of
from weighbridge.converters.captures.mlprogram.arithmetic import evaluate
from weighbridge.converters.checkpoints import Header
from weighbridge.converters.coreml.made import rules_of_gates
from weighbridge.converters.coreml.translations import recurrent_parts
from weighbridge.converters.recovering.undoing import put_together, shares
from weighbridge.converters.recovering.unfolding import Folded, unfolded
from weighbridge.converters.recovering.weights import Held, recover


def folded(layer, tmp_path, *, merged=False, like=False, have=()):
    """Return what a package holds of LAYER, equal constants MERGED into one, and its tensors."""
    state = {name: it.detach().numpy() for name, it in layer.state_dict().items()}

    def read(_, name):
        return state[name].astype(np.float64)

    parts = [*recurrent_parts(layer)]
    made = [evaluate(part, read).astype(np.float32) for part in parts]
    constants = {f"concat_{index}": array for index, array in enumerate(made)}
    if merged:
        constants = {str(array.tobytes()): array for array in made}
    manifest = {
        "made": rules_of_gates(constants, parts, read),
        "origins": {name: origin_of(it) for name, it in layer.state_dict().items()},
    }
    wanted = {name: Header("F32", it.shape) for name, it in state.items()}
    known = {name: state[name] for name in have}
    file = Held(tmp_path, state) if like else None
    return Folded(Held(tmp_path, constants), manifest, wanted, known, file), state


LAYERS = {
    "lstm": lambda **given: nn.LSTM(3, 4, 2, **given),
    "gru": lambda **given: nn.GRU(3, 4, 2, **given),
    "rnn": lambda **given: nn.RNN(3, 4, 2, **given),
}


@pytest.mark.parametrize("kind", [*LAYERS])
@pytest.mark.parametrize("given", [{}, {"bidirectional": True}, {"bias": False}])
def test_every_tensor_comes_back_and_a_sum_is_in_the_first_of_two(kind, given, tmp_path):
    torch.manual_seed(0)
    found, state = folded(LAYERS[kind](**given), tmp_path)
    back = unfolded(found)
    assert back.arrays.keys() == state.keys()
    assert not back.problems
    summed = {name for pair in back.sums for name in pair}
    biases = {name for name in state if name.startswith("bias")}
    assert summed == (set() if kind == "gru" else biases)
    for one, other in back.sums:
        assert np.array_equal(back.arrays[one], state[one] + state[other])
        assert not back.arrays[other].any()
    for name in state.keys() - summed:
        assert back.arrays[name].tobytes() == state[name].tobytes()
        assert back.ways[name] == "proven"


def test_tensors_of_a_sum_are_taken_from_weights_that_are_the_sources(tmp_path):
    found, state = folded(LAYERS["lstm"](), tmp_path, like=True)
    back = unfolded(found)
    assert not back.sums
    assert set(back.ways.values()) == {"proven"}
    assert all(np.array_equal(back.arrays[name], it) for name, it in state.items())


def test_weights_of_another_model_are_not_taken(tmp_path):
    found, state = folded(LAYERS["lstm"](), tmp_path)
    other = {name: it + np.float32(0.5) for name, it in state.items()}
    back = unfolded(found._replace(like=Held(tmp_path, other)))
    assert len(back.sums) == 2


def test_a_constant_that_stands_for_several_gives_all_of_them_back(tmp_path):
    layer = LAYERS["lstm"](bidirectional=True)
    for name, tensor in layer.named_parameters():
        if name.startswith("bias"):
            nn.init.constant_(tensor, 0.25)
    found, state = folded(layer, tmp_path, merged=True)
    assert len(found.constants.headers) < len(state)
    back = unfolded(found)
    assert back.arrays.keys() == state.keys()


def test_the_other_of_a_sum_is_what_is_left_of_it(tmp_path):
    found, state = folded(LAYERS["rnn"](), tmp_path, have=["bias_ih_l0"])
    back = unfolded(found)
    assert back.sums == [("bias_ih_l1", "bias_hh_l1")]
    assert np.allclose(back.arrays["bias_hh_l0"], state["bias_hh_l0"], 1e-6, 1e-6)


def test_a_record_of_other_sizes_is_named(tmp_path):
    found, _ = folded(LAYERS["lstm"](), tmp_path)
    wanted = {**found.wanted, "weight_ih_l0": Header("F32", (16, 5))}
    (problem,) = unfolded(found._replace(wanted=wanted)).problems
    assert "--like names has weight_ih_l0[16, 5]" in problem
    assert "the one that was exported" in problem


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_direction_and_its_norms_come_back_as_what_they_make(axis, whole, tmp_path):
    layer = nn.utils.parametrizations.weight_norm(nn.Conv1d(14, 36, 7, bias=False), dim=axis)
    g, v = (f"parametrizations.weight.original{it}" for it in (0, 1))
    state = {name: it.detach().numpy() for name, it in layer.state_dict().items()}
    product = layer.double().weight.detach().float().numpy()
    manifest = {
        "made": {"w": {"value": ["_weight_norm", {"key": v}, {"key": g}, float(axis)]}},
        "origins": {name: origin_of(torch.from_numpy(it)) for name, it in state.items()},
    }
    wanted = {name: Header("F32", it.shape) for name, it in state.items()}
    like = Held(tmp_path, state) if whole else None
    back = unfolded(Folded(Held(tmp_path, {"w": product}), manifest, wanted, {}, like))
    assert back.norms == ([] if whole else [(v, g)])
    layer.float().load_state_dict({name: torch.from_numpy(it) for name, it in back.arrays.items()})
    if whole:
        assert np.allclose(layer.weight.detach().numpy(), product, 1e-6, 0)
        assert all(np.array_equal(back.arrays[name], it) for name, it in state.items())
    else:
        assert set(back.ways.values()) == {"by their product"}
        assert layer.weight.detach().numpy().tobytes() == product.tobytes()


def test_tensors_that_are_one_number_come_back_by_what_the_record_says(tmp_path):
    layer = nn.LayerNorm(4)
    nn.init.constant_(layer.bias, 0.1)
    wanted = {name: Header("F32", it.shape) for name, it in layer.state_dict().items()}
    record = recorded_of({"shift": np.zeros(9, np.float32)}, layer, ())
    found = recover(
        Held(tmp_path, {}), {**record, "made": {}, UNREAD: []}, wanted=wanted, where="file"
    )
    assert set(found.ways.values()) == {"proven"}
    assert all(np.array_equal(found.arrays[n], it.numpy()) for n, it in layer.state_dict().items())


@given(st.integers(2, 9), st.integers(1, 3), st.integers(0, 2**32 - 1), st.booleans())
def test_a_table_comes_back_from_the_rows_that_were_picked_of_it(rows, heads, seed, half):
    """As biases of relative positions lie in a package: a head before all pairs of places."""
    random = np.random.default_rng(seed)
    table = random.standard_normal((rows, heads)).astype("f2" if half else "f4")
    index = random.permutation([*range(rows), *random.integers(0, rows, 3 * rows)])
    constant = table[index].T.reshape(1, heads, 4, rows)

    def read(_, name):
        return {"table": table.astype(np.float64), "other": np.zeros((2, heads))}[name]

    rule = picked_from(constant, ["other", "table"], read)
    if heads == 1 and rule is None:
        return  # of one head two axes are left, which a table of positions has too
    assert np.array_equal(evaluate(rule, read).reshape(constant.shape), constant)
    (share,) = shares(rule, constant, read)
    assert np.array_equal(share.values, table)


@given(st.integers(3, 20), st.integers(3, 20), st.integers(0, 2**32 - 1))
def test_a_vector_comes_back_from_its_halves(first, second, seed):
    """As the biases of queries, keys and values that ``nn.MultiheadAttention`` keeps joined."""
    whole = np.random.default_rng(seed).standard_normal(first + second).astype(np.float32)

    def read(_, name):
        return whole.astype(np.float64)

    halves = np.split(whole, [first])
    rules = [rows_of(half, ["bias"], read) for half in halves]
    found = [it for pair in zip(rules, halves, strict=True) for it in shares(*pair, read)]
    assert np.array_equal(put_together(found, {"bias": whole.shape})["bias"], whole)


POWERS = {
    "decay": ["neg", ["exp", {"key": "w"}]],
    "gate": ["sigmoid", {"key": "w"}],
    "norm": ["add", {"key": "w"}, 1.0],
}


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("name", POWERS)
@given(st.integers(0, 99))
def test_what_is_computed_back_makes_the_constant_to_the_bit(dtype, name, seed):
    source = np.random.default_rng(seed).normal(size=64).astype(np.float32)

    def made_of(numbers):
        return evaluate(POWERS[name], lambda *_: numbers, np.float32).astype(dtype)

    [share] = shares(POWERS[name], made_of(source), lambda *_: source)
    assert made_of(share.values).tobytes() == made_of(source).tobytes()


def test_a_power_is_taken_from_weights_that_are_proven_to_be_the_source(tmp_path):
    source = np.random.default_rng(0).normal(size=64).astype(np.float32)
    made = evaluate(POWERS["decay"], lambda *_: source).astype(np.float16)
    manifest = {
        "made": {"c": {"value": POWERS["decay"]}},
        "origins": {"w": origin_of(torch.from_numpy(source))},
    }
    wanted = {"w": Header("F32", source.shape)}
    file = Held(tmp_path, {"w": source})
    back = unfolded(Folded(Held(tmp_path, {"c": made}), manifest, wanted, {}, file))
    assert back.arrays["w"].tobytes() == source.tobytes()
    assert back.ways == {"w": "proven"}
