"""Tables agree with the code that they speak of: the target's own ``sanitize`` and its outputs."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from weighbridge.converters.checkpoints import open_checkpoint
from weighbridge.converters.checkpoints.base import Header
from weighbridge.converters.maps import WeightMap, apply
from weighbridge.converters.maps.binding.weightmap import TABLES
from weighbridge.converters.maps.notation.rules import Pairing
from weighbridge.converters.values import Dense
from weighbridge.errors import BadInputError, MismatchError

NAMES = sorted(path.stem for path in TABLES.glob("*.wmap"))


@pytest.fixture(scope="module")
def mlx_bert():
    """Return mlx_embeddings.models.bert, imported without the package around it."""
    spec = importlib.util.find_spec("mlx_embeddings")
    stub = types.ModuleType("mlx_embeddings")
    stub.__path__ = list(spec.submodule_search_locations)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "mlx_embeddings", stub)
        yield importlib.import_module("mlx_embeddings.models.bert")
        for name in [name for name in sys.modules if name.startswith("mlx_embeddings.")]:
            del sys.modules[name]


@pytest.fixture(scope="module")
def source(tiny_bert_dir):
    """Return the tensors and the config of a small BERT, with the buffer old ones were saved with."""
    checkpoint = open_checkpoint(Path(tiny_bert_dir))
    arrays = {name: checkpoint.read(name) for name in checkpoint.headers}
    config = json.loads((tiny_bert_dir / "config.json").read_text())
    positions = np.arange(config["max_position_embeddings"], dtype=np.int64)[None]
    return arrays | {"embeddings.position_ids": positions}, config


def headers(arrays):
    codes = {"float32": "F32", "int64": "I64"}
    return {name: Header(codes[array.dtype.name], array.shape) for name, array in arrays.items()}


def dense(arrays):
    return {name: Dense(array) for name, array in arrays.items()}


def mlx_model(mlx_bert, config):
    return mlx_bert.Model(mlx_bert.ModelArgs.from_dict(config))


def test_bert_maps_as_the_targets_own_sanitize_does(mlx_bert, source):
    import mlx.core as mx

    arrays, config = source
    plan = WeightMap.load("bert").bind(headers(arrays), config=config)
    ours = apply(plan, dense(arrays))
    given = {name: mx.array(array) for name, array in arrays.items()}
    theirs = mlx_model(mlx_bert, config).sanitize(given)
    assert plan.renames_only
    assert {name: (value.shape, value.array.tobytes()) for name, value in ours.items()} == {
        name: (array.shape, np.array(array).tobytes()) for name, array in theirs.items()
    }


def test_a_mapped_bert_loads_strictly_and_computes_the_same(mlx_bert, source, tiny_bert_dir):
    import mlx.core as mx
    import torch
    from transformers import BertModel

    arrays, config = source
    plan = WeightMap.load("bert").bind(headers(arrays), config=config)
    model = mlx_model(mlx_bert, config)
    weights = [(name, mx.array(value.array)) for name, value in apply(plan, dense(arrays)).items()]
    model.load_weights(weights, strict=True)
    model.eval()
    ids = np.random.default_rng(3).integers(5, config["vocab_size"], size=(2, 11))
    mask = np.ones((2, 11), np.int64)
    mask[1, 7:] = 0
    with torch.no_grad():
        theirs = BertModel.from_pretrained(tiny_bert_dir).eval()(
            torch.tensor(ids), attention_mask=torch.tensor(mask)
        )
    ours = model(mx.array(ids), attention_mask=mx.array(mask))
    for name in ("last_hidden_state", "pooler_output"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), atol=1e-5)


def test_bert_comes_home_bit_for_bit(source):
    arrays, config = source
    table = WeightMap.load("bert")
    there = table.bind(headers(arrays), config=config)
    home = table.inverse().bind(there.layout, config=config)
    back = apply(home, apply(there, dense(arrays)))
    kept = {name: array for name, array in arrays.items() if name != "embeddings.position_ids"}
    assert {name: value.array.tobytes() for name, value in back.items()} == {
        name: array.tobytes() for name, array in kept.items()
    }


def test_only_the_pooler_of_a_bert_may_be_missing(source):
    arrays, config = source
    table = WeightMap.load("bert")
    bare = {name: header for name, header in headers(arrays).items() if "pooler" not in name}
    assert table.bind(bare, config=config).layout.keys() == bare.keys() - {
        "embeddings.position_ids"
    }
    for name in bare.keys() - {"embeddings.position_ids"}:
        lacking = {key: header for key, header in bare.items() if key != name}
        with pytest.raises(MismatchError, match=f"{name} is missing"):
            table.bind(lacking, config=config)
    with pytest.raises(MismatchError, match=r"pooler\.dense\.weight is missing"):
        table.bind(bare | {"pooler.dense.bias": Header("F32", (24,))}, config=config)


@pytest.mark.parametrize("name", NAMES)
def test_a_table_names_both_sides_apart_and_parses_to_itself(name):
    table = WeightMap.load(name)
    assert WeightMap.parse(str(table)) == table
    assert any(isinstance(rule, Pairing) for rule in table.rules)


def test_an_unknown_table_is_refused_with_the_nearest_one(tmp_path):
    with pytest.raises(BadInputError, match="did you mean bert"):
        WeightMap.load("bret")
    (tmp_path / "my.wmap").write_text("a.{n} <-> b.{n}\n")
    assert len(WeightMap.load(tmp_path / "my.wmap").rules) == 1


TIMESERIES = """
weighbridge map 1
# A forecaster: causal convolutions, whose kernels MLX keeps channels-last, then linear heads.
where b = blocks, e = experts

