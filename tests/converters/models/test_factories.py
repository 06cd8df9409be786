"""Modules that a user's function built are called by the names of their inputs, or refused in a line."""

from __future__ import annotations

import numpy as np
import pytest
from mlx import nn

from weighbridge.converters.models.factories import run_module
from weighbridge.errors import UsersCodeError


def test_a_module_that_takes_no_input_of_that_name_is_refused_whoever_wrote_it():
    with pytest.raises(UsersCodeError, match=r"Linear cannot be called .*\(input_ids\): missing"):
        run_module(nn.Linear(2, 2), {"input_ids": np.zeros((1, 2))})


def test_an_error_inside_a_module_is_its_own():
    def inner(input_ids):
        return len(input_ids) + "text"

    class Port(nn.Module):
        def __call__(self, input_ids):
            return inner(input_ids)

    with pytest.raises(TypeError, match="unsupported operand"):
        run_module(Port(), {"input_ids": [1]})
