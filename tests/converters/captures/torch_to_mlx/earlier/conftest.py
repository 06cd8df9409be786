"""A network of a user's, of two files, and what gives its key."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch

from weighbridge.converters.captures.torch_to_mlx.earlier import stored
from weighbridge.converters.common import cache

OPERATIONS = """
import torch

FACTOR = 2.0
def inner(x):
    return x + 1.0
def helper(x):
    return inner(x) * 3.0
def chosen(x):
    return x - 4.0
"""
NETWORK = '''
"""A network whose code lies in many places."""
import dataclasses, enum, functools, logging
from collections import namedtuple
from functools import partial
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.functional import silu as activation
import users_operations
from users_operations import helper

logger = logging.getLogger(__name__)
OFFSET = 5.0
TABLE = {"a": [6.0]}
Pair = namedtuple("Pair", "low high", defaults=(0.0, 7.0))

class Mode(enum.Enum):
    PLAIN = 8.0

@dataclasses.dataclass
class Settings:
    scale: float = 9.0
    sizes: list = dataclasses.field(default_factory=lambda: [10.0])
    def doubled(self):
        return self.scale * 11.0

class Slots:
    __slots__ = ("value",)
    def __init__(self):
        self.value = 12.0

def scaled(factor):
    def wrap(function):
        @functools.wraps(function)
        def call(*args):
            return function(*args) * factor
        return call
    return wrap

class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sign()
    @staticmethod
    def backward(ctx, grad):
        return grad * 13.0

class Base(nn.Module):
    bias = 14.0
    def base(self, x):
        return x + 15.0

class Numbers(list):
    def total(self):
        return sum(self) + 16.0

class Network(Base):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.settings, self.slots = Settings(), Slots()
        self.functions = [lambda x: x * 17.0, partial(torch.clamp, max=18.0)]
        self.numbers = Numbers([19.0])

    @property
    def half(self):
        return 20.0

    @functools.cached_property
    def whole(self):
        return 21.0

    @staticmethod
    def still(x):
        return x + 22.0

    @torch.no_grad()
    def frozen(self, x):
        return x * 23.0

    @scaled(24.0)
    def wrapped(self, x):
        return x

    def forward(self, input, power=25.0):
        from users_operations import chosen
        x = activation(self.layer(input)) * users_operations.FACTOR + helper(input)
        x = chosen(x) + OFFSET + TABLE["a"][0] + Pair().high + Mode.PLAIN.value + power
        x = x + self.settings.doubled() + self.settings.sizes[0] + self.slots.value
        x = self.base(x) + self.bias + self.half + self.whole + self.frozen(x) + self.numbers.total()
        x = self.wrapped(self.still(x)) + getattr(users_operations, "FACTOR")
        def last(y):
            return F.relu(y) + 26.0
        for function in self.functions:
            x = function(x)
        return last(Sign.apply(x) + x)
'''
INPUTS = {"input": torch.ones(2, 8)}


@pytest.fixture
def key(monkeypatch, tmp_path):
    """Return what gives the key of a network of these two files, in modules of always the same names."""
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "kept"))
    monkeypatch.setattr(stored, "check_package", lambda _: None)  # it takes long
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(tmp_path))

    def of(network=NETWORK, operations=OPERATIONS, change=None):
        return stored.key_of(made(network, operations, change), INPUTS, {}, None)

    def made(network, operations, change=None):
        for name, text in (("users_operations", operations), ("users_network", network)):
            (tmp_path / f"{name}.py").write_text(text)
            monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.invalidate_caches()
        module = importlib.import_module("users_network").Network()
        if change:
            change(module, sys.modules["users_network"], sys.modules["users_operations"])
        return module

    of.made = made
    return of
