"""Mirrors converters/runtimes/mlx.py; the oracle is the same model in PyTorch."""

import mlx.core as mx
import numpy as np
import pytest

from weighbridge import jobs
from weighbridge.converters.common.policy import Policy
from weighbridge.converters.planning.opening import open as open_model
from weighbridge.converters.runtimes import load
from weighbridge.converters.runtimes.mlx import run_recorded
from weighbridge.errors import MismatchError, UnsupportedError

UNCHECKED = jobs.Options(check="none")
SERIES = {"trust_code": "examples.timeseries:build", "map": "examples/timeseries.wmap"}


@pytest.fixture(scope="module")
def mlx_bert(tiny_bert_dir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mlx") / "bert"
    jobs.convert(str(tiny_bert_dir), folder, "mlx", options=UNCHECKED)
    return folder


@pytest.fixture(scope="module")
def runners(tiny_bert_dir, mlx_bert):
    return load(open_model(tiny_bert_dir)), load(open_model(mlx_bert))


def batch(rows, length, seed=0):
    generator = np.random.default_rng(seed)
    mask = np.ones((rows, length), np.int64)
    mask[-1, length // 2 :] = 0
    return {"input_ids": generator.integers(5, 60, (rows, length)), "attention_mask": mask}


@pytest.mark.parametrize(("rows", "length"), [(1, 5), (2, 9), (4, 16)])
def test_a_captured_directory_agrees_with_torch_at_every_size(runners, rows, length):
    inputs = batch(rows, length)
    ours, theirs = (runner.run(inputs)["last_hidden_state"] for runner in reversed(runners))
    assert np.linalg.norm(ours - theirs) < 2e-6 * np.linalg.norm(theirs)


def test_both_runtimes_have_the_same_sites_with_the_same_values(runners):
    torch_sites, mlx_sites = (runner.trace(batch(2, 9)).sites for runner in runners)
    shared = set(torch_sites) & set(mlx_sites)
    assert {"encoder.layer.1.output.LayerNorm", "encoder.layer.0.attention.self.query"} <= shared
    for site in shared:
        scale = np.linalg.norm(torch_sites[site])
        assert np.linalg.norm(torch_sites[site] - mlx_sites[site]) < 5e-6 * scale, site


def test_the_description_says_what_ran(runners):
    assert runners[1].describe()["runtime"] == "mlx"
    assert runners[1].describe()["captured"] == "True"


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    from examples.timeseries import write_model

    folder = tmp_path_factory.mktemp("series")
    write_model(folder / "torch")
    options = jobs.Options(check="none", **SERIES)
    jobs.convert(str(folder / "torch"), folder / "mlx", "mlx", options=options)
    return folder


def test_a_native_module_with_mlx_layouts_agrees_with_torch(series):
    native = load(open_model(series / "mlx", trust_code="examples.timeseries:build_mlx"))
    source = load(open_model(series / "torch", trust_code=SERIES["trust_code"]))
    inputs = {"series": np.random.default_rng(0).normal(size=(2, 3, 96)).astype(np.float32)}
    ours, theirs = native.run(inputs)["forecast"], source.run(inputs)["forecast"]
    assert np.abs(ours - theirs).max() < 1e-5 * np.abs(theirs).max()
    assert native.describe()["captured"] == "False"


def test_a_native_module_refuses_an_untransposed_convolution(series):
    with pytest.raises(MismatchError, match=r"blocks.0.conv.weight: expected \[24, 3, 24\]"):
        load(open_model(series / "torch", trust_code="examples.timeseries:build_mlx"), "mlx")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_convolution_is_captured_in_sixteen_bits(series, dtype):
    model = open_model(series / "mlx", trust_code="examples.timeseries:build")
    inputs = {"series": np.random.default_rng(0).normal(size=(2, 3, 96)).astype(np.float32)}
    narrow = load(model, "mlx", Policy(compute=dtype)).run(inputs)["forecast"]
    wide = load(model, "mlx").run(inputs)["forecast"]
    assert narrow.dtype.name == dtype
    assert np.linalg.norm(narrow.astype(np.float32) - wide) < 0.05 * np.linalg.norm(wide)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_module_with_weights_in_16_bits_is_widened_to_run_in_float32(dtype):
    import mlx.core as mx
    from mlx import nn

    from weighbridge.converters.runtimes.mlx import widened

    module = nn.Linear(5, 3)
    module.set_dtype(getattr(mx, dtype))
    x = mx.random.normal((2, 5))
    wanted = x @ module.weight.T.astype(mx.float32) + module.bias.astype(mx.float32)
    assert mx.array_equal(widened(module, "float32")(x), wanted)
    assert module.weight.dtype == getattr(mx, dtype)  # a user's module stays as it is
    assert widened(module, dtype) is module


def test_a_recording_that_does_not_run_at_another_size_is_refused_in_one_line():
    def module(**_):
        return mx.broadcast_to(mx.zeros((3, 1)), (2, 2))

    with pytest.raises(UnsupportedError, match="recorded at one size"):
        run_recorded(module, {})
