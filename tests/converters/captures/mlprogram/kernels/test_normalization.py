"""Normalizations, against torch and coremltools' value inference."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from weighbridge.converters.captures.mlprogram.kernels.normalization import KERNELS

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((2, 6, 5, 4)).astype(np.float32)
GAMMA, BETA, MEAN = RANDOM.standard_normal((3, 6)).astype(np.float32)
VARIANCE = (RANDOM.random(6) + 0.5).astype(np.float32)
EPSILON = np.float32(0.1)  # large: a wrong place for it must show


def tensors(*arrays):
    return [torch.from_numpy(array) for array in arrays]


CASES = {
    "batch_norm": (
        {"mean": MEAN, "variance": VARIANCE, "gamma": GAMMA, "beta": BETA, "epsilon": EPSILON},
        lambda x: F.batch_norm(x, *tensors(MEAN, VARIANCE, GAMMA, BETA), eps=float(EPSILON)),
    ),
    "instance_norm": (
        {"gamma": GAMMA, "beta": BETA, "epsilon": EPSILON},
        lambda x: F.instance_norm(x, None, None, *tensors(GAMMA, BETA), eps=float(EPSILON)),
    ),
    "local_response_norm": (
        {"size": np.int32(3), "alpha": EPSILON, "beta": np.float32(0.5), "k": np.float32(2)},
        lambda x: F.local_response_norm(x, 3, float(EPSILON), 0.5, 2),
    ),
    "l2_norm": (
        {"epsilon": EPSILON},
        lambda x: x / (x.square().flatten(1).sum(1) + float(EPSILON)).sqrt()[:, None, None, None],
    ),
}


@pytest.mark.parametrize("operation", sorted(CASES))
def test_kernels_equal_torch(operation, compute):
    inputs, oracle = CASES[operation]
    expected = oracle(torch.from_numpy(X)).numpy()
    np.testing.assert_allclose(compute(operation, x=X, **inputs)[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("axes", [[-1], [1, 2, 3], [1]])
def test_layer_norm_equals_coremltools_value_inference(axes, agree):
    shape = [X.shape[axis] for axis in axes]
    gamma, beta = RANDOM.standard_normal((2, *shape)).astype(np.float32)
    agree("layer_norm", 5e-6, x=X, axes=np.int32(axes), gamma=gamma, beta=beta, epsilon=EPSILON)


def test_affine_parameters_may_be_left_out(compute):
    expected = F.instance_norm(torch.from_numpy(X)).numpy()
    np.testing.assert_allclose(compute("instance_norm", x=X)[0], expected, atol=1e-5)


def test_every_kernel_of_the_table_is_tested():
    assert set(KERNELS) == {*CASES, "layer_norm"}
