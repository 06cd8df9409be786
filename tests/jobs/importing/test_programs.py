"""Core ML packages and ONNX files brought back: the weights that went in come out."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file

import weighbridge
from weighbridge.cli import main
from weighbridge.converters.coreml.export import export_coreml
from weighbridge.converters.coreml.options import PackageOptions
from weighbridge.converters.models.manifests import MANIFEST
from weighbridge.converters.runtimes.torch import build
from weighbridge.tests.support.coreml import modules
from weighbridge.tests.support.coreml.families import source as family
from weighbridge.tests.support.coreml.records import without_record
from weighbridge.tests.support.shallow import FIXTURES, shallow

POOLER = {"pooler.dense.weight", "pooler.dense.bias"}
SUFFIX = {"coreml": ".mlpackage", "onnx": ".onnx"}


def invoke(*arguments, code=0) -> str:
    result = CliRunner().invoke(main, [str(it) for it in arguments])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with the configurations of two models, without their weights; those in ``whole``."""
    folder = tmp_path_factory.mktemp("programs")
    for name in ("bert", "gemma3_text"):
        (folder / name).mkdir()
        shutil.copy(shallow(name, folder / "whole") / "config.json", folder / name)
    return folder


@pytest.fixture(scope="module")
def exported(folder):
    """Return a function that exports a model, each once."""

    def export(name, form, *options):
        path = folder / f"{name}-{'-'.join(options).strip('-')}{SUFFIX[form]}"
        if not path.exists():
            source = folder / "whole" / name
            invoke("export", form, source, path, "--check", "none", *options)
        return path

    return export


def weights(folder, name):
    return load_file(folder / "whole" / name / "model.safetensors")


@pytest.mark.parametrize(
    ("form", "options"), [("onnx", ()), ("coreml", ("--precision", "float32"))]
)
def test_float32_weights_come_back_bit_for_bit(exported, folder, tmp_path, form, options):
    source = exported("bert", form, *options)
    document = json.loads(
        invoke(
            *("convert", f"{form}-to-torch", source, tmp_path / "back"),
            *("--like", folder / "bert", "--json"),
        )
    )
    assert document["verdict"]["status"] == {"onnx": "PASS", "coreml": "PASS-REFERENCE"}[form]
    assert "21 proven" in document["plan"][0]
    found, wanted = load_file(tmp_path / "back" / "model.safetensors"), weights(folder, "bert")
    assert wanted.keys() - found.keys() == POOLER
    for name, array in found.items():
        assert array.tobytes() == wanted[name].tobytes()


def test_a_checkpoint_may_have_a_table_of_positions_that_its_class_computes(
    exported, folder, tmp_path
):
    """As those that older versions of transformers wrote do."""
    like = tmp_path / "like"
    shutil.copytree(folder / "whole" / "bert", like)
    own = {**weights(folder, "bert"), "embeddings.position_ids": np.arange(64)[None]}
    save_file(own, like / "model.safetensors", metadata={"format": "pt"})
    back = ("convert", "onnx-to-torch", exported("bert", "onnx"), tmp_path / "back")
    assert "PASS" in invoke(*back, "--like", like)
    found = load_file(tmp_path / "back" / "model.safetensors")
    assert found.keys() == own.keys() - {"embeddings.position_ids"} - POOLER


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("long_lstm", False),
        pytest.param("long_lstm", True, marks=pytest.mark.heavy),
        pytest.param("long_gru", False, marks=pytest.mark.heavy),
    ],
)
def test_recurrent_layers_of_any_length_come_back_from_core_ml(name, whole, tmp_path):
    """Of an LSTM's two biases a package has the sum: the class alone does not tell them apart."""
    module, _ = getattr(modules, name)()
    code = ("--trust-code", f"{modules.__name__}:{name}")
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    package, state = tmp_path / "m.mlpackage", module.state_dict()
    wanted = {key: it.numpy() for key, it in state.items() if it.is_floating_point()}
    ways = ("--precision", "float32", "--check", "none")
    invoke("export", "coreml", code[1], package, *ways)
    if whole:
        save_file(wanted, tmp_path / "model/model.safetensors", metadata={"format": "pt"})
    output = invoke(
        *("convert", "coreml-to-torch", package, tmp_path / "back"),
        *("--like", tmp_path / "model", *code),
    )
    assert "PASS-REFERENCE" in output
    found = load_file(tmp_path / "back/model.safetensors")
    assert found.keys() == wanted.keys()
    summed = {it for it in wanted if "bias_ih" in it or "bias_hh" in it}
    lost = summed if name == "long_lstm" and not whole else set()
    assert ("which computes the same: layer.bias_ih_l0 + layer.bias_hh_l0" in output) == bool(lost)
    assert all(found[it].tobytes() == wanted[it].tobytes() for it in wanted.keys() - lost)


