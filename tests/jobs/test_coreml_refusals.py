"""What is no source, or cannot become one, for Core ML: refused in a line or two, by the command line."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from weighbridge.cli import main
from weighbridge.converters.captures.mlprogram.messages import Model_pb2

OLD = "old format"
PACKAGE = "is a Core ML package"


@pytest.fixture
def place(tmp_path):
    """Return a folder with a model of the old format, and the folder of a package."""
    model = Model_pb2.Model(specificationVersion=1)
    model.neuralNetwork.SetInParent()
    (tmp_path / "old.mlmodel").write_bytes(model.SerializeToString())
    (tmp_path / "m.mlpackage").mkdir()
    return tmp_path


def refusal(*words):
    """Run the command line, which refuses; return its lines."""
    result = CliRunner().invoke(main, [*map(str, words)])
    assert result.exit_code == 3
    return [line for line in result.stderr.splitlines() if line.strip()]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("inspect", "old.mlmodel"), OLD),
        (("parity", "check", "bert", "old.mlmodel"), OLD),
        (("convert", "coreml-to-torch", "old.mlmodel", "x", "--like", "bert"), OLD),
        (("convert", "torch-to-mlx", "m.mlpackage", "x"), PACKAGE),
        (("quantize", "m.mlpackage", "x"), PACKAGE),
        (("export", "coreml", "m.mlpackage", "x.mlpackage"), PACKAGE),
        (("parity", "record", "m.mlpackage", "x"), PACKAGE),
    ],
)
def test_what_core_mls_tools_wrote_is_no_source(words, reason, place, tiny_bert_dir):
    names = {"bert": tiny_bert_dir}
    given = [names.get(it, place / it if "." in it or it == "x" else it) for it in words]
    lines = refusal(*given)
    assert reason in lines[-1]
    assert len(lines) <= 3
    assert sorted(it.name for it in place.iterdir()) == ["m.mlpackage", "old.mlmodel"]


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore")
def test_experts_that_cannot_be_recorded_are_refused_without_their_graph(tmp_path):
    import torch
    import transformers

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 31}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_local_experts": 2}
    config = transformers.MixtralConfig(**sizes, **heads, max_position_embeddings=32)
    transformers.MixtralForCausalLM(config).save_pretrained(tmp_path / "moe")
    result = CliRunner().invoke(
        main, ["export", "coreml", str(tmp_path / "moe"), str(tmp_path / "m.mlpackage")]
    )
    if result.exit_code:
        assert result.exit_code == 3
        assert len(result.stderr.splitlines()) <= 3, result.stderr
