"""Inputs: sizes that vary, sizes that may not, and clear refusals."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
import torch
from torch import nn

from weighbridge.converters.captures import capture
from weighbridge.errors import BadInputError, MismatchError, UnsupportedError


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 3)

    def forward(self, ids, mask):
        return self.table(torch.arange(ids.shape[1]))[None] * mask[..., None] + ids[..., None]


class Strided(nn.Module):
    def forward(self, x):
        return x.unflatten(1, (-1, 4)).sum(-1)


class Paired(nn.Module):
    def forward(self, a, b):
        return a + b


class Numbered(nn.Module):
    def forward(self, logits, scaled):
        """Take each row's own number for its class, as contrastive losses do."""
        rows = torch.arange(len(logits))
        return nn.functional.cross_entropy(logits * 2 if scaled else logits, rows) / len(logits)


class Collecting(nn.Module):
    def forward(self, **inputs):
        return inputs["a"] + inputs["b"]


TEXT = {"ids": {0: "batch", 1: "sequence"}, "mask": {0: "batch", 1: "sequence"}}
EXAMPLE = {"ids": torch.ones(2, 5), "mask": torch.ones(2, 5)}


@pytest.fixture(scope="module")
def positions():
    return capture(Positions(), inputs=EXAMPLE, dynamic=TEXT)


def test_all_problems_of_the_inputs_come_together(positions):
    with pytest.raises(MismatchError) as caught:
        positions(id=mx.ones((2, 5)), mask=mx.ones((2, 5, 1)))
    assert caught.value.problems == (
        "ids is missing",
        "id is unknown, did you mean ids?",
        "mask: 3 axes, recorded with 2",
    )


def test_equal_names_are_equal_sizes(positions):
    with pytest.raises(MismatchError, match=r"mask: axis 1 \(sequence\) has 4 elements, another"):
        positions(ids=mx.ones((2, 5)), mask=mx.ones((2, 4)))


@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (2, 5)])
def test_a_size_of_one_runs_though_torch_would_record_it_as_a_constant(shape):
    captured = capture(
        Positions(), inputs={"ids": torch.ones(1, 5), "mask": torch.ones(1, 5)}, dynamic=TEXT
    )
    assert captured(ids=mx.ones(shape), mask=mx.ones(shape)).shape == (*shape, 3)


def test_a_dimension_may_equal_another_by_chance():
    square = {"ids": torch.ones(4, 4), "mask": torch.ones(4, 4)}
    captured = capture(Positions(), inputs=square, dynamic=TEXT)
    assert captured(ids=mx.ones((2, 7)), mask=mx.ones((2, 7))).shape == (2, 7, 3)


@pytest.mark.parametrize("count", [2, 5])
def test_the_length_of_a_tensor_varies_with_it(count):
    example = {"logits": torch.ones(3, 7), "scaled": True}
    captured = capture(Numbered(), inputs=example, dynamic={"logits": {0: "rows"}})
    logits = torch.randn(count, 7)
    found = captured(logits=mx.array(logits.numpy()), scaled=True)
    assert found.item() == pytest.approx(Numbered()(logits, scaled=True).item(), rel=1e-5)


def test_what_is_no_tensor_may_be_given_as_it_was_recorded():
    captured = capture(Numbered(), inputs={"logits": torch.ones(3, 7), "scaled": True})
    assert captured(logits=mx.ones((3, 7))).item() == captured(mx.ones((3, 7)), scaled=True).item()
    with pytest.raises(MismatchError, match="scaled: False given, recorded with True"):
        captured(logits=mx.ones((3, 7)), scaled=False)
    with pytest.raises(MismatchError, match="logits: Tensor given, give an array of MLX or NumPy"):
        captured(logits=torch.ones(3, 7))


def test_a_dimension_that_the_code_fixes_is_refused_at_capture():
    class Fixed(nn.Module):
        def forward(self, x):
            return x.reshape(-1, 6)[: x.shape[0]] + x.view(2, 6)

    refusal = (
        r"'batch' of input 'x' cannot vary.*at 2(?s:.*)at .*test_ports.py:\d+: return x.reshape"
    )
    with pytest.raises(UnsupportedError, match=refusal):
        capture(Fixed(), inputs={"x": torch.ones(2, 6)}, dynamic={"x": {0: "batch"}})