@pytest.mark.heavy
@pytest.mark.parametrize("whole", [False, True])
def test_a_normed_weight_and_joined_biases_of_zeros_come_back_from_core_ml(whole, tmp_path):
    """Of a direction and its norms a package has the product, of zeros one constant for all."""
    module, _ = modules.pooled()
    code = ("--trust-code", f"{modules.__name__}:pooled")
    package, model = tmp_path / "m.mlpackage", tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    wanted = {key: it.numpy() for key, it in module.state_dict().items()}
    invoke("export", "coreml", code[1], package, "--precision", "float32", "--check", "none")
    if whole:
        save_file(wanted, model / "model.safetensors", metadata={"format": "pt"})
    words = ("convert", "coreml-to-torch", package, tmp_path / "back", "--like", model, *code)
    output = invoke(*words)
    assert "PASS-REFERENCE" in output
    found = load_file(tmp_path / "back/model.safetensors")
    pair = [f"layer.parametrizations.weight.original{it}" for it in (1, 0)]
    assert found.keys() == wanted.keys()
    assert (f"computes the same, to the bit: {pair[0]} with {pair[1]}" in output) != whole
    lost = set() if whole else {*pair}
    assert all(found[it].tobytes() == wanted[it].tobytes() for it in wanted.keys() - lost)
    product = module.double().layer.weight.detach().float().numpy()
    assert whole or found[pair[0]].tobytes() == product.tobytes()


@pytest.mark.parametrize("name", ["vit", pytest.param("Mixtral", marks=pytest.mark.heavy)])
def test_weights_that_the_class_calls_otherwise_than_its_checkpoint_come_back(name, tmp_path):
    source = shallow(name, tmp_path) if name == "vit" else family(name, tmp_path)
    like = tmp_path / "like"
    like.mkdir()
    shutil.copy(Path(source) / "config.json", like)
    invoke("export", "onnx", source, tmp_path / "m.onnx", "--check", "none")
    invoke("convert", "onnx-to-torch", tmp_path / "m.onnx", tmp_path / "back", "--like", like)
    found = load_file(tmp_path / "back/model.safetensors")
    wanted = load_file(Path(source) / "model.safetensors")
    assert found.keys() <= wanted.keys()
    assert {key.partition(".")[0] for key in wanted.keys() - found.keys()} <= {"pooler"}
    assert all(found[key].tobytes() == wanted[key].tobytes() for key in found)


@pytest.mark.heavy
def test_codes_of_experts_come_back_as_they_were(tmp_path):
    """The class of transformers has the experts of a layer in one tensor, gate and up joined."""
    from weighbridge.tests.converters.gguf.models import module, saved

    saved(module("qwen3_moe"), tmp_path / "dense")
    words = ("--bits", "4", "--group-size", "32", "--check", "none")
    invoke("quantize", tmp_path / "dense", tmp_path / "q4", *words)
    document = json.loads(invoke("export", "onnx", tmp_path / "q4", tmp_path / "m.onnx", "--json"))
    assert document["facts"]["codes"]["dense"] == {}
    words = ("--like", tmp_path / "dense", "--check", "none")
    invoke("convert", "onnx-to-mlx", tmp_path / "m.onnx", tmp_path / "back", *words)
    was, now = (load_file(tmp_path / it / "model.safetensors") for it in ("q4", "back"))
    assert was.keys() == now.keys()
    assert all(was[key].tobytes() == now[key].tobytes() for key in was)


