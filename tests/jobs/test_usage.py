"""The lines of Python that ``inspect`` prints load and run what lies there, as they stand."""

from __future__ import annotations

import json
import shutil
import sys
import warnings
from pathlib import Path

import onnx
import pytest
import torch
import transformers
from click.testing import CliRunner

from tests.support import text_tokenizers
from weighbridge.cli import main
from weighbridge.tests.support.atlas import tiny

FIXTURES = Path(__file__).parents[2] / "fixtures"
LLAMA = {
    "vocab_size": 3000,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def invoke(*words):
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result.output


def lines_of(path):
    """Return what ``inspect`` prints to run PATH, as one text."""
    return "\n".join(json.loads(invoke("inspect", path, "--json"))["run it in Python"])


def printed(path, capsys):
    """Run what ``inspect`` prints of PATH; return what that prints."""
    lines = lines_of(path)
    capsys.readouterr()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries that are used
        exec(compile(lines, str(path), "exec"), {"__name__": "usage"})
    out = capsys.readouterr().out
    assert out
    return out


def saved(folder, config, tokenizer=None):
    """Write a random model of CONFIG to FOLDER, and what TOKENIZER writes beside it."""
    torch.manual_seed(0)
    folder.mkdir()
    if tokenizer:
        tokenizer(folder)
    config.save_pretrained(folder)
    name = config.architectures[0]
    getattr(transformers, name)(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A folder with a Llama, a T5 and a BERT for PyTorch, and each for MLX."""
    root = tmp_path_factory.mktemp("usage")
    llama = transformers.LlamaConfig(**LLAMA, architectures=["LlamaForCausalLM"])
    small = {"vocab_size": 60, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1}
    t5 = transformers.T5Config(
        **small, num_heads=2, architectures=["T5ForConditionalGeneration"], decoder_start_token_id=0
    )
    saved(root / "llama", llama, text_tokenizers.byte_level)
    saved(root / "bare", llama)
    saved(root / "t5", t5)
    settings = root / "t5" / "generation_config.json"
    settings.write_text('{"decoder_start_token_id": 0, "eos_token_id": 1}')
    for name in ("llama", "bare", "t5"):
        invoke("convert", "torch-to-mlx", root / name, root / f"{name}-mlx", "--check", "none")
    return root


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("llama", "logits"),
        ("t5", "logits"),
        ("llama-mlx", ""),
        ("bare-mlx", "array"),
        ("t5-mlx", "array"),
    ],
)
def test_a_directory_is_run(models, name, what, capsys):
    assert what in printed(models / name, capsys)


def test_an_encoder_is_run_by_mlx_embeddings_with_a_tokenizer_and_by_its_class_without(
    tiny_bert_dir, tmp_path, capsys
):
    invoke("convert", "torch-to-mlx", tiny_bert_dir, tmp_path / "mlx", "--check", "none")
    assert "mlx_embeddings" in lines_of(tmp_path / "mlx")
    assert "array" in printed(tmp_path / "mlx", capsys)
    bare = shutil.ignore_patterns("tokenizer*", "vocab*")
    shutil.copytree(tmp_path / "mlx", tmp_path / "bare", ignore=bare)
    assert "mlx_embeddings" not in lines_of(tmp_path / "bare")
    assert "array" in printed(tmp_path / "bare", capsys)


@pytest.mark.heavy
def test_a_mended_encoder_is_run_by_the_lines_that_name_its_class(tmp_path, capsys):
    sizes = {**LLAMA, "num_key_value_heads": LLAMA["num_attention_heads"], "head_dim": 8}
    config = transformers.Qwen3Config(**sizes, architectures=["Qwen3Model"])
    saved(tmp_path / "hub", config, text_tokenizers.byte_level)
    words = ("convert", "torch-to-mlx", tmp_path / "hub", tmp_path / "mlx", "--check", "none")
    invoke(*words, "--library", "mlx-embeddings", "--repair")
    assert "model_mlx_embeddings.py" in lines_of(tmp_path / "mlx")
    assert "array" in printed(tmp_path / "mlx", capsys)


@pytest.mark.parametrize("base", ["llama", "bare"])
def test_adapters_are_run_on_their_base(models, tmp_path, base, capsys):
    import peft

    plain = transformers.AutoModelForCausalLM.from_pretrained(models / base)
    peft.get_peft_model(
        plain, peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    ).save_pretrained(tmp_path / "peft")
    invoke("convert", "peft-to-mlx", tmp_path / "peft", tmp_path / "mlx", "--base", models / base)
    assert "logits" in printed(tmp_path / "peft", capsys)
    assert ("adapter_path=" in lines_of(tmp_path / "mlx")) == (base == "llama")
    printed(tmp_path / "mlx", capsys)


def test_a_head_that_no_class_has_gets_no_lines_that_fail(tmp_path):
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    named = ["BertForSequenceClassification"]
    config = transformers.BertConfig(
        **small, intermediate_size=24, vocab_size=60, architectures=named
    )
    saved(tmp_path / "torch", config, text_tokenizers.byte_level)
    invoke("convert", "torch-to-mlx", tmp_path / "torch", tmp_path / "mlx", "--check", "none")
    assert "run it in Python" not in json.loads(invoke("inspect", tmp_path / "mlx", "--json"))


@pytest.mark.heavy
def test_an_adapter_of_an_encoder_has_no_lines_of_mlx_lm_which_cannot_read_its_base(
    tiny_bert_dir, tmp_path
):
    import peft

    plain = transformers.AutoModel.from_pretrained(tiny_bert_dir)
    peft.get_peft_model(
        plain, peft.LoraConfig(r=2, target_modules=["query"], init_lora_weights=False)
    ).save_pretrained(tmp_path / "peft")
    words = ("convert", "peft-to-mlx", tmp_path / "peft", tmp_path / "mlx")
    invoke(*words, "--base", tiny_bert_dir)
    assert "peft.PeftModel" in lines_of(tmp_path / "peft")
    assert "mlx_lm" not in lines_of(tmp_path / "mlx")


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["onnx", "coreai"])
def test_files_of_other_runtimes_are_run(models, tmp_path, kind, capsys):
    if kind == "coreai":
        pytest.importorskip("coreai", reason="Core AI has no package for this machine")
    file = tmp_path / f"model.{'aimodel' if kind == 'coreai' else kind}"
    invoke("export", kind, models / "bare", file, "--check", "none")
    assert "[" in printed(file, capsys)


@pytest.mark.heavy
def test_a_folder_with_an_onnx_file_is_run_and_says_what_it_was_made_of(models, tmp_path, capsys):
    invoke("export", "onnx", models / "bare", tmp_path / "m", "--external-data", "--check", "none")
    assert "[" in printed(tmp_path / "m", capsys)
    assert f"parity check {models / 'bare'} {tmp_path / 'm'}" in invoke("inspect", tmp_path / "m")
    proto = onnx.load(tmp_path / "m" / "model.onnx", load_external_data=False)
    sizes = [it.dim_param for it in proto.graph.input[0].type.tensor_type.shape.dim]
    assert sizes == ["batch", "sequence"]


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["onnx", "mlpackage", "aimodel"])
def test_a_file_says_what_it_was_made_of_and_its_own_dtypes(models, tmp_path, kind):
    if kind == "aimodel":
        pytest.importorskip("coreai", reason="Core AI has no package for this machine")
    verb = {"mlpackage": "coreml", "aimodel": "coreai"}.get(kind, kind)
    file = tmp_path / f"m.{kind}"
    invoke("export", verb, models / "bare", file, "--check", "none")
    facts = json.loads(invoke("inspect", file, "--json"))
    assert f"weighbridge parity check {models / 'bare'} {file}" in facts["you can now run"]
    width = "int64" if kind == "onnx" else "int32"
    assert f"input_ids: {width} [" in str(facts["inputs"])


@pytest.mark.heavy
def test_a_core_ml_package_is_run_on_a_mac_by_its_own_inputs(models, tmp_path, capsys):
    file = tmp_path / "model.mlpackage"
    invoke("export", "coreml", models / "bare", file, "--check", "none")
    lines = lines_of(file)
    compile(lines, "lines", "exec")
    assert "'input_ids': np.ones(" in lines
    if sys.platform == "darwin":
        assert "logits" in printed(file, capsys)


def test_a_gguf_file_is_run_by_transformers(tmp_path, capsys):
    from tests.converters.gguf.models import like_file, module, saved

    sizes = {"context_length": 32, "embedding_length": 64, "feed_forward_length": 96}

    def extra(writer):
        for name, size in sizes.items():
            writer.add_uint32(f"llama.{name}", size)
        writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-6)
        writer.add_uint32("llama.rope.dimension_count", 8)

    hub = saved(module("llama"), tmp_path / "hub")
    like_file(tmp_path / "model.gguf", "llama", hub, "F32", extra)
    assert "a GGUF file" in invoke("inspect", tmp_path / "model.gguf")
    printed(tmp_path / "model.gguf", capsys)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("kind", "repaired", "what"),
    [
        ("dinov2", [], "array"),
        ("rt_detr_v2", ["--repair"], "pred_boxes"),
        ("sam3", ["--repair"], "pred_masks"),
    ],
)
def test_classes_of_mlx_vlm_that_take_pictures_alone_are_run(
    tmp_path, kind, repaired, what, capsys
):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tiny.make(kind, tmp_path / "hub", library="mlx-vlm")
    (tmp_path / "hub" / "preprocessor_config.json").write_text("{}")
    words = ("convert", "torch-to-mlx", tmp_path / "hub", tmp_path / "mlx", "--check", "none")
    invoke(*words, *repaired)
    assert what in printed(tmp_path / "mlx", capsys)


OWN_CLASSES = ("clip", "convnext", "resnet", "vit", "wav2vec2", "whisper")


@pytest.mark.heavy
@pytest.mark.parametrize("family", OWN_CLASSES)
def test_families_that_no_library_has_are_run_in_both_frameworks(tmp_path, family, capsys):
    source = FIXTURES / family / "model"
    assert "tensor" in printed(source, capsys)
    invoke("convert", "torch-to-mlx", source, tmp_path / "mlx", "--check", "none")
    assert "weighbridge.mlx_model" in lines_of(tmp_path / "mlx")
    assert "array" in printed(tmp_path / "mlx", capsys)


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["llama", "bare"])
def test_a_quantized_directory_is_run(models, tmp_path, name, capsys):
    invoke("quantize", models / f"{name}-mlx", tmp_path / "q", "--bits", "4", "--group-size", "32")
    printed(tmp_path / "q", capsys)


@pytest.mark.heavy
def test_a_repaired_directory_is_run_by_mlx_lm_trusting_its_file(tmp_path, capsys):
    config = transformers.Gemma2Config(**LLAMA, sliding_window=16, head_dim=8)
    config.architectures = ["Gemma2ForCausalLM"]
    saved(tmp_path / "hub", config, text_tokenizers.byte_level)
    words = ("convert", "torch-to-mlx", tmp_path / "hub", tmp_path / "mlx", "--check", "none")
    invoke(*words, "--repair")
    assert "trust_remote_code=True" in lines_of(tmp_path / "mlx")
    printed(tmp_path / "mlx", capsys)