def test_dimensions_that_the_code_ties_need_one_name():
    with pytest.raises(UnsupportedError, match=r"'n' and 'm' must be equal"):
        capture(
            Paired(),
            inputs={"a": torch.ones(3), "b": torch.ones(3)},
            dynamic={"a": {0: "n"}, "b": {0: "m"}},
        )


def test_inputs_that_are_one_tensor_stay_two_inputs():
    x = torch.ones(3)
    captured = capture(Paired(), inputs={"a": x, "b": x})
    assert captured(a=mx.array([1.0, 2, 3]), b=mx.zeros(3)).tolist() == [1, 2, 3]


def test_inputs_of_keywords_unnamed_have_fixed_sizes():
    example = {"a": torch.ones(3), "b": torch.ones(3)}
    assert capture(Collecting(), inputs=example)(a=mx.ones(3), b=mx.ones(3)).tolist() == [2] * 3
    with pytest.raises(UnsupportedError, match=r"sizes of a, b cannot vary.*Collecting\.forward"):
        capture(Collecting(), inputs=example, dynamic={"a": {0: "n"}})


def test_a_size_that_the_code_cannot_take_fails_loudly():
    captured = capture(Strided(), inputs={"x": torch.ones(2, 8)}, dynamic={"x": {1: "time"}})
    assert captured(x=mx.ones((2, 12))).tolist() == [[4] * 3] * 2
    with pytest.raises((MismatchError, ValueError)):
        captured(x=mx.ones((2, 10)))


def test_arrays_are_taken_in_any_dtype_and_from_numpy(positions):
    ids = np.ones((2, 5), np.int32)
    assert positions(ids=ids, mask=mx.ones((2, 5), mx.bool_)).dtype == mx.float32


@pytest.mark.parametrize("dynamic", [{"idz": {0: "n"}}, {"ids": {2: "n"}}])
def test_dynamic_must_name_inputs_and_axes_that_exist(dynamic):
    with pytest.raises(BadInputError, match="`dynamic` names"):
        capture(Positions(), inputs=EXAMPLE, dynamic=dynamic)


@pytest.mark.parametrize(
    "dynamic", [["ids"], {"ids": [0, 1]}, {"ids": {-1: "n"}}, {"ids": {"0": "n"}}, {"ids": {0: 1}}]
)
def test_dynamic_of_another_form_is_refused_with_how_it_is_written(dynamic):
    with pytest.raises(BadInputError, match=r'those to names: \{"x": \{0: "batch"\}\}'):
        capture(Positions(), inputs=EXAMPLE, dynamic=dynamic)


def test_other_modes_than_those_that_are_known_are_refused():
    with pytest.raises(BadInputError, match="modes is 'all'; it is one of 'lazy'"):
        capture(Positions(), inputs=EXAMPLE, modes="all")


class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 3)

    def forward(self, ids):
        return self.table(ids.view(-1).long())


@pytest.fixture(scope="module")
def table():
    return capture(Table(), inputs={"ids": torch.ones(4, dtype=torch.int32)})


@pytest.mark.parametrize("array", [mx.array([0.5, 1, 2, 3]), np.ones(4)], ids=["mlx", "numpy"])
def test_fractions_are_no_integers(table, array):
    with pytest.raises(MismatchError, match=r"ids: float\d\d given, recorded with int32"):
        table(ids=array)


@pytest.mark.parametrize("wrong", [10, -1])
def test_an_index_that_its_table_has_not_is_refused_where_it_can_be_seen(table, wrong):
    ids = mx.array([0, 9, wrong, 1])
    with pytest.raises(MismatchError, match=rf"ids: holds {wrong}, .*table of 10 rows"):
        table(ids=ids)


