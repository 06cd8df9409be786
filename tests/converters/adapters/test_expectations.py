"""A configuration's expectation is read as the library that wrote it reads it."""

from __future__ import annotations

from pathlib import Path

import peft
import pytest
import torch
from peft.tuners.tuners_utils import check_target_module_exists

from weighbridge.converters.adapters import Adapter
from weighbridge.converters.adapters.expectations import (
    expected_updates,
    last_layers,
    position,
    unnamed,
)
from weighbridge.converters.values import LowRank

MODULES = [
    *(f"model.layers.{n}.{kind}" for n in range(4) for kind in ("attn.q", "mlp.up")),
    "model.layers.2.extra.q",  # only in one layer
    "model.embed",
    "lm_head",
]


def adapter(config, changed=(), dialect="mlx"):
    updates = dict.fromkeys([f"{module}.weight" for module in changed])
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
    assert expected_updates(adapter(config), MODULES).modules == expected


def test_a_key_that_no_module_has_is_unknown():
    assert expected_updates(adapter(mlx(["attn.q", "attn.k"])), MODULES).unknown == ("attn.k",)


@pytest.mark.parametrize(("count", "expected"), [(None, (0, 1, 2, 3)), (2, (2, 3))])
def test_without_keys_what_is_in_one_layer_is_promised_in_all(count, expected):
    found = expected_updates(
        adapter(mlx(None, count), ["model.layers.3.attn.q", "lm_head"]), MODULES
    )
    assert found.modules == layers("attn.q", *expected)


PEFT = {
    "list": ({"target_modules": ["q"]}, layers("attn.q", 0, 1, 2, 3) | layers("extra.q", 2)),
    "regex": ({"target_modules": r".*\.1\..*"}, layers("attn.q", 1) | layers("mlp.up", 1)),
    "all": ({"target_modules": "all-linear"}, layers("attn.q", 0, 1, 2, 3)),
}


@pytest.mark.parametrize("case", PEFT)
def test_targets_name_modules_as_peft_reads_them(case):
    config, expected = PEFT[case]
    found = expected_updates(adapter(config, ["model.layers.0.attn.q"], "peft"), MODULES)
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


UNNAMED = {
    "full paths": (mlx(["model.layers.3.attn.q"]), {"model.layers.3.attn.q"}),
    "relative": (mlx(["attn.q"]), layers("attn.q", 0, 1, 2, 3)),
    "relative, in the last layers": (mlx(["attn.q"], 1), layers("attn.q", 3)),
    "of the root": (mlx(["lm_head"], 1), {"lm_head"}),
    "no keys": (mlx(), layers("attn.q", 0, 1, 2, 3) | layers("mlp.up", 0, 1, 2, 3)),
    "no keys, the last layers": (mlx(None, 2), layers("attn.q", 2, 3) | layers("mlp.up", 2, 3)),
    "mlx-vlm, within a part": (mlx(["layers.0.attn.q"]), layers("attn.q", 0)),
}
CHANGED = [m for m in MODULES if "extra" not in m]


@pytest.mark.parametrize("case", UNNAMED)
def test_updates_that_mlx_lm_would_not_load_are_known(case):
    config, named = UNNAMED[case]
    found = unnamed(adapter(config, CHANGED), MODULES)
    assert found == {f"{module}.weight" for module in CHANGED if module not in named}


class Tree(torch.nn.Module):
    """Linear layers at the paths of MODULES, and an embedding."""

    def __init__(self):
        super().__init__()
        for path in MODULES:
            *parents, leaf = path.split(".")
            at = self
            for part in parents:
                if part not in dict(at.named_children()):
                    at.add_module(part, torch.nn.Module())
                at = at.get_submodule(part)
            at.add_module(
                leaf, torch.nn.Embedding(2, 2) if leaf == "embed" else torch.nn.Linear(2, 2)
            )


SAID = [
    {"target_modules": ["q"]},
    {"target_modules": ["attn.q", "embed"], "exclude_modules": ["model.layers.1.attn.q"]},
    {"target_modules": ["q", "lm_head"], "modules_to_save": ["lm_head", "extra"]},
    {"target_modules": r".*\.[12]\.(attn|mlp)\.\w+"},
    {"target_modules": ["q", "up"], "layers_to_transform": [0, 2], "layers_pattern": "layers"},
    {"target_modules": ["q", "model.layers.3.mlp.up"], "layers_to_transform": 1},
    {"target_modules": "all-linear", "modules_to_save": ["lm_head"], "exclude_modules": r".*\.up"},
    {"target_modules": "all-linear"},
    {"target_modules": ["q"], "target_parameters": ["mlp.up.weight"]},
    {"target_parameters": ["attn.q.weight"]},
]


@pytest.mark.parametrize("said", SAID, ids=str)
def test_updates_that_peft_would_ignore_are_known(said):
    kinds = {m: "embedding" if m.endswith("embed") else "linear" for m in MODULES}
    found = unnamed(adapter(said, MODULES, "peft"), MODULES, kinds)
    tree = peft.get_peft_model(Tree(), peft.LoraConfig(**said)).base_model.model
    wrapped = {n for n, m in tree.named_modules() if isinstance(m, peft.tuners.lora.LoraLayer)}
    expected = {f"{module}.weight" for module in MODULES if module not in wrapped}
    if said == {"target_modules": "all-linear"}:  # of transformers' classes it leaves out the head
        expected.add("lm_head.weight")
    assert found == expected
    if said.get("target_modules") not in (None, "all-linear") and "target_parameters" not in said:
        oracle = peft.LoraConfig(**said)
        assert wrapped == {m for m in MODULES if check_target_module_exists(oracle, m) is True} or (
            isinstance(said["target_modules"], str)
        )


def test_where_only_peft_knows_the_targets_nothing_is_said_of_updates():
    assert unnamed(adapter({"target_modules": None}, MODULES, "peft"), MODULES) == set()


LAST = {
    "all": (layers("attn.q", 0, 1, 2, 3), (4, set())),
    "the last two": (layers("attn.q", 2, 3), (2, set())),
    "a hole": (layers("attn.q", 1, 3), (3, layers("attn.q", 2))),
    "not the last": (layers("attn.q", 0, 1), (4, layers("attn.q", 2, 3))),
    "two kinds": (layers("attn.q", 2, 3) | layers("mlp.up", 3), (2, layers("mlp.up", 2))),
    "one that few layers have": (layers("extra.q", 2), (2, set())),
}


@pytest.mark.parametrize("case", LAST)
def test_the_last_layers_are_counted_from_the_end(case):
    changed, expected = LAST[case]
    assert last_layers(changed, MODULES) == expected


def test_the_promise_counts_no_tensor_values():
    assert LowRank.__dataclass_fields__  # the updates above are None: only names are looked at
    assert expected_updates(adapter(mlx(["lm_head"]), ["lm_head"]), MODULES).modules == {"lm_head"}
