"""ONNX files as PyTorch's own exporters write them, with weights turned, tied and without names, brought back."""

import json

import onnx
import pytest
import torch
import transformers
from click.testing import CliRunner
from safetensors.numpy import load_file

from weighbridge.cli import main
from weighbridge.tests.support.coreml.models import MODELS, make

VARYING = {0: torch.export.Dim("rows", min=2, max=8), 1: torch.export.Dim("length", min=2, max=64)}
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.heavy]


class First(torch.nn.Module):
    """A model that gives its first output, without a cache."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, *arguments):
        return self.model(
            *arguments, **({"use_cache": False} if self.model.can_generate() else {})
        )[0]


def plain(family, source, file, output, *, dynamo, names=()):
    """Export FAMILY's model in SOURCE to FILE as torch.onnx.export does it, with inputs of these NAMES."""
    model = getattr(transformers, MODELS[family].model).from_pretrained(source).eval()
    names = names or ["input_ids"] + ["attention_mask"] * (not model.can_generate())
    ids = (torch.ones(2, 8, dtype=torch.int64),) * len(names)
    axes = {name: {0: "rows", 1: "length"} for name in names}
    how = {"dynamic_axes": axes, "opset_version": 17}
    how = {"dynamic_shapes": ((VARYING,),)} if dynamo else how
    called = {"input_names": names, "output_names": [output]}
    torch.onnx.export(First(model), ids, file, dynamo=dynamo, **called, **how)


@pytest.mark.parametrize(
    ("family", "output", "dynamo"),
    [("BERT", "last_hidden_state", False), ("GPT-2", "logits", True), ("Llama", "logits", True)],
)
def test_weights_come_back_exactly_from_a_file_of_pytorchs_own_exporter(
    family, output, dynamo, tmp_path
):
    source, file = make(family, tmp_path / "source"), tmp_path / "m.onnx"
    plain(family, source, file, output, dynamo=dynamo)
    words = ["convert", "onnx-to-torch", str(file), str(tmp_path / "back"), "--like", str(source)]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    found, wanted = (load_file(tmp_path / it / "model.safetensors") for it in ("back", "source"))
    assert {name.split(".")[0] for name in wanted.keys() - found.keys()} <= {"pooler"}
    assert all(found[name].tobytes() == wanted[name].tobytes() for name in found)


WITH_MASK = ["input_ids", "attention_mask", "position_ids"]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    """Return a Llama, and a file of it that takes a mask and positions, as those of optimum do."""
    folder = tmp_path_factory.mktemp("decoder")
    source, file = make("Llama", folder / "source"), folder / "m.onnx"
    plain("Llama", source, file, "logits", dynamo=False, names=WITH_MASK)
    return source, file


def test_a_decoder_that_takes_a_mask_and_positions_is_checked_with_padding(decoder):
    source, file = decoder
    result = CliRunner().invoke(main, ["parity", "check", str(source), str(file), "--json"])
    assert result.exit_code == 0, result.output
    verdict = json.loads(result.stdout)
    assert verdict["status"] == "PASS"
    assert {"left-padded", "right-padded"} <= {*verdict["provenance"]["probes"]}
    assert "position_ids: positions" in result.stdout


def test_a_decoder_that_ignores_its_mask_differs(decoder, tmp_path):
    source, file = decoder
    model = onnx.load(file)
    shape = onnx.helper.make_node("Shape", ["attention_mask"], ["ones_of"])
    one = onnx.helper.make_tensor("one", onnx.TensorProto.INT64, [1], [1])
    ones = onnx.helper.make_node("ConstantOfShape", ["ones_of"], ["ones"], value=one)
    for node in model.graph.node:
        node.input[:] = ["ones" if it == "attention_mask" else it for it in node.input]
    for node in (ones, shape):
        model.graph.node.insert(0, node)
    onnx.save(model, tmp_path / "m.onnx")
    words = ["parity", "check", str(source), str(tmp_path / "m.onnx"), "--json"]
    result = CliRunner().invoke(main, words)
    assert (result.exit_code, json.loads(result.stdout)["status"]) == (1, "DIFFERS"), result.output


def test_an_input_that_nobody_knows_is_unverified_and_named(decoder, tmp_path):
    source, file = decoder
    model = onnx.load(file)
    more = onnx.helper.make_tensor_value_info("temperature", onnx.TensorProto.FLOAT, [1])
    model.graph.input.append(more)
    onnx.save(model, tmp_path / "m.onnx")
    result = CliRunner().invoke(main, ["parity", "check", str(source), str(tmp_path / "m.onnx")])
    assert result.exit_code == 4, result.output
    assert "temperature is asked for and unknown" in " ".join(result.output.split())
