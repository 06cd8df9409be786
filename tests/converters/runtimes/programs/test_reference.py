"""The reference runtime on an exported network."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from weighbridge.converters.common.policy import Policy
from weighbridge.converters.coreml.export import export_coreml
from weighbridge.converters.models.model import Model
from weighbridge.converters.models.signature import Port, Signature
from weighbridge.converters.runtimes.programs.reference import ReferenceRunner
from weighbridge.errors import BadInputError

SIGNATURE = Signature(
    inputs=(Port("x", "float32", ("batch", 6), "series"),),
    outputs=(Port("y", "float32", ("batch", 4), "series"),),
)
X = np.random.default_rng(0).standard_normal((3, 6)).astype(np.float32)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 5)
        self.second = nn.Sequential(nn.GELU(), nn.Linear(5, 4))

    def forward(self, x):
        return self.second(self.first(x))


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return Network().eval()


@pytest.fixture(scope="module")
def runner(network, tmp_path_factory):
    """The network in the evaluator, from a float16 package."""
    path = tmp_path_factory.mktemp("package") / "network.mlpackage"
    export_coreml(network, SIGNATURE, path, compute="float16")
    return ReferenceRunner(Model(str(path), "mlprogram", path, {}), Policy())


@pytest.fixture(scope="module")
def expected(network):
    with torch.no_grad():
        return network(torch.from_numpy(X)).numpy()


def test_outputs_are_float32_by_port_name(runner, expected):
    outputs = runner.run({"x": X})
    assert list(outputs) == ["y"]
    assert outputs["y"].dtype == np.float32
    np.testing.assert_allclose(outputs["y"], expected, atol=5e-3)


def test_the_shadow_rounds_no_activation(runner, network):
    half = Network().eval()
    half.load_state_dict({k: v.half().float() for k, v in network.state_dict().items()})
    with torch.no_grad():
        exact = half(torch.from_numpy(X)).numpy()
    np.testing.assert_allclose(runner.shadow().run({"x": X})["y"], exact, rtol=1e-5, atol=1e-6)
    assert runner.precision == "declared"
    assert not np.allclose(runner.run({"x": X})["y"], exact, rtol=1e-6)


def test_sites_are_submodules_and_float32(runner, network):
    sites = runner.trace({"x": X}).sites
    assert {"first", "second", "second.0", "second.1"} <= set(sites)
    with torch.no_grad():
        first = network.first(torch.from_numpy(X)).numpy()
    np.testing.assert_allclose(sites["first"], first, atol=5e-3)
    assert {array.dtype for array in sites.values()} == {np.dtype(np.float32)}


def test_a_correction_is_what_the_next_site_sees(runner, network):
    zeros = {"first": np.zeros((3, 5), np.float32)}
    trace, plain = runner.trace({"x": X}, zeros), runner.trace({"x": X})
    np.testing.assert_array_equal(trace.sites["first"], plain.sites["first"])
    assert not trace.sites["second.0"].any()
    with torch.no_grad():
        bias = network.second(torch.zeros(3, 5)).numpy()
    np.testing.assert_allclose(trace.outputs["y"], bias, atol=1e-3)


def test_the_signature_is_that_of_the_package(runner):
    assert [port.name for port in runner.signature.inputs] == ["x"]
    assert runner.signature.inputs[0].shape == ("batch", 6)


def test_the_description_says_that_this_is_the_reference(runner):
    facts = runner.describe()
    assert (facts["runtime"], facts["dtype"], facts["accumulate"]) == (
        "reference", "float16", "float32",
    )  # fmt: skip
    assert runner.shadow().describe()["dtype"] == "float32"


def test_a_model_without_a_package_is_refused():
    with pytest.raises(BadInputError, match="is no package"):
        ReferenceRunner(Model("module:factory", "torch", None, {}), Policy())
