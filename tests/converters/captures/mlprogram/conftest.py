"""Two ways to compute one operation: our kernel, and coremltools' own value inference."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from weighbridge.converters.captures.mlprogram.evaluator import KERNELS, held
from weighbridge.converters.captures.mlprogram.toolkit import coremltools, quiet

with quiet():
    from coremltools.converters.mil.mil import Builder as mb  # noqa: N813
    from coremltools.converters.mil.mil import Function


def as_list(outputs):
    return list(outputs) if isinstance(outputs, list | tuple) else [outputs]


@pytest.fixture(scope="session")
def compute():
    """Return a function that computes an operation with our kernel, numpy in and numpy out."""

    def computed(operation, **inputs):
        values = {
            name: [held(item) for item in value] if isinstance(value, tuple) else held(value)
            for name, value in inputs.items()
        }
        outputs = KERNELS[operation](values)
        return [x.numpy() if isinstance(x, torch.Tensor) else x for x in outputs]

    return computed


@pytest.fixture(scope="session")
def infer():
    """Return a function that computes an operation with coremltools' value inference."""

    def inferred(operation, opset="iOS17", **inputs):
        with quiet(), Function({}, opset_version=getattr(coremltools.target, opset)):
            values = {k: list(v) if isinstance(v, tuple) else v for k, v in inputs.items()}
            outputs = as_list(getattr(mb, operation)(**values))
        assert all(output.val is not None for output in outputs), f"no oracle for {operation}"
        return [np.asarray(output.val) for output in outputs]

    return inferred


@pytest.fixture
def agree(compute, infer):
    """Return an assertion that kernel and value inference agree, shapes included."""

    def assert_agreement(operation, tolerance=1e-6, **inputs):
        ours, theirs = compute(operation, **inputs), infer(operation, **inputs)
        assert len(ours) == len(theirs)
        for mine, their in zip(ours, theirs, strict=True):
            assert mine.shape == their.shape
            np.testing.assert_allclose(mine, their, rtol=tolerance, atol=tolerance)

    return assert_agreement


@pytest.fixture(scope="session")
def build_package():
    """Return a function that writes an ML program, given as a function of builder variables."""

    def build(path, body, specs, *, target="iOS17", half=False, passes=False):
        with quiet():
            program = mb.program(
                input_specs=specs, opset_version=getattr(coremltools.target, target)
            )(body)
            precision = coremltools.precision
            model = coremltools.convert(
                program,
                convert_to="mlprogram",
                minimum_deployment_target=getattr(coremltools.target, target),
                compute_precision=precision.FLOAT16 if half else precision.FLOAT32,
                pass_pipeline=None if passes or half else coremltools.PassPipeline.EMPTY,
                skip_model_load=True,
            )
            model.save(str(path))
        return path

    return build
