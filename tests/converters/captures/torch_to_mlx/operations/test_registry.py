"""The table of handlers against torch's schemas."""

from __future__ import annotations

import inspect
from importlib import import_module

import pytest
import torch

from weighbridge.converters.captures.torch_to_mlx.operations.registry import handlers, qualified

TABLE = handlers()
OURS = "weighbridge.converters.captures.torch_to_mlx"
for _registers in (
    "torch.nn.modules.linear_cross_entropy",
    "transformers.integrations.moe",
    f"{OURS}.capturing",
):
    import_module(_registers)


def schema_of(name):
    namespace, operation, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), operation), overload)._schema


@pytest.mark.parametrize("name", TABLE)
def test_a_handler_serves_an_operation_that_gives_it_what_it_needs(name):
    arguments = [argument.name for argument in schema_of(name).arguments]
    function, _, arity = TABLE[name]
    if arity is not None:
        assert arity <= len(arguments)
        return
    required = {
        p.name.rstrip("_")
        for p in inspect.signature(function).parameters.values()
        if p.default is p.empty and p.kind is not p.VAR_KEYWORD
    }
    assert required - {"dtype"} <= set(arguments)


def test_names_are_completed():
    assert qualified("add.Tensor") == "aten.add.Tensor"
    assert qualified("relu") == "aten.relu.default"