blocks.{b}.conv.weight [out in width]      <-> [out width in]
blocks.{b}.down.weight [in out width]      <-> [out width in]      # ConvTranspose1d
blocks.{b}.{layer}.bias                    <-> same
heads.{e}.weight [horizon features]        <-> heads.weight [e horizon features]
heads.{e}.bias [horizon]                   <-> heads.bias [e horizon]
scale.num_batches_tracked                   -> recomputed
else {**}                                  <-> same
"""


def test_a_users_map_carries_a_forecaster_from_torch_to_mlx_and_back():
    import mlx.core as mx
    import mlx.nn as mlx_nn
    import torch

    torch.manual_seed(0)
    convolutions = torch.nn.Conv1d(3, 5, 4), torch.nn.ConvTranspose1d(5, 2, 3)
    heads = [torch.nn.Linear(14, 6) for _ in range(4)]
    modules = {"blocks.0.conv": convolutions[0], "blocks.0.down": convolutions[1]}
    modules |= {f"heads.{e}": head for e, head in enumerate(heads)} | {
        "scale": torch.nn.BatchNorm1d(3)
    }
    arrays = {
        f"{path}.{name}": tensor.numpy()
        for path, module in modules.items()
        for name, tensor in module.state_dict().items()
    }
    table = WeightMap.parse(TIMESERIES)
    plan = table.bind(headers(arrays), config={"blocks": 1, "experts": 4})
    values = {name: value.array for name, value in apply(plan, dense(arrays)).items()}

    series = np.random.default_rng(0).normal(size=(2, 3, 8)).astype(np.float32)
    with torch.no_grad():
        hidden = convolutions[1](convolutions[0](torch.tensor(series)))
        expected = torch.stack([head(hidden.flatten(1)) for head in heads], dim=1)
    ours = mlx_nn.Conv1d(3, 5, 4), mlx_nn.ConvTranspose1d(5, 2, 3)
    for module, path in zip(ours, ("blocks.0.conv", "blocks.0.down"), strict=True):
        module.load_weights([(k, mx.array(values[f"{path}.{k}"])) for k in ("weight", "bias")])
    mapped = ours[1](ours[0](mx.array(series.transpose(0, 2, 1))))
    flat = mapped.transpose(0, 2, 1).reshape(2, -1)
    outputs = mx.einsum("bf,ehf->beh", flat, mx.array(values["heads.weight"]))
    np.testing.assert_allclose(outputs + mx.array(values["heads.bias"]), expected, atol=1e-5)

    home = table.inverse().bind(plan.layout, config={"blocks": 1, "experts": 4})
    back = apply(home, dense(values))
    del arrays["scale.num_batches_tracked"]
    assert {name: value.array.tobytes() for name, value in back.items()} == {
        name: array.tobytes() for name, array in arrays.items()
    }
