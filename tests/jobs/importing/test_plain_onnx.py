"""ONNX files as PyTorch's own exporters write them, with weights turned, tied and without names, brought back."""

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


def plain(family, source, file, output, *, dynamo):
    """Export FAMILY's model in SOURCE to FILE as torch.onnx.export does it."""
    model = getattr(transformers, MODELS[family].model).from_pretrained(source).eval()
    names = ["input_ids"] if model.can_generate() else ["input_ids", "attention_mask"]
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
