"""Composite operations whose registrations are kept: every program as torch alone decomposes it."""

from unittest import mock

import pytest
import torch
from torch import nn
from torch._C import DispatchKey
from torch._subclasses.fake_impls import op_implementations_dict

from weighbridge.converters.captures import tracing
from weighbridge.converters.captures.tracing import composites_kept

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
ATEN = torch.ops.aten
LINEAR, NORM = ATEN.linear.default, ATEN.layer_norm.default
COMPOSITES = (LINEAR, NORM, ATEN.silu_backward.default, ATEN.scaled_dot_product_attention.default)
SWAPPED = {LINEAR: lambda x, weight, bias=None: bias + x @ weight.t()}
TABLES = {"all whole": {}, "by torch": torch.export.default_decompositions, "own": SWAPPED}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.project, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x):
        x = self.norm(self.project(x))[:, None]
        return nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)


@pytest.fixture(scope="module")
def program():
    axes = {0: torch.export.Dim("batch", max=9)}
    made = torch.export.export(Block().eval(), (torch.ones(2, 3, 8),), dynamic_shapes=(axes,))
    for name in TABLES:  # torch compares sizes the first time only, and numbers other nodes by that
        code(made, name)
    return made


def table(name):
    return dict(TABLES[name]() if callable(TABLES[name]) else TABLES[name])


def code(program, name):
    return str(program.run_decompositions(table(name)).graph)


def registered():
    return [dict(op.py_kernels) for op in COMPOSITES]


@pytest.mark.parametrize("order", [tuple(TABLES), tuple(TABLES)[::-1]], ids=["as listed", "back"])
def test_every_table_gives_what_torch_gives_however_often_and_in_any_order(
    program, order, monkeypatch
):
    monkeypatch.setattr(tracing, "_known", {})
    wanted = {name: code(program, name) for name in TABLES}
    assert len(set(wanted.values())) == len(TABLES)
    before, rules = registered(), dict(op_implementations_dict)
    for name in (*order, *order, order[0]):
        with composites_kept():
            assert code(program, name) == wanted[name]
        assert registered() == before
        assert op_implementations_dict == rules
        assert not any(op._dispatch_cache.keys() & {DispatchKey.CPU} for op in COMPOSITES)
    assert code(program, order[0]) == wanted[order[0]]


def test_torch_makes_its_kernels_once_for_tables_that_take_turns(program):
    with composites_kept():
        for name in TABLES:
            code(program, name)
    by_torch = mock.patch.object(tracing, "_BY_TORCH", wraps=tracing._BY_TORCH)
    with by_torch as made, composites_kept():
        for name in TABLES:
            code(program, name)
    assert [call.args for call in made.call_args_list] == [({},)] * len(TABLES)


def answers(count):
    return lambda *_, **__: count


def test_functions_that_read_what_is_around_them_are_told_apart():
    for count in range(3):
        with tracing._registered({LINEAR: answers(count)}):
            assert LINEAR.py_kernels[DispatchKey.CompositeImplicitAutograd]() == count


def test_as_many_tables_are_kept_as_take_turns_and_no_more(program):
    for count in range(9):
        with tracing._registered({LINEAR: lambda *_, count=count, **__: count}):
            assert LINEAR.py_kernels[DispatchKey.CompositeImplicitAutograd]() == count
    assert len(tracing._known[LINEAR]) == tracing._MOST


def test_the_same_kernels_are_registered_the_second_time():
    keep = {op: (lambda *_, **__: NotImplemented) for op in (LINEAR, NORM)}
    seen = []
    for _ in range(2):
        with tracing._registered(keep):
            seen.append([(dict(op.py_kernels), op_implementations_dict[op]) for op in keep])
    assert seen[0] == seen[1]
    assert all(kernels for kernels, _ in seen[0])


def test_a_kernel_that_somebody_registers_later_is_kept_and_used(monkeypatch):
    keep = {LINEAR: lambda *_, **__: NotImplemented}
    with tracing._registered(keep):
        pass
    mine = lambda *_, **__: None  # noqa: E731
    monkeypatch.setitem(LINEAR.py_kernels, DispatchKey.CPU, mine)
    for _ in range(2):
        with tracing._registered(keep):
            assert LINEAR.py_kernels[DispatchKey.CPU] is mine
        assert LINEAR.py_kernels[DispatchKey.CPU] is mine


def test_a_rule_for_fake_tensors_that_was_there_is_taken_as_torch_takes_it(monkeypatch):
    keep, rule = {NORM: lambda *_, **__: NotImplemented}, lambda *_, **__: None
    with tracing._registered(keep):
        pass
    monkeypatch.setitem(op_implementations_dict, NORM, rule)
    with tracing._registered(keep):
        assert op_implementations_dict[NORM] is rule


def test_after_a_failure_all_is_as_before(program):
    before = registered()
    with composites_kept():
        code(program, "all whole")
        with pytest.raises(ZeroDivisionError):
            program.run_decompositions({LINEAR: lambda *_: 1 / 0})
    assert registered() == before
