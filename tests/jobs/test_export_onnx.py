"""``weighbridge export onnx``: checked by value in onnxruntime, from a shell."""

from __future__ import annotations

import json
import shutil

import numpy as np
import onnx
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from weighbridge.cli import main
from weighbridge.converters.checkpoints.formats import onnx_codes
from weighbridge.converters.checkpoints.formats.onnx_model import OnnxFile
from weighbridge.tests.support.coreml.families import NAMES
from weighbridge.tests.support.coreml.families import source as family
from weighbridge.tests.support.shallow import shallow


def invoke(*arguments, code=0) -> str:
    result = CliRunner().invoke(main, [str(it) for it in arguments])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Return the source and the file that the verb made of it."""
    from pathlib import Path

    source = Path(__file__).parents[2] / "fixtures" / "llama" / "model"
    target = tmp_path_factory.mktemp("onnx") / "llama.onnx"
    document = json.loads(invoke("export", "onnx", source, target, "--json"))
    return source, target, document


def test_a_language_model_passes_its_check(exported):
    _, target, document = exported
    assert document["verdict"]["status"] == "PASS"
    assert target.is_file()
    assert target.with_name("llama.onnx.weighbridge.json").is_file()


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    """Return a source, a folder with its file in float16, and what the verb said of it."""
    folder = tmp_path_factory.mktemp("half")
    source, target = shallow("llama", folder / "source"), folder / "llama"
    words = ("--external-data", "--precision", "fp16", "--json")
    return source, target, json.loads(invoke("export", "onnx", source, target, *words))


def test_a_folder_in_float16_passes_both_parts_of_its_check(half):
    source, target, document = half
    stages = {it["name"]: it["status"] for it in document["verdict"]["stages"]}
    assert document["verdict"]["status"] == "PASS"
    assert stages["structure"] == stages["precision"] == "pass"
    assert {it.name for it in target.iterdir()} == {
        *("model.onnx", "model.onnx.data", "weighbridge.json")
    }
    facts = json.loads(invoke("inspect", target, "--json"))
    assert (facts["is"], facts["dtypes"]["F16"]) == ("an ONNX file", 12)
    again = json.loads(invoke("parity", "check", source, target, "--json"))
    assert again["status"] == "PASS"


def test_what_overflows_in_float16_and_is_widened_by_this_runtime_alone_is_not_said_to_pass(
    tmp_path,
):
    source, target = "weighbridge.tests.support.coreml.modules:loud", tmp_path / "m.onnx"
    words = ("export", "onnx", source, target, "--precision", "fp16", "--json")
    verdict = json.loads(invoke(*words, code=4))["verdict"]
    (stage,) = (it for it in verdict["stages"] if it["name"] == "precision")
    assert (verdict["status"], stage["status"]) == ("UNVERIFIED", "unverified")
    assert "(Mul) holds numbers up to 4." in stage["detail"]
    assert "which are infinite in float16 and change y" in stage["detail"]


@pytest.mark.heavy
def test_masks_that_are_infinite_in_float16_change_nothing_and_pass(tmp_path):
    words = ("export", "onnx", family("BERT", tmp_path), tmp_path / "m.onnx", "--precision", "fp16")
    assert json.loads(invoke(*words, "--json"))["verdict"]["status"] == "PASS"


def test_a_folder_leads_back_and_is_replaced_whole(half, tmp_path):
    target = shutil.copytree(half[1], tmp_path / "llama")
    words = ("--like", half[0], "--json")
    document = json.loads(invoke("convert", "onnx-to-torch", target, tmp_path / "back", *words))
    assert document["verdict"]["status"] == "PASS"
    assert document["plan"][0] == "12 tensors found: 12 rounded"
    words = ("--external-data", "--check", "none")
    assert "give --force" in invoke("export", "onnx", half[0], target, *words, code=3)
    invoke("export", "onnx", half[0], target, *words, "--force")
    assert "F32" in json.loads(invoke("inspect", target, "--json"))["dtypes"]
    (target / "notes.txt").write_text("mine")
    output = invoke("export", "onnx", half[0], target, *words, "--force", code=3)
    assert "notes.txt" in output


def test_missing_and_cut_data_beside_the_graph_is_one_line(half, tmp_path):
    target = shutil.copytree(half[1], tmp_path / "llama")
    data = target / "model.onnx.data"
    data.write_bytes(data.read_bytes()[:100])
    for _ in range(2):
        output = invoke("parity", "check", half[0], target, code=3)
        assert len([it for it in output.splitlines() if it.startswith("Error:")]) == 1
        data.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def coded(tmp_path_factory):
    """Return a folder with a model in bfloat16, the same one in 4 bits, and the file made of that."""
    from weighbridge.tests.converters.gguf.models import module, saved

    folder = tmp_path_factory.mktemp("coded")
    saved(module("llama").to(torch.bfloat16), folder / "dense")
    words = ("--bits", "4", "--group-size", "32", "--check", "none")
    invoke("quantize", folder / "dense", folder / "q4", *words)
    document = json.loads(invoke("export", "onnx", folder / "q4", folder / "q4.onnx", "--json"))
    return folder, document


def test_codes_of_a_quantized_source_are_kept_and_every_weight_is_the_same(coded):
    folder, document = coded
    assert document["verdict"]["status"] == "PASS"
    kept = document["facts"]["codes"]
    assert (len(kept["codes"]), kept["dense"]) == (16, {})
    file = onnx.load(folder / "q4.onnx")
    assert sum(node.op_type == "DequantizeLinear" for node in file.graph.node) == 16
    stages = {it["name"]: it for it in document["verdict"]["stages"]}
    assert stages["fingerprints"]["figures"]["kinds"]["equal"] == 16


@pytest.mark.parametrize("how", [(), ("--precision", "fp16")])
def test_codes_come_back_as_the_words_and_scales_that_they_were(coded, tmp_path, how):
    folder, _ = coded
    file = folder / "q4.onnx"
    if how:
        file = tmp_path / "other.onnx"
        invoke("export", "onnx", folder / "q4", file, *how, "--check", "none")
    words = ("--like", folder / "dense", "--check", "none")
    invoke("convert", "onnx-to-mlx", file, tmp_path / "back", *words)
    was, now = (load_file(it / "model.safetensors") for it in (folder / "q4", tmp_path / "back"))
    assert was.keys() == now.keys()
    parts = [name for name in was if was[name].dtype == torch.uint32 or "scales" in name]
    assert len(parts) == 32
    parts += [name.replace("scales", "biases") for name in parts if "scales" in name]
    assert all(torch.equal(was[name], now[name]) for name in parts)
    assert {was[name].dtype for name in parts} == {now[name].dtype for name in parts}


def test_codes_that_the_graph_reads_no_longer_do_not_come_back(coded, tmp_path):
    folder, _ = coded
    name = "model.layers.1.mlp.up_proj.weight"

    def shifted(graph):
        (node,) = (it for it in graph.node if f"{name}/biases" in it.input)
        own = next(it for it in graph.initializer if it.name == node.input[1])
        node.input[1] = "elsewhere"
        other = onnx.numpy_helper.to_array(own) * 2
        graph.initializer.append(onnx.numpy_helper.from_array(other, "elsewhere"))

    file = changed(folder / "q4.onnx", tmp_path / "other.onnx", shifted)
    words = ("--like", folder / "dense", "--check", "none")
    invoke("convert", "onnx-to-mlx", file, tmp_path / "back", *words)
    found = load_file(tmp_path / "back" / "model.safetensors")[name]
    np.testing.assert_allclose(found.float().numpy(), OnnxFile(file).read(name), rtol=2**-8)


def test_weights_on_codes_are_read_alike_in_pieces_and_whole(coded, monkeypatch):
    file = OnnxFile(coded[0] / "q4.onnx")
    names = [it for it in file.headers if "_proj.weight" in it or "embed" in it]
    whole = {name: file.read(name) for name in names}
    monkeypatch.setattr(onnx_codes, "AT_ONCE", 200)  # three rows of 64
    assert all(np.array_equal(file.read(name), whole[name]) for name in names)
    made = file._made["model.embed_tokens.weight"]
    assert made._by_rows({name: file.part(name) for name in made.parts})


def test_codes_can_come_back_dense(coded, tmp_path):
    folder, _ = coded
    words = ("--like", folder / "dense", "--dequantize", "bf16", "--json")
    output = invoke("convert", "onnx-to-torch", folder / "q4.onnx", tmp_path / "back", *words)
    assert json.loads(output)["verdict"]["status"] == "PASS"
    assert torch.bfloat16 in {
        it.dtype for it in load_file(tmp_path / "back/model.safetensors").values()
    }


def test_a_code_that_is_one_off_is_found(coded, tmp_path):
    folder, _ = coded

    def other(graph):
        tensor = next(it for it in graph.initializer if it.name.endswith("up_proj.weight/codes"))
        tensor.raw_data = bytes([tensor.raw_data[0] ^ 1]) + tensor.raw_data[1:]

    file = changed(folder / "q4.onnx", tmp_path / "o.onnx", other)
    output = invoke("parity", "check", folder / "q4", file, "--json", code=1)
    assert "up_proj" in output


@pytest.mark.heavy
@pytest.mark.parametrize("bits", [4, 8])
def test_products_with_codes_pass_their_check_and_a_code_that_is_one_off_is_found(
    coded, tmp_path, bits
):
    source, file = coded[0] / "q4", tmp_path / "m.onnx"
    if bits == 8:
        source, words = tmp_path / "q8", ("--bits", "8", "--group-size", "32", "--check", "none")
        invoke("quantize", coded[0] / "dense", source, *words)
    invoke("export", "onnx", source, file, "--quant-format", "QOperator")
    operators = json.loads(invoke("inspect", file, "--json"))["operators"]
    assert (operators["MatMulNBits"], operators["DequantizeLinear"]) == (15, 1)
    words = ("--like", coded[0] / "dense")
    invoke("convert", "onnx-to-mlx", file, tmp_path / "back", *words)
    was, now = (load_file(it / "model.safetensors") for it in (source, tmp_path / "back"))
    assert was.keys() == now.keys()
    assert all(torch.equal(was[name], now[name]) for name in was if was[name].dim() > 1)

    def other(graph):
        tensor = next(it for it in graph.initializer if it.name.endswith(f"up_proj.weight_Q{bits}"))
        tensor.raw_data = bytes([tensor.raw_data[0] ^ 1]) + tensor.raw_data[1:]

    changed(file, file, other)
    assert "up_proj" in invoke("parity", "check", source, file, "--json", code=1)


def quantized_by_onnxruntime(path, target):
    """Fold the transposed weights of PATH, and let onnxruntime quantize them to 4 bits."""
    from onnxruntime.quantization import matmul_nbits_quantizer as own

    proto = onnx.load(path)
    del proto.metadata_props[:]  # a file of somebody else's
    known = {it.name: it for it in proto.graph.initializer}
    for node in [it for it in proto.graph.node if it.op_type == "Transpose"]:
        name = node.input[0]
        readers = [it for it in proto.graph.node if name in it.input]
        if name in known and len(readers) == 1:
            array = onnx.numpy_helper.to_array(known[name]).T.copy()
            known[name].CopyFrom(onnx.numpy_helper.from_array(array, name))
            for reader in (it for it in proto.graph.node if node.output[0] in it.input):
                reader.input[:] = [name if it == node.output[0] else it for it in reader.input]
            proto.graph.node.remove(node)
    job = own.MatMulNBitsQuantizer(proto, bits=4, block_size=32, is_symmetric=False)
    job.process()
    job.model.save_model_to_file(str(target))
    return target


@pytest.mark.heavy
def test_weights_that_onnxruntime_quantized_come_back_and_pass_their_check(exported, tmp_path):
    source, path, _ = exported
    file = quantized_by_onnxruntime(path, tmp_path / "q4.onnx")
    operators = json.loads(invoke("inspect", file, "--json"))["operators"]
    assert operators["MatMulNBits"] == 15
    words = ("--like", source, "--json")
    output = invoke("convert", "onnx-to-torch", file, tmp_path / "back", *words)
    assert json.loads(output)["verdict"]["status"] == "PASS"
    found = load_file(tmp_path / "back" / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    assert np.array_equal(found[name].numpy(), OnnxFile(file).read(name))
    again = json.loads(invoke("parity", "check", tmp_path / "back", file, "--json"))
    assert again["status"] == "PASS"
    invoke("parity", "check", source, file, code=1)


def test_codes_need_operators_that_know_blocks(coded, tmp_path):
    output = invoke("export", "onnx", coded[0] / "q4", tmp_path / "a.onnx", "--opset", "20", code=3)
    assert "--opset 20 has no blocks of codes" in output
    assert [*tmp_path.iterdir()] == []


def changed(path, target, change):
    proto = onnx.load(path)
    change(proto.graph)
    onnx.save(proto, target)
    return target


def off_by_a_tenth(graph):
    tensor = next(it for it in graph.initializer if it.name.endswith("layers.1.mlp.up_proj.weight"))
    array = onnx.numpy_helper.to_array(tensor).copy()
    array[2, 3] += 0.1
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))


def other_activation(graph):
    node = next(node for node in graph.node if node.op_type in ("Sigmoid", "Swish"))
    node.op_type = "Tanh"


@pytest.mark.parametrize(
    ("change", "named"),
    [(off_by_a_tenth, "layers.1.mlp.up_proj"), (other_activation, "layers.0.mlp")],
)
def test_a_changed_file_differs_and_the_place_is_named(exported, tmp_path, change, named):
    source, target, _ = exported
    other = changed(target, tmp_path / "other.onnx", change)
    output = invoke("parity", "check", source, other, "--json", code=1)
    assert json.loads(output)["status"] == "DIFFERS"
    assert named in output


def test_inspect_shows_operators_and_weights(exported):
    facts = json.loads(invoke("inspect", exported[1], "--json"))
    assert facts["is"] == "an ONNX file"
    assert facts["operators"]["MatMul"] > 0
    assert "model.embed_tokens.weight" in facts["headers"]


def test_a_dry_run_writes_nothing(exported, tmp_path):
    output = invoke("export", "onnx", exported[0], tmp_path / "a.onnx", "--dry-run")
    assert "opset 20" in output
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("export", "onnx", "{source}", "{folder}/a.bin"), "is named *.onnx"),
        (
            ("export", "onnx", "{file}", "{folder}/a.onnx"),
            "bring its weights back first: weighbridge convert",
        ),
        (("export", "onnx", "{source}", "{folder}/a.onnx", "--external-data"), "leave .onnx out"),
        (
            ("convert", "mlx-to-torch", "{file}", "{folder}/a"),
            "or weighbridge convert onnx-to-torch",
        ),
        (("export", "onnx", "{source}", "{folder}/a.onnx", "--upper", "b=3"), "no dimension b"),
        (
            ("export", "onnx", "{source}", "{folder}/a.onnx", "--quant-format", "QDQ"),
            "is not quantized; quantize it first: weighbridge quantize",
        ),
        (
            (
                *("export", "onnx", "{source}", "{folder}/a.onnx"),
                *("--quant-format", "QOperator", "--precision", "fp16"),
            ),
            "QOperator is written with --precision fp32 alone",
        ),
        (
            ("export", "onnx", "{source}", "{folder}/a.onnx", "--upper", "sequence=99999"),
            "no input of such a size: sequence=99999",
        ),
        (("parity", "check", "{file}", "{file}"), "which can be checked and is no source"),
        (("parity", "record", "{file}", "{folder}/a"), "which can be checked and is no source"),
        (("inspect", "{folder}/cut.onnx"), "cannot be read as an ONNX model"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(exported, tmp_path, words, message):
    (tmp_path / "cut.onnx").write_bytes(exported[1].read_bytes()[:300])
    names = {"source": exported[0], "file": exported[1], "folder": tmp_path}
    output = invoke(*(word.format(**names) for word in words), code=3)
    line = [it for it in output.splitlines() if it.startswith("Error:")]
    assert len(line) == 1
    assert message in output
    assert [path.name for path in tmp_path.iterdir()] == ["cut.onnx"]


def test_a_random_permutation_of_a_weights_rows_is_found(exported, tmp_path):
    source, target, _ = exported

    def turned(graph):
        tensor = next(it for it in graph.initializer if it.name == "model.embed_tokens.weight")
        array = onnx.numpy_helper.to_array(tensor)
        rows = np.roll(np.arange(len(array)), 1)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array[rows].copy(), tensor.name))

    output = invoke("parity", "check", source, changed(target, tmp_path / "o.onnx", turned), code=1)
    assert "embed_tokens" in output


@pytest.mark.heavy
@pytest.mark.parametrize("name", NAMES)
def test_every_family_passes_in_onnxruntime(name, tmp_path):
    output = invoke("export", "onnx", family(name, tmp_path), tmp_path / "m.onnx", "--json")
    assert json.loads(output)["verdict"]["status"] == "PASS"
