"""ONNX files in onnxruntime: their submodules can be seen and corrected."""

from __future__ import annotations

import copy

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from torch import nn

from weighbridge.converters.captures.program_options import ProgramOptions
from weighbridge.converters.models import Port, Signature
from weighbridge.converters.models import open as open_model
from weighbridge.converters.onnx_export.export import export_onnx
from weighbridge.converters.runtimes import load
from weighbridge.errors import BadInputError

SIGNATURE = Signature(
    (Port("x", "float32", ("batch", 4), "hidden"),), (Port("y", "float32", ("batch", 4), "hidden"),)
)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x):
        return x + self.outer(torch.tanh(self.inner(x)))


@pytest.fixture(scope="module")
def stack():
    torch.manual_seed(1)
    return nn.Sequential(Block(), Block()).eval()


class Named(nn.Module):
    def __init__(self, stack):
        super().__init__()
        self.blocks = stack

    def forward(self, x):
        return self.blocks(x)


@pytest.fixture(scope="module", params=[False, True], ids=["one file", "weights beside it"])
def runner(request, stack, tmp_path_factory):
    path = tmp_path_factory.mktemp("onnx") / ("stack" if request.param else "stack.onnx")
    export_onnx(Named(stack), SIGNATURE, path, ProgramOptions(external_data=request.param))
    return load(open_model(str(path)))


X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


def hooked(stack):
    """Return what every submodule of STACK computes from X."""
    found = {}
    hooks = [
        module.register_forward_hook(
            lambda _m, _i, out, name=name: found.__setitem__(f"blocks.{name}", out.detach().numpy())
        )
        for name, module in stack.named_modules()
        if name
    ]
    stack(torch.from_numpy(X))
    for hook in hooks:
        hook.remove()
    return found


def test_every_submodule_is_a_site_with_what_torch_computes(stack, runner):
    wanted, found = hooked(stack), runner.trace({"x": X}).sites
    assert wanted.keys() <= found.keys()
    for site, array in wanted.items():
        assert found[site] == pytest.approx(array, abs=1e-6)


def test_a_correction_replaces_what_follows_and_not_the_site(stack, runner):
    plain = runner.trace({"x": X}).sites
    given = np.ones((3, 4), np.float32)
    trace = runner.trace({"x": X}, {"blocks.0": given})
    assert trace.sites["blocks.0"] == pytest.approx(plain["blocks.0"])
    wanted = stack[1](torch.from_numpy(given)).detach().numpy()
    assert trace.outputs["y"] == pytest.approx(wanted, abs=1e-6)
    assert trace.sites["blocks.1.inner"] == pytest.approx(
        stack[1].inner(torch.from_numpy(given)).detach().numpy(), abs=1e-6
    )


def test_a_correction_of_another_shape_or_name_does_nothing(runner):
    plain = runner.trace({"x": X})
    for corrections in ({"blocks.0": np.ones((3, 5), np.float32)}, {"nowhere": X}):
        assert np.array_equal(runner.trace({"x": X}, corrections).outputs["y"], plain.outputs["y"])


@pytest.mark.parametrize("apart", [False, True])
def test_the_float32_run_of_a_file_in_float16_has_its_weights_and_nothing_else_rounded(
    stack, tmp_path, apart
):
    path = tmp_path / ("stack" if apart else "stack.onnx")
    export_onnx(Named(stack), SIGNATURE, path, ProgramOptions("float16", external_data=apart))
    narrow = load(open_model(str(path)))
    wide = narrow.shadow()
    rounded = copy.deepcopy(stack).half().float()
    wanted = rounded(torch.from_numpy(X)).detach().numpy()
    assert wide.run({"x": X})["y"] == pytest.approx(wanted, abs=1e-6)
    assert narrow.run({"x": X})["y"] == pytest.approx(wanted, abs=1e-2)
    assert (narrow.describe()["dtype"], wide.describe()["dtype"]) == ("float16", "float32")
    for site, array in hooked(rounded).items():
        assert wide.trace({"x": X}).sites[site] == pytest.approx(array, abs=1e-6)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"z": X}, "takes x; not matched: x, z"),
        ({"x": X[:, :3]}, "cannot run on this input"),
    ],
)
def test_wrong_inputs_are_refused_in_one_line(runner, inputs, message):
    with pytest.raises(BadInputError, match=message) as caught:
        runner.run(inputs)
    assert "\n" not in str(caught.value)


class Masked(nn.Module):
    def forward(self, x):
        hidden = torch.zeros_like(x).masked_fill(x > 0.5, torch.finfo(x.dtype).min)
        return torch.softmax(x * 30 + hidden * 1.5, -1) + torch.rsqrt(x[:, :1] ** 2 + 1)


def test_the_range_of_float16_is_seen_behind_an_operation_that_onnx_does_not_know(tmp_path):
    """``QuickGelu`` is onnxruntime's own: ONNX's inference of types ends at it."""
    half, wide = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT
    ports = [helper.make_tensor_value_info(name, wide, ["rows", 4]) for name in ("x", "y")]
    steps = [("QuickGelu", ["narrow"], "gated"), ("Mul", ["gated", "c"], "large")]
    steps += [("Div", ["large", "c"], "small")]
    nodes = [helper.make_node("Cast", ["x"], ["narrow"], to=half)]
    for kind, given, name in steps:
        domain = "com.microsoft" if kind == "QuickGelu" else ""
        nodes.append(helper.make_node(kind, given, [name], domain=domain))
    nodes.append(helper.make_node("Cast", ["small"], ["y"], to=wide))
    large = onnx.numpy_helper.from_array(np.array(60000, np.float16), "c")
    graph = helper.make_graph(nodes, "gated", ports[:1], ports[1:], [large])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), tmp_path / "m.onnx")
    seen = load(open_model(str(tmp_path / "m.onnx"))).limited({"x": np.full((1, 4), 3, "f4")})
    assert (seen.largest > 65520, seen.place) == (True, "large (Mul)")
    assert not np.isfinite(seen.outputs["y"]).any()


def test_the_range_of_float16_is_seen_and_hides_no_more_than_masks_do(tmp_path):
    path = tmp_path / "masked.onnx"
    export_onnx(Masked(), SIGNATURE, path, ProgramOptions("float16"))
    runner = load(open_model(str(path)))
    near, far = np.array([[0.1, 0.9, -0.3, 0.2]], np.float32), np.full((1, 4), -300, np.float32)
    for x, same in ((near, True), (far, False)):
        seen, wide = runner.limited({"x": x}), runner.shadow().run({"x": x})
        assert seen.largest >= 65520
        assert np.allclose(seen.outputs["y"], wide["y"], atol=1e-6, rtol=0) is same
    assert seen.place == "pow_1 (Mul)"  # squares are products in the file