@pytest.mark.heavy
def test_codes_come_back_though_the_class_calls_weights_otherwise(tmp_path):
    import torch
    from transformers import ViTConfig, ViTModel

    sizes = {"hidden_size": 32, "intermediate_size": 64, "image_size": 8, "patch_size": 4}
    layers = {"num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    ViTModel(ViTConfig(**sizes, **layers)).save_pretrained(tmp_path / "dense")
    words = ("--bits", "4", "--group-size", "32", "--check", "none")
    invoke("quantize", tmp_path / "dense", tmp_path / "q4", *words)
    invoke("export", "onnx", tmp_path / "q4", tmp_path / "m.onnx", "--check", "none")
    words = ("--like", tmp_path / "q4", "--check", "none")
    invoke("convert", "onnx-to-mlx", tmp_path / "m.onnx", tmp_path / "back", *words)
    was, now = (load_file(tmp_path / it / "model.safetensors") for it in ("q4", "back"))
    assert {name.split(".")[0] for name in was.keys() - now.keys()} <= {"pooler"}
    assert sum(name.endswith("scales") for name in now) == 6
    assert all(was[key].tobytes() == now[key].tobytes() for key in now)
    words = (*words, "--dequantize", "fp32")
    invoke("convert", "onnx-to-torch", tmp_path / "m.onnx", tmp_path / "torch", *words)
    assert "quantization" not in (tmp_path / "torch" / "config.json").read_text()


def with_record(source, target, change):
    """Copy the ONNX file SOURCE with CHANGE done to its graph and record."""
    proto = onnx.load(source)
    stored = next(it for it in proto.metadata_props if it.key == MANIFEST)
    record = json.loads(stored.value)
    change(proto.graph, record)
    stored.value = json.dumps(record)
    onnx.save(proto, target)
    return target


QUERY = "encoder.layer.0.attention.self.query.weight"


def lose(graph, record):
    """Put the query's weight where nobody looks for it: in a constant that the record does not name."""
    del record["weights"][QUERY]
    tensor = next(it for it in graph.initializer if it.name == QUERY)
    tensor.name = "folded"
    for node in graph.node:
        node.input[:] = ["folded" if name == QUERY else name for name in node.input]


def make(graph, record):
    """Let the record say that the query's weight went into a sum, which hides it."""
    lose(graph, record)
    record["made"]["folded"] = {"value": ["add", {"key": QUERY}, {"key": "no.weight"}]}


def stranger(_, record):
    """Let the record name what no model of this kind has."""
    record["weights"][QUERY] = {**record["weights"][QUERY], "key": "decoder.weight"}
    record["weights"][QUERY].pop("also", None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lose, f"{QUERY} is not in the file, whose outputs need it"),
        (make, f"{QUERY} went into folded, from which it cannot be computed back"),
        (stranger, "decoder.weight is in the file, and no tensor of the model"),
    ],
)
def test_a_weight_that_the_outputs_need_and_the_file_lost_is_an_error(
    exported, folder, tmp_path, change, message
):
    file = with_record(exported("bert", "onnx"), tmp_path / "m.onnx", change)
    words = ("--like", folder / "bert", "--check", "none")
    output = invoke("convert", "onnx-to-torch", file, tmp_path / "back", *words, code=3)
    assert message in " ".join(output.split())
    assert not (tmp_path / "back").exists()


def test_a_record_that_does_not_know_what_outputs_need_is_not_taken_to_know_it(
    exported, folder, tmp_path
):
    """As files of earlier versions."""
    file = with_record(
        exported("bert", "onnx"), tmp_path / "m.onnx", lambda _, record: record.pop("unread")
    )
    words = ("--like", folder / "bert", "--check", "none")
    output = invoke("convert", "onnx-to-torch", file, tmp_path / "back", *words)
    assert "not in the file, which does not say why: pooler.dense.bias" in output


