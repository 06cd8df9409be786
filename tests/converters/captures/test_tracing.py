"""What is left out of recordings: nothing of it is missed in them."""

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.fx import proxy

from weighbridge.converters.captures.tracing import unused_left_out

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


class Gate(nn.Module):
    def forward(self, x):
        return halves(x) if x.shape[0] > 0 else x


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.norm = Gate(), nn.LayerNorm(8)

    def forward(self, x):
        torch._check(x.shape[0] < 100)
        return self.gate(
            self.norm(x),
        )


def halves(x):
    first, second = x.chunk(2, -1)
    return first * second.sigmoid()


def recorded(axes):
    program = torch.export.export(Block().eval(), (torch.ones(2, 8),), dynamic_shapes=(axes,))
    return program, program.run_decompositions({})


def nodes(programs):
    return [
        (str(node), node.meta.get("stack_trace"), str(node.meta.get("val")))
        for program in programs
        for node in program.graph.nodes
    ]


@pytest.mark.parametrize("axes", [{}, {0: Dim.AUTO}], ids=["fixed", "varying"])
def test_nodes_keep_the_lines_that_they_have_without(axes):
    wanted = nodes(recorded(axes))
    with unused_left_out(varying=bool(axes)):
        found = nodes(recorded(axes))
    assert found == wanted
    lines = [trace for _, trace, _ in found if trace]
    assert any("return first * second.sigmoid()" not in it and "self.norm(x)" in it for it in lines)


def test_only_calls_that_torch_keeps_are_looked_at():
    class Tracer(proxy.TracerBase):
        _record_forward_stack_traces_only = True

    def forward():
        return proxy.CapturedTraceback.extract().summary()

    whole = forward()
    with unused_left_out():
        few = forward()
    kept = Tracer()._filter_traceback_frames(whole)
    assert [(it.filename, it.name) for it in few] == [(it.filename, it.name) for it in kept]
    assert len(few) < len(whole)
