"""A recording of a user's class is taken again as long as all that its code reaches is the same."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
import torch
from torch import nn

from weighbridge.converters.captures import capture
from weighbridge.converters.captures.torch_to_mlx import capturing

from .conftest import INPUTS, NETWORK, OPERATIONS


def test_every_number_that_the_code_of_a_network_reaches_is_in_its_key(key):
    plain = key()
    assert plain is not None
    keys = {str(plain): "as it is"}
    numbers = [f"{it}.0" for it in range(2, 27) if it != 16]
    for number in [*numbers, "+ 1.0", "+ 16.0"]:
        other = number.replace(".0", ".5")
        sources = [it.replace(number, other, 1) for it in (NETWORK, OPERATIONS)]
        assert sources != [NETWORK, OPERATIONS]
        assert keys.setdefault(str(key(*sources)), number) == number
    assert "None" not in keys
    assert key() == plain


CHANGES = {
    "another function of a library under the same name": lambda _, network, __: setattr(
        network, "activation", torch.nn.functional.gelu
    ),
    "a method on the object": lambda module, *_: setattr(module, "still", lambda x: x),
    "a method on the class": lambda _, network, __: setattr(
        network.Base, "base", lambda self, x: x
    ),
    "a value in a module": lambda _, __, operations: setattr(operations, "FACTOR", 2.5),
    "a function in a module": lambda _, __, operations: setattr(
        operations, "inner", operations.chosen
    ),
    "a setting of an object": lambda module, *_: setattr(module.settings, "scale", 9.5),
    "a new attribute": lambda module, *_: setattr(module.settings, "more", 1),
    "a hook": lambda module, *_: module.layer.register_forward_hook(lambda *about: about[2] * 2),
    "a number of a library": lambda *_: setattr(nn.functional, "SCALE", 1.0),
    "a global that was built in": lambda _, network, __: setattr(network, "sum", max),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_is_put_in_another_place_makes_another_key(key, monkeypatch, what):
    plain = key()
    monkeypatch.setattr(nn.functional, "SCALE", 2.0, raising=False)
    assert key(change=CHANGES[what]) not in (None, plain)


def test_a_comment_and_a_line_more_change_no_key(key):
    assert key(f"# A comment.\n\n{NETWORK}") == key() is not None


@pytest.mark.parametrize(
    "line",
    [
        "import os; x = x * float(os.environ.get('SCALE', 1))",
        "import random; x = x * random.random()",
        "import numpy as np; x = x * np.random.rand()",
        "import time; x = x * time.time()",
        "global COUNT; COUNT = 1",
        "x = eval('x * 2')",
        "x = globals()['helper'](x)",
        "x = x * float(open('scale').read())",
        "x = torch.ops.aten.relu(x)",
        "x = x * unknown",
        "import json; x = x * json.loads('2')",
        "import users_lazily",
    ],
)
def test_code_that_may_compute_otherwise_each_time_has_no_key(key, line):
    network = NETWORK.replace("        def last(y):", f"        {line}\n        def last(y):")
    network = network.replace("OFFSET = 5.0", "OFFSET = 5.0\nunknown = object()", 1)
    assert network != NETWORK
    assert key(network) is None


def test_a_network_of_users_is_recorded_once(key, monkeypatch):
    made, record = [], capturing.record
    monkeypatch.setattr(capturing, "record", lambda *about: made.append(about) or record(*about))
    for factor in ("2.0", "2.0", "2.5"):
        module = key.made(NETWORK, OPERATIONS.replace("2.0", factor)).eval()
        captured = capture(module, inputs=INPUTS)
        x = torch.linspace(-1, 1, 16).reshape(2, 8).requires_grad_()
        wanted = module(x)
        wanted.sum().backward()
        found = captured(input=mx.array(x.detach().numpy()))
        slope = mx.grad(lambda input, it=captured: it(input=input).sum())(  # noqa: A006
            mx.array(x.detach().numpy())
        )
        np.testing.assert_allclose(np.array(found), wanted.detach().numpy(), rtol=1e-5)
        np.testing.assert_allclose(np.array(slope), x.grad.numpy(), rtol=1e-5, atol=1e-6)
    assert len(made) == 2