@pytest.mark.heavy
@pytest.mark.parametrize("known", [True, False], ids=["record", "none"])
@pytest.mark.parametrize("form", ["onnx", "coreml"])
def test_a_parameter_that_no_output_needs_is_named_and_the_rest_comes_back(form, known, tmp_path):
    """A directory does not say what this type takes: the file does."""
    module, _ = modules.dinov2()
    module.save_pretrained(tmp_path / "dinov2")
    file, like = tmp_path / f"m{SUFFIX[form]}", tmp_path / "like"
    like.mkdir()
    shutil.copy(tmp_path / "dinov2/config.json", like)
    options = ("--precision", "float32") if form == "coreml" else ()
    source = f"{modules.__name__}:dinov2"
    invoke("export", form, source, file, "--check", "none", *options)
    if not known:
        without_record(file)
    words = ("--like", like)
    output = invoke("convert", f"{form}-to-torch", file, tmp_path / "back", *words)
    assert "outputs do not need them: embeddings.mask_token" in output
    found, wanted = (
        load_file(tmp_path / name / "model.safetensors") for name in ("back", "dinov2")
    )
    assert not found.pop("embeddings.mask_token").any()
    assert found.keys() == wanted.keys() - {"embeddings.mask_token"}
    assert all(found[name].tobytes() == wanted[name].tobytes() for name in found)
    assert "PASS" in invoke("convert", f"{form}-to-mlx", file, tmp_path / "mlx", *words)


def test_a_head_that_the_outputs_do_not_need_is_left_out_though_its_bias_equals_another(
    folder, tmp_path
):
    model, file = tmp_path / "bert", tmp_path / "bert.onnx"
    shutil.copytree(folder / "whole" / "bert", model)
    zeros = weights(folder, "bert")
    zeros |= {name: np.zeros_like(it) for name, it in zeros.items() if name.endswith("bias")}
    save_file(zeros, model / "model.safetensors", metadata={"format": "pt"})
    invoke("export", "onnx", model, file, "--check", "none")
    output = invoke("convert", "onnx-to-torch", file, tmp_path / "back", "--like", model)
    assert "do not need them: pooler.dense.bias, pooler.dense.weight" in output
    found = load_file(tmp_path / "back" / "model.safetensors")
    assert zeros.keys() - found.keys() == {"pooler.dense.weight", "pooler.dense.bias"}


@pytest.mark.parametrize("precision", [pytest.param("float32", marks=pytest.mark.heavy), "mixed"])
def test_weights_of_norms_that_add_one_come_back_as_they_were(
    exported, folder, tmp_path, precision
):
    """Gemma's norms multiply by 1 + w: several w round to the same sum, so the package holds w itself."""
    source = exported("gemma3_text", "coreml", "--precision", precision)
    like = ("--like", folder / "gemma3_text")
    assert "PASS" in invoke("convert", "coreml-to-torch", source, tmp_path / "b", *like)
    found = load_file(tmp_path / "b" / "model.safetensors")
    for name, array in weights(folder, "gemma3_text").items():
        kept = precision == "float32" or "norm" in name  # which stay in float32
        wanted = array if kept else array.astype(np.float16).astype(found[name].dtype)
        assert found[name].tobytes() == wanted.tobytes(), name


@pytest.mark.parametrize("plain", [False, pytest.param(True, marks=pytest.mark.heavy)])
def test_what_an_exporter_folded_is_computed_back(folder, tmp_path, plain):
    """In packages of others, and in ours until it was kept apart, 1 + w is one constant."""
    model = weighbridge.open(str(folder / "whole" / "gemma3_text"))
    module, _ = build(model, "float32")
    options, source = PackageOptions(folded=True), tmp_path / "m.mlpackage"
    export_coreml(module, model.signature, source, compute="float32", options=options)
    if plain:
        without_record(source)
    like = ("--like", folder / "gemma3_text")
    output = invoke("convert", "coreml-to-torch", source, tmp_path / "back", *like)
    assert "7 computed back" in output
    found = load_file(tmp_path / "back" / "model.safetensors")
    wanted = weights(folder, "gemma3_text")
    assert found.keys() == wanted.keys()
    for name, array in found.items():
        assert np.array_equal(1 + array, 1 + wanted[name]), name
        assert np.abs(array - wanted[name]).max() <= np.finfo(np.float32).eps


def test_a_package_in_half_precision_comes_back_rounded_once(exported, folder, tmp_path):
    source = exported("bert", "coreml", "--precision", "mixed")
    invoke("convert", "coreml-to-torch", source, tmp_path / "back", "--like", folder / "bert")
    for name, array in load_file(tmp_path / "back" / "model.safetensors").items():
        assert np.array_equal(
            array, weights(folder, "bert")[name].astype(np.float16).astype(array.dtype)
        )


