"""Values that are not finite: the operation is found, in the module and line that ran it, with advice."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from weighbridge.trainers.checks.nonfinite import explain


class Loss(torch.nn.Module):
    """A linear layer, and what a test does to its output."""

    def __init__(self, function):
        super().__init__()
        self.model = torch.nn.Sequential(torch.nn.Linear(3, 3, bias=False), Applied(function))
        torch.nn.init.eye_(self.model[0].weight)

    def forward(self, x):
        return self.model(x).sum()


class Applied(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def masked(x):
    return torch.softmax(x.masked_fill(x < 10, -torch.inf), -1)


def untaken(x):
    return torch.where(x > 0, (x.abs() + 0.0).sqrt(), torch.zeros_like(x))


FORWARD = {  # function, its input, operation, what is said
    "exp": (lambda x: x.exp(), 100.0, "exp", "too large for its dtype"),
    "log": (lambda x: x.log(), 0.0, "log", "logarithm of zero or less"),
    "log of negative": (lambda x: x.log(), -1.0, "log", "logarithm of zero or less"),
    "division": (lambda x: 1 / x, 0.0, "reciprocal", "divides by zero"),
    "zero by zero": (lambda x: x / x, 0.0, "div", "divides by zero"),
    "root": (lambda x: x.sqrt(), -1.0, "sqrt", "root of a negative number"),
    "all masked": (masked, 1.0, "_softmax", "everything is hidden"),
    "infinity first": (lambda x: x.exp() - x.exp(), 100.0, "exp", "logsumexp"),
}
BACKWARD = {
    "root": (lambda x: x.abs().sqrt(), "sqrt", "no finite gradient at zero"),
    "norm by hand": (lambda x: (x * x).sum().sqrt(), "sqrt", "normalize"),
    "untaken branch": (untaken, "sqrt", "no finite gradient at zero"),
}


@pytest.mark.parametrize(("function", "value", "operation", "says"), FORWARD.values(), ids=FORWARD)
def test_an_operation_that_makes_a_value_not_finite_is_named(function, value, operation, says):
    said = explain(Loss(function), {"x": np.full((2, 3), value, np.float32)})
    assert said.startswith(f"{operation} in model.1 (test_nonfinite.py:")
    assert says in said


@pytest.mark.parametrize(("function", "operation", "says"), BACKWARD.values(), ids=BACKWARD)
def test_an_operation_whose_gradient_is_not_finite_is_named(function, operation, says):
    said = explain(Loss(function), {"x": np.zeros((2, 3), np.float32)})
    assert said.startswith(f"{operation} (test_nonfinite.py:")
    assert says in said


def test_a_mask_of_infinities_is_not_taken_for_the_cause():
    def attend(x):
        return (torch.softmax(x.masked_fill(x < 0.5, -torch.inf), -1) * 1e30).exp()

    said = explain(Loss(attend), {"x": np.eye(3, dtype=np.float32)})
    assert said.startswith("exp in model.1")


def test_data_and_parameters_come_first():
    loss = Loss(lambda x: x)
    assert "not finite in x" in explain(loss, {"x": np.full((2, 3), np.nan, np.float32)})
    loss.model[0].weight.data[0, 0] = np.inf
    assert "model.0.weight" in explain(loss, {"x": np.ones((2, 3), np.float32)})


def test_finite_values_have_no_cause():
    assert explain(Loss(lambda x: x * 2), {"x": np.ones((2, 3), np.float32)}) == ""