class Picked(nn.Module):
    """Reads or writes a weight by inputs, in all of torch's ways, which say what they may hold."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(3, 5))

    def forward(self, ids):
        return {name: way(self.table, ids[name]) for name, (way, *_) in WAYS.items() if name in ids}


WAYS = {
    "gather": (lambda x, ids: x.gather(1, ids[:, None]), 5, 0),
    "index_select": (lambda x, ids: x.index_select(0, ids), 3, 0),
    "index": (lambda x, ids: x[:, ids], 5, -5),
    "take": (torch.take, 15, -15),
    "index_add": (lambda x, ids: x.index_add(0, ids, torch.ones(3, 5)), 3, 0),
    "scatter_add": (lambda x, ids: x.scatter_add(1, ids[:, None], torch.ones(3, 1)), 5, 0),
    "index_put": (lambda x, ids: x.index_put((ids,), torch.ones(())), 3, -3),
    "cross entropy": (nn.functional.cross_entropy, 5, 0),
    "nll": (nn.functional.nll_loss, 5, 0),
}


def test_indices_beyond_what_they_read_are_refused_as_in_torch():
    module = Picked()
    right = {name: torch.tensor([least, n - 1, 0]) for name, (_, n, least) in WAYS.items()}
    right["cross entropy"][0] = -100  # which it ignores
    captured = capture(module, inputs=[right])
    arrays = {name: mx.array(ids.numpy()) for name, ids in right.items()}
    for name, value in captured(arrays).items():
        np.testing.assert_allclose(value, module(right)[name].detach(), rtol=1e-5, err_msg=name)
    for name, (_, count, least) in WAYS.items():
        refusal = rf"ids\.{name}: holds {{}}, .* from {least} to {count - 1}"
        for wrong in (count, least - 1):
            with pytest.raises((IndexError, RuntimeError)):
                module({name: torch.tensor([0, wrong, 0])})
            with pytest.raises(MismatchError, match=refusal.format(wrong)):
                captured({**arrays, name: mx.array([0, wrong, 0])})


def test_an_example_with_indices_beyond_their_table_is_refused():
    with pytest.raises(MismatchError, match=r"example inputs .*\n.*ids\.gather: holds 5, "):
        capture(Picked(), inputs=[{"gather": torch.tensor([0, 5, 0])}])


@pytest.mark.compiled
def test_indices_are_not_looked_at_while_mlx_traces(table):
    ids = mx.array([0, 9, 3, 1])
    np.testing.assert_array_equal(mx.compile(lambda x: table(ids=x))(ids), table(ids=ids))


class Nested(nn.Module):
    def forward(self, x, states, extra=None):
        total = x + states[0] * states[1]["h"]
        return total if extra is None else total * extra["scale"]


def test_inputs_may_be_positional_and_nested():
    x, h, scale = torch.randn(3, 4), torch.randn(3, 4), torch.randn(4)
    example = (x, [x + 1, {"h": h}], {"scale": scale})
    axes = {0: "rows"}
    captured = capture(
        Nested(), inputs=example, dynamic={"x": axes, "states.0": axes, "states.1.h": axes}
    )
    one, two, factor = (np.random.randn(*shape).astype("f4") for shape in [(5, 4), (5, 4), (4,)])  # noqa: NPY002
    states = [mx.array(one), {"h": mx.array(two)}]
    found = captured(mx.array(one), states, extra={"scale": mx.array(factor)})
    np.testing.assert_allclose(found, (one + one * two) * factor, rtol=1e-5, atol=1e-6)
    by_name = captured(x=one, states=(one, {"h": two}), extra={"scale": factor})
    assert mx.array_equal(found, by_name)
    with pytest.raises(MismatchError) as caught:
        captured(one, [one, {"g": two}], extra={"scale": factor})
    assert caught.value.problems == (
        "states.1.h is missing",
        "states.1.g is unknown, did you mean states.1.h?",
    )
    with pytest.raises(MismatchError, match="x is given twice"):
        captured(one, states, x=one)


def test_more_inputs_than_forward_has_are_refused():
    with pytest.raises(
        BadInputError, match=r"3 inputs, but Paired\.forward takes 2 in order: a, b"
    ):
        capture(Paired(), inputs=(torch.ones(2),) * 3)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_example_inputs_may_be_arrays_of_mlx(dtype):
    captured = capture(Paired(), inputs=[mx.ones((2, 3), dtype)] * 2)
    assert captured(mx.ones((2, 3), dtype), mx.ones((2, 3), dtype)).dtype == dtype


def test_an_example_that_does_not_fit_is_one_error_and_no_log(logged, capfd):
    with pytest.raises(UnsupportedError, match=r"\[2, 3\] X \[4, 5\]"):
        capture(nn.Linear(4, 5), inputs=[torch.ones(2, 3)])
    assert "failed while attempting" not in "".join(logged) + capfd.readouterr().err