def test_a_file_goes_on_to_mlx(exported, folder, tmp_path):
    output = invoke(
        *("convert", "onnx-to-mlx", exported("bert", "onnx"), tmp_path / "mlx"),
        *("--like", folder / "bert"),
    )
    assert "PASS" in output
    assert (tmp_path / "mlx" / "model.safetensors").is_file()


def as_of_others(source, target):
    """Copy the ONNX file SOURCE as somebody else's: no record, other names."""
    proto = onnx.load(source)
    kept = [it for it in proto.metadata_props if it.key != MANIFEST]
    del proto.metadata_props[:]
    proto.metadata_props.extend(kept)
    names = {
        it.name: f"wrapper_{it.name.replace('.', '_')}_to_fp16" for it in proto.graph.initializer
    }
    for tensor in proto.graph.initializer:
        tensor.name = names[tensor.name]
    for node in proto.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    onnx.save(proto, target)
    return target


def test_without_a_record_weights_are_found_by_their_names(exported, folder, tmp_path):
    """And a head that a checkpoint may lack need not be there."""
    source = as_of_others(exported("bert", "onnx"), tmp_path / "plain.onnx")
    output = invoke(
        "convert", "onnx-to-torch", source, tmp_path / "back", "--like", folder / "bert"
    )
    assert "21 by name" in output
    assert "which does not say why: pooler.dense.bias, pooler.dense.weight" in output
    found = load_file(tmp_path / "back" / "model.safetensors")
    assert len(found) == 21
    assert all(np.array_equal(found[name], weights(folder, "bert")[name]) for name in found)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gpt2", ("--precision", "float32")),
        ("gpt2", ("--precision", "mixed")),
        ("clip", ("--precision", "float32")),
    ],
)
def test_without_a_record_and_names_weights_are_found_by_the_places_they_stand_in(
    exported, folder, tmp_path, name, options
):
    package, whole = tmp_path / "m.mlpackage", folder / "whole" / name
    if not whole.exists():
        shutil.copytree(FIXTURES / name / "model", whole)
    without_record(Path(shutil.copytree(exported(name, "coreml", *options), package)))
    like = tmp_path / "like"
    like.mkdir()
    shutil.copy(whole / "config.json", like)
    words = ("convert", "coreml-to-torch", package, tmp_path / "back", "--like", like)
    output = invoke(*words)
    assert "by the graph" in output
    assert "every constant of the file is the same, bit for bit" in output
    assert "PASS-REFERENCE" in output
    require_rounded(load_file(tmp_path / "back" / "model.safetensors"), weights(folder, name))


@pytest.mark.heavy
@pytest.mark.parametrize("precision", ["float32", "mixed"])
def test_without_a_record_a_module_with_another_attention_than_ours_comes_back(tmp_path, precision):
    """What transformers builds by itself attends in one operation of torch, our exports in several."""
    module, _ = modules.siglip()
    assert module.config._attn_implementation == "sdpa"
    module.config.save_pretrained(tmp_path / "like")
    package = tmp_path / "m.mlpackage"
    words = ("--precision", precision, "--check", "none")
    invoke("export", "coreml", f"{modules.__name__}:siglip", package, *words)
    like = ("--like", tmp_path / "like", "--check", "none")
    output = invoke(
        *("convert", "coreml-to-torch", without_record(package), tmp_path / "back"), *like
    )
    assert "every constant of the file is the same, bit for bit" in output
    wanted = {name: it.numpy() for name, it in module.state_dict().items()}
    require_rounded(load_file(tmp_path / "back" / "model.safetensors"), wanted)


def test_a_family_without_a_class_in_mlx_is_refused_in_one_line_that_says_how_to_go_on(tmp_path):
    module, _ = modules.segformer()
    module.config.save_pretrained(tmp_path / "like")
    file = tmp_path / "m.onnx"
    invoke("export", "onnx", f"{modules.__name__}:segformer", file, "--check", "none")
    words = ("convert", "onnx-to-mlx", file, tmp_path / "mlx", "--like", tmp_path / "like")
    output = invoke(*words, "--check", "none", code=3)
    (line,) = [it for it in output.splitlines() if it.startswith("Error")]
    assert "model_type segformer" in line
    assert "--map FILE.wmap" in line
    assert "weighbridge.capture" in line
    assert not (tmp_path / "mlx").exists()


