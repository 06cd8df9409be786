"""A configuration's promise is read as the library that wrote it reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from weighbridge.converters.adapters import Adapter
from weighbridge.converters.adapters.promises import position, promised
from weighbridge.converters.values import LowRank

MODULES = [
    *(f"model.layers.{n}.{kind}" for n in range(4) for kind in ("attn.q", "mlp.up")),
    "model.layers.2.extra.q",  # only in one layer
    "model.embed",
    "lm_head",
]


def adapter(config, touched=(), dialect="mlx"):
    updates = dict.fromkeys([f"{module}.weight" for module in touched])
    return Adapter(Path("a"), dialect, updates, config)


def mlx(keys=None, layers=None):
    config = {"lora_parameters": {} if keys is None else {"keys": keys}}
    return config if layers is None else config | {"num_layers": layers}


def layers(kind, *numbers):
    return {f"model.layers.{n}.{kind}" for n in numbers}


CASES = {
    "relative to a layer": (mlx(["attn.q"]), layers("attn.q", 0, 1, 2, 3)),
    "the last two": (mlx(["attn.q"], 2), layers("attn.q", 2, 3)),
    "more layers than there are": (mlx(["attn.q"], 16), layers("attn.q", 0, 1, 2, 3)),
    "zero means all": (mlx(["attn.q"], 0), layers("attn.q", 0, 1, 2, 3)),
    "negative means all": (mlx(["attn.q"], -1), layers("attn.q", 0, 1, 2, 3)),
    "in some layers only": (mlx(["extra.q"]), layers("extra.q", 2)),
    "not in the last layers": (mlx(["extra.q", "attn.q"], 1), layers("attn.q", 3)),
    "full paths": (mlx(["model.layers.0.attn.q"], 1), layers("attn.q", 0)),
    "a module of the root": (mlx(["lm_head"], 2), {"lm_head"}),
    "not the end of another": (mlx(["q"]), set()),
}


@pytest.mark.parametrize("case", CASES)
def test_keys_name_modules_as_mlx_lm_reads_them(case):
    config, expected = CASES[case]
    assert promised(adapter(config), MODULES).modules == expected


def test_a_key_that_no_module_has_is_unknown():
    assert promised(adapter(mlx(["attn.q", "attn.k"])), MODULES).unknown == ("attn.k",)


@pytest.mark.parametrize(("count", "expected"), [(None, (0, 1, 2, 3)), (2, (2, 3))])
def test_without_keys_what_is_in_one_layer_is_promised_in_all(count, expected):
    found = promised(adapter(mlx(None, count), ["model.layers.3.attn.q", "lm_head"]), MODULES)
    assert found.modules == layers("attn.q", *expected)


PEFT = {
    "list": ({"target_modules": ["q"]}, layers("attn.q", 0, 1, 2, 3) | layers("extra.q", 2)),
    "regex": ({"target_modules": r".*\.1\..*"}, layers("attn.q", 1) | layers("mlp.up", 1)),
    "all": ({"target_modules": "all-linear"}, layers("attn.q", 0, 1, 2, 3)),
}


@pytest.mark.parametrize("case", PEFT)
def test_targets_name_modules_as_peft_reads_them(case):
    config, expected = PEFT[case]
    found = promised(adapter(config, ["model.layers.0.attn.q"], "peft"), MODULES)
    assert found.modules == expected


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("h.0.attn", ("h", 0, "attn")),
        ("a.12.mlp.experts.3.w1", ("a", 12, "mlp.experts.3.w1")),
        ("layer4.x", None),
        ("lm_head", None),
        ("0.x", ("", 0, "x")),
    ],
)
def test_the_first_number_of_a_path_is_its_layer(module, expected):
    assert position(module) == expected


def test_the_promise_counts_no_tensor_values():
    assert LowRank.__dataclass_fields__  # the updates above are None: only names are looked at
    assert promised(adapter(mlx(["lm_head"]), ["lm_head"]), MODULES).modules == {"lm_head"}