def require_rounded(found, wanted):
    """Require that what was FOUND is what was WANTED, rounded to float16 once where it is in float16."""
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert found[name].tobytes() == array.astype(found[name].dtype).tobytes(), name


@pytest.mark.heavy
def test_a_package_of_other_operations_than_the_models_is_refused_where_it_is_checked(
    exported, folder, tmp_path
):
    package, whole = tmp_path / "m.mlpackage", folder / "whole" / "gpt2"
    if not whole.exists():
        shutil.copytree(FIXTURES / "gpt2" / "model", whole)
    form = ("gpt2", "coreml", "--precision", "float32")
    without_record(Path(shutil.copytree(exported(*form), package)))
    config = json.loads((whole / "config.json").read_text())
    (tmp_path / "like").mkdir()
    (tmp_path / "like/config.json").write_text(
        json.dumps({**config, "activation_function": "relu"})
    )
    words = ("convert", "coreml-to-torch", package, tmp_path / "back")
    output = invoke(*words, "--like", tmp_path / "like", code=3)
    assert "does not compute what the model does with its weights" in output
    assert not (tmp_path / "back").exists()
    unchecked = invoke(*words, "--like", tmp_path / "like", "--check", "none")
    assert "UNVERIFIED" in unchecked  # its constants are read in the same order


def test_without_a_run_of_the_file_the_result_is_unverified(
    exported, folder, tmp_path, monkeypatch
):
    import importlib

    programs = importlib.import_module("weighbridge.jobs.importing.programs")
    compared = programs.compared
    monkeypatch.setattr(
        programs, "compared", lambda *given: replace(compared(*given), status="UNVERIFIED")
    )
    invoke(
        *("convert", "onnx-to-torch", exported("bert", "onnx"), tmp_path / "back"),
        *("--like", folder / "bert"),
        code=4,
    )


def test_a_weight_that_was_changed_in_the_file_is_not_called_proven(exported, folder, tmp_path):
    proto = onnx.load(exported("bert", "onnx"))
    tensor = next(it for it in proto.graph.initializer if it.name.endswith("query.weight"))
    array = onnx.numpy_helper.to_array(tensor) + np.float32(0.5)
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    onnx.save(proto, tmp_path / "tuned.onnx")
    output = invoke(
        *("convert", "onnx-to-torch", tmp_path / "tuned.onnx", tmp_path / "back"),
        *("--like", folder / "bert", "--check", "none"),
    )
    assert "20 proven, 1 changed since the export" in output
    found = load_file(tmp_path / "back" / "model.safetensors")
    assert np.array_equal(found[tensor.name], array)


def test_a_file_whose_graph_is_not_the_models_is_refused(exported, folder, tmp_path):
    proto = onnx.load(exported("bert", "onnx"))
    node = next(node for node in proto.graph.node if node.op_type == "Softmax")
    node.op_type = "Sigmoid"
    del node.attribute[:]
    onnx.save(proto, tmp_path / "other.onnx")
    output = invoke(
        *("convert", "onnx-to-torch", tmp_path / "other.onnx", tmp_path / "back"),
        *("--like", folder / "bert"),
        code=3,
    )
    assert "does not compute what the model does with its weights" in output
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize(
    ("source", "like", "message"),
    [
        ("{file}", "gemma3_text", "does not hold the weights of this model"),
        ("{folder}/bert", "bert", "is no Core ML package"),
        ("{folder}/nothing.onnx", "bert", "no such file"),
        ("{file}", "nowhere", "no config.json"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    exported, folder, tmp_path, source, like, message
):
    source = source.format(file=exported("bert", "onnx"), folder=folder)
    words = ("convert", "onnx-to-torch", source, tmp_path / "a", "--like", folder / like)
    output = invoke(*words, code=3)
    assert message in output
    assert "Traceback" not in output
    assert [*tmp_path.iterdir()] == []
