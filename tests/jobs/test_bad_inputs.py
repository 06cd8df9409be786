"""A model that cannot be what it says is refused whole: one report, exit 3, nothing written.

Three directories of one model are spoiled alike: torch, MLX with our manifest, MLX without one as
another tool would leave it. `tests/test_bad_input.py` does the same for a model that has a table.
"""

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import mlx_lm
import numpy as np
import pytest
import safetensors.torch
import torch
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file

from weighbridge.cli import main
from weighbridge.tests.support.atlas import tiny

SIDES = ("torch", "mlx", "foreign")
WAY = {"torch": "torch-to-mlx", "mlx": "mlx-to-torch", "foreign": "mlx-to-torch"}
QUERY, NORM = "model.layers.1.self_attn.q_proj.weight", "model.norm.weight"
UNCHECKED = ("--check", "none")
LIST = 50  # problems that are printed; then they are counted


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    """Return a folder with the good model in three forms; do not write."""
    root = tmp_path_factory.mktemp("models")
    tiny.make("llama", root / "torch", own={"num_hidden_layers": 2})
    invoke("convert", "torch-to-mlx", root / "torch", root / "mlx", "--check", "none", code=0)
    shutil.copytree(root / "mlx", root / "foreign")
    (root / "foreign" / "weighbridge.json").unlink()
    return root


@pytest.fixture(params=SIDES)
def side(request) -> str:
    return request.param


@pytest.fixture
def model(models, side, tmp_path) -> Path:
    """Return a copy of the good model, to be spoiled."""
    return Path(shutil.copytree(models / side, tmp_path / "work" / side))


def invoke(*arguments, code=3) -> str:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output + repr(result.exception)
    return result.output


def refused(model: Path, *options: str) -> str:
    """Convert MODEL; return the one report, after a look at what lies beside it."""
    before = sorted(path for path in model.parent.rglob("*"))
    options = options or UNCHECKED
    output = invoke("convert", WAY[model.name], model, model.parent / "out", *options)
    assert "Traceback" not in output
    lines = output.splitlines()
    assert [line for line in lines if line.startswith("Error: ")] == lines[:1]
    assert sorted(path for path in model.parent.rglob("*")) == before
    return output


def weights(folder: Path):
    return load_file(folder / "model.safetensors")


def write(folder: Path, tensors, name="model.safetensors") -> None:
    form = "pt" if folder.name == "torch" else "mlx"
    save_file(tensors, folder / name, metadata={"format": form})


def settings(folder: Path, **changes) -> None:
    """Change config.json; a value of None takes the key out."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


def scatter(folder: Path, shards, index) -> None:
    """Write SHARDS, and an INDEX of which tensor lies in which."""
    (folder / "model.safetensors").unlink()
    for name, tensors in shards.items():
        write(folder, tensors, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


# What is wrong with the model type.


def test_an_unknown_type_is_named(model, side):
    settings(model, model_type="unheard_of")
    output = refused(model)
    assert "unheard_of" in output
    assert "made for llama" in output if side == "mlx" else "--trust-code" in output


@pytest.mark.parametrize("spoil", ["no file", "no type", "a folder"])
def test_a_missing_type_is_said(model, spoil):
    if spoil == "no type":
        settings(model, model_type=None)
    else:
        (model / "config.json").unlink()
    if spoil == "a folder":
        (model / "config.json").mkdir()
    output = refused(model)
    assert "model_type" in output or "no config.json" in output


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff\xfe\x00", b""])
def test_a_corrupt_config_is_named(model, content):
    (model / "config.json").write_bytes(content)
    assert str(model / "config.json") in refused(model)


# Tensors that are not what the configuration asks for.


def test_all_that_is_missing_unexpected_or_misshapen_is_in_one_report(model):
    tensors = weights(model)
    tensors["extra.weight"] = tensors[QUERY]
    tensors[QUERY] = np.ascontiguousarray(tensors[QUERY][:, :-1])
    del tensors[NORM]
    write(model, tensors)
    output = refused(model)
    assert f"{NORM} is missing" in output
    assert "extra.weight is unexpected" in output
    assert f"{QUERY}: expected [64, 48], found [64, 47]" in output


@pytest.mark.parametrize("side", ["torch"])
@pytest.mark.parametrize(
    ("wrapper", "save"), [("module.", "model.module"), ("_orig_mod.", "model._orig_mod")]
)
def test_names_of_a_wrapper_are_told_with_what_to_save(model, wrapper, save):
    right = shutil.copytree(model, model.with_name("right"))
    write(model, {f"{wrapper}{name}": array for name, array in weights(model).items()})
    checked = invoke("parity", "check", right, model)
    for output in (refused(model), checked):
        assert f"every tensor's name begins with {wrapper}" in output
        assert f"{save}.state_dict()" in output


@pytest.mark.parametrize("side", ["torch"])
def test_a_source_that_gives_nan_by_its_weights_is_told_by_them(model):
    tensors = weights(model)
    tensors[NORM] = np.full_like(tensors[NORM], np.nan)
    write(model, tensors)
    output = invoke("convert", "torch-to-mlx", model, model.with_name("out"))
    assert f"its own weights are not finite: {NORM}" in output
    assert "--inputs" not in output


def test_a_matrix_on_its_side_is_refused(model):
    tensors, name = weights(model), "model.layers.0.mlp.gate_proj.weight"
    tensors[name] = np.ascontiguousarray(tensors[name].T)
    write(model, tensors)
    assert f"{name}: expected [80, 48], found [48, 80]" in refused(model)


def test_a_file_without_tensors_is_refused(model):
    write(model, {})
    output = refused(model)
    assert "lm_head.weight" in output or "0 tensors" in output


CONTRADICTIONS = {
    "num_hidden_layers": (1, "model.layers.1.mlp.up_proj.weight is unexpected"),
    "vocab_size": (140, "lm_head.weight: expected [140, 48], found [136, 48]"),
    "num_key_value_heads": (4, "self_attn.v_proj.weight: expected [64, 48], found [32, 48]"),
}


@pytest.mark.parametrize("key", CONTRADICTIONS)
def test_a_config_that_contradicts_the_weights_is_refused(model, key):
    value, says = CONTRADICTIONS[key]
    settings(model, **{key: value})
    assert says in refused(model)


IMPOSSIBLE = {
    "num_hidden_layers": (100_000_000, "num_hidden_layers is 100000000, expected a whole number"),
    "num_attention_heads": (0, "ZeroDivision"),
    "hidden_size": ("big", "hidden_size is 'big', expected a whole number"),
}


@pytest.mark.parametrize("key", IMPOSSIBLE)
@pytest.mark.parametrize("side", ["torch", "foreign"], indirect=True)
def test_a_config_that_no_model_can_have_is_refused(model, key):
    value, says = IMPOSSIBLE[key]
    settings(model, **{key: value})
    assert says in refused(model)


@pytest.mark.parametrize("key", IMPOSSIBLE)
@pytest.mark.parametrize("side", ["mlx"], indirect=True)
def test_a_recorded_model_with_an_impossible_config_is_refused(model, key):
    settings(model, **{key: IMPOSSIBLE[key][0] if key != "num_hidden_layers" else 1000})
    says = IMPOSSIBLE[key][1] if key == "hidden_size" else "does not fit"
    assert says in refused(model)


def test_an_incomplete_mixture_is_told_by_what_is_missing(tmp_path):
    """Its class fails on the first expert that is not there; all of them are listed."""
    model = tmp_path / "work" / "torch"
    model.parent.mkdir()
    tiny.make("mixtral", model, own={"num_hidden_layers": 1})
    tensors = weights(model)
    experts = [name for name in tensors if ".experts.1." in name]
    write(model, {name: tensor for name, tensor in tensors.items() if name not in experts})
    output = refused(model)
    assert experts
    assert all(f"{name} is missing" in output for name in experts)


def test_a_layout_that_only_the_class_does_not_read_goes_there_and_back(tmp_path):
    """mlx-lm's GPT-2 alone takes nothing that transformers 5 writes: written as it reads it."""
    tiny.make("gpt2", tmp_path / "torch", own={"n_layer": 2})
    there = ("convert", "torch-to-mlx", tmp_path / "torch", tmp_path / "mlx", *UNCHECKED)
    invoke(*there, code=0)
    mlx_lm.utils.load_model(tmp_path / "mlx")  # strict
    invoke("convert", "mlx-to-torch", tmp_path / "mlx", tmp_path / "home", *UNCHECKED, code=0)
    before, after = (weights(tmp_path / name) for name in ("torch", "home"))
    assert {k: v.tobytes() for k, v in before.items()} == {k: v.tobytes() for k, v in after.items()}


@pytest.mark.parametrize("side", ["torch"], indirect=True)
def test_a_dry_run_refuses_the_same(model):
    settings(model, vocab_size=140)
    assert "expected [140, 48]" in refused(model, "--dry-run")


def test_a_long_report_ends_with_a_count(model):
    tensors = weights(model)
    more = {f"extra.{n}.weight": tensors[NORM] for n in range(LIST + 7)}
    write(model, tensors | more)
    output = refused(model)
    assert f"{LIST + 7} problems" in output or "more" in output
    assert output.count("is unexpected") <= LIST


# Files that are not what they claim.


def test_a_tensor_in_two_shards_is_refused(model):
    tensors, (a, b) = weights(model), ("model-00001-of-00002", "model-00002-of-00002")
    both = (QUERY, NORM)
    half = {name: tensors[name] for name in [*list(tensors)[:5], *both]}
    rest = {name: tensors[name] for name in [*list(tensors)[5:], *both]}
    index = {name: f"{a if name in half else b}.safetensors" for name in tensors}
    scatter(model, {f"{a}.safetensors": half, f"{b}.safetensors": rest}, index)
    output = refused(model)
    assert all(f"{name} is stored twice" in output for name in both)


def test_shards_without_an_index_are_refused(model):
    (model / "model.safetensors").rename(model / "model-00001-of-00002.safetensors")
    shutil.copy(
        model / "model-00001-of-00002.safetensors", model / "model-00002-of-00002.safetensors"
    )
    assert "no index" in refused(model)


@pytest.mark.parametrize("place", ["../secret", "{folder}/secret", "link"])
def test_an_index_that_points_outside_its_folder_is_refused(model, place):
    tensors = weights(model)
    secret = model.parent / "secret.safetensors"
    save_file({QUERY: tensors.pop(QUERY)}, secret)
    first = "model-00001-of-00002.safetensors"
    there = f"{place.format(folder=model.parent)}.safetensors"
    index = dict.fromkeys(tensors, first) | {QUERY: there}
    scatter(model, {first: tensors}, index)
    if place == "link":
        (model / "link.safetensors").symlink_to(secret)
    output = refused(model)
    assert there in output
    assert "folder" in output


@pytest.mark.parametrize("size", [0, 2, 100_000])
def test_a_truncated_file_is_named(model, size):
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    output = refused(model)
    assert f"{path}: truncated" in output
    assert "again" in output


@pytest.mark.parametrize("keep", [(), ("config.json",)])
def test_a_folder_without_weights_says_what_is_looked_for(model, keep):
    for path in model.iterdir():
        if path.name not in keep:
            path.unlink()
    assert "*.safetensors" in refused(model)


def test_a_gguf_is_refused_by_name(model):
    (model / "model.safetensors").unlink()
    (model / "model.gguf").write_bytes(b"GGUF" + bytes(100))
    output = refused(model)
    assert "GGUF (model.gguf)" in output
    assert "safetensors" in output


@pytest.mark.parametrize("config", [True, False], ids=["with config", "without config"])
def test_an_adapter_is_no_model(model, config):
    name = QUERY.removesuffix(".weight")
    pair = {f"{name}.lora_a": np.ones((48, 2), "f4"), f"{name}.lora_b": np.ones((2, 64), "f4")}
    (model / "model.safetensors").unlink()
    write(model, pair, "adapters.safetensors")
    (model / "adapter_config.json").write_text(json.dumps({"fine_tune_type": "lora"}))
    if not config:
        (model / "config.json").unlink()
    output = refused(model)
    assert "is an adapter, not a model" in output
    assert "--adapter" in output


def quantize(folder: Path) -> None:
    """Quantize a weight as mlx-lm does, in groups of 16 with 4 bits."""
    import mlx.core as mx

    tensors, stem = weights(folder), QUERY.removesuffix("weight")
    packed, scales, biases = mx.quantize(mx.array(tensors[QUERY][:, :32]), 32, 4)
    tensors |= {f"{stem}scales": np.array(scales), f"{stem}biases": np.array(biases)}
    write(folder, tensors | {QUERY: np.array(packed)})


@pytest.mark.parametrize("said", [True, False], ids=["said", "not said"])
@pytest.mark.parametrize("way", ["mlx-to-torch", "torch-to-mlx"])
def test_a_quantized_model_is_refused_by_name_with_what_to_do(model, side, said, way, monkeypatch):
    quantize(model)
    if said:
        settings(model, quantization={"group_size": 32, "bits": 4})
    monkeypatch.setitem(WAY, side, way)
    if side == "mlx" and way == "torch-to-mlx":
        return  # a manifest says what it is: answered with the right direction
    output = refused(model)
    if said and side == "foreign":  # taken for what it says it is: half of the columns are missing
        assert QUERY in output or "is already mlx" in output
        return
    assert f"is quantized (1 weight such as {QUERY}" in output
    assert ("4 bits" in output) == said
    assert ("weighbridge convert mlx-to-torch" in output) == (side != "torch")
    assert "Take the model that it was made from" in output


# What would run code.

EVIL = "from pathlib import Path\nPath('code-ran').touch()\n"


@pytest.fixture
def watched(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    assert not (tmp_path / "code-ran").exists()


@pytest.mark.usefixtures("watched")
@pytest.mark.parametrize("key", ["auto_map", "model_file"])
def test_a_config_that_asks_for_code_is_refused(model, side, key):
    (model / "evil.py").write_text(EVIL)
    value = "evil.py" if key == "model_file" else {"AutoModelForCausalLM": "evil.Evil"}
    settings(model, **{key: value, "model_type": "llama" if key == "model_file" else "evil"})
    output = refused(model)
    assert "evil" in output
    assert key in output or (side, key) == ("mlx", "auto_map")  # its type is what is wrong there


@pytest.mark.usefixtures("watched")
def test_code_that_nobody_needs_is_not_run(model):
    """Many published configs name code although every library has the class."""
    (model / "evil.py").write_text(EVIL)
    settings(model, auto_map={"AutoModelForCausalLM": "evil.Evil", "AutoConfig": "evil.Config"})
    invoke("convert", WAY[model.name], model, model.parent / "out", "--check", "none", code=0)


class Exploit:
    """Runs code when unpickled."""

    def __reduce__(self):
        return (Path.touch, (Path("code-ran"),))


def pickled(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Exploit()))


def saved(folder: Path) -> None:
    torch.save({NORM: torch.zeros(3), "exploit": Exploit()}, folder / "pytorch_model.bin")


def zipped(folder: Path) -> None:
    np.savez(folder / "weights.npz", exploit=np.array([Exploit()], dtype=object))


@pytest.mark.usefixtures("watched")
@pytest.mark.parametrize("store", [pickled, saved, zipped], ids=lambda store: store.__name__)
def test_a_pickle_that_runs_code_is_refused(model, store):
    (model / "model.safetensors").unlink()
    store(model)
    output = refused(model)
    assert "pytorch_model.bin" in output or "weights.npz" in output


# Options and the machinery around.


@pytest.mark.parametrize("side", ["mlx", "foreign"], indirect=True)
@pytest.mark.parametrize("original", ["no/such-model", "nonsense", "{folder}/empty"])
def test_an_original_that_is_none_is_refused(model, original):
    (model.parent / "empty").mkdir()
    spec = original.format(folder=model.parent)
    assert spec in refused(model, *UNCHECKED, "--original", spec)


@pytest.mark.parametrize("side", ["foreign"], indirect=True)
def test_another_models_original_is_refused_with_what_differs(model, models):
    other = Path(shutil.copytree(models / "torch", model.parent / "other"))
    tensors = weights(other)
    tensors["more.weight"] = tensors.pop(NORM)
    write(other, tensors)
    output = refused(model, *UNCHECKED, "--original", str(other))
    assert f"--original {other}" in output
    assert "more.weight" in output
    assert f"{NORM} is missing" in output


@pytest.mark.parametrize("side", ["mlx"], indirect=True)
@pytest.mark.parametrize(
    "manifest",
    ["{", '{"framework": 7}', '{"framework": "mlx", "map": "weighbridge map 1\\n nonsense"}'],
)
def test_a_damaged_manifest_is_refused(model, manifest):
    (model / "weighbridge.json").write_text(manifest)
    refused(model)


PAUSE = """
import sys, time
from weighbridge.converters.checkpoints import Writer
write = Writer.write
def slow(self, name, data):
    sys.__stdout__.write("writing\\n")  # one call a line: several threads write tensors
    sys.__stdout__.flush()
    time.sleep(0.3)
    return write(self, name, data)
Writer.write = slow
from weighbridge.cli import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize("side", ["torch"], indirect=True)
@pytest.mark.parametrize("moment", ["learning", "writing"])
def test_an_interrupted_run_leaves_nothing(model, moment):
    before = sorted(path.name for path in model.parent.iterdir())
    run = subprocess.Popen(
        [
            sys.executable,
            "-c",
            PAUSE,
            "convert",
            WAY["torch"],
            model,
            model.parent / "out",
            *UNCHECKED,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C reaches a whole group: the process that learns too
    )
    if moment == "writing":
        assert run.stdout.readline() == "writing\n"
    else:
        wait_for_child(run)
    os.killpg(run.pid, signal.SIGINT)
    _, complaints = run.communicate()
    assert run.returncode == 130, complaints
    assert "Traceback" not in complaints
    assert sorted(path.name for path in model.parent.iterdir()) == before


def wait_for_child(run) -> None:
    """Wait until RUN has started a process of its own; fail where it ends without one."""
    import psutil

    while not psutil.Process(run.pid).children():
        assert run.poll() is None, run.communicate()
        time.sleep(0.01)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float8_e4m3fn])
def test_dtypes_that_mlx_has_not_or_the_class_does_not_ask_for_are_one_error(
    models, tmp_path, dtype
):
    model = Path(shutil.copytree(models / "torch", tmp_path / "model"))
    weights = safetensors.torch.load_file(model / "model.safetensors")
    spoiled = {"model.mask" if dtype is torch.bool else NORM: torch.ones(4).to(dtype)}
    safetensors.torch.save_file(weights | spoiled, model / "model.safetensors", {"format": "pt"})
    said = invoke("convert", "torch-to-mlx", model, tmp_path / "mlx", *UNCHECKED)
    assert said.count("Error:") == 1
    assert ("save them in bfloat16 first" in said) == (dtype is not torch.bool)
    assert not (tmp_path / "mlx").exists()


def test_numbers_that_mlx_computes_with_on_the_cpu_alone_are_named(models, tmp_path):
    model = Path(shutil.copytree(models / "torch", tmp_path / "model"))
    weights = safetensors.torch.load_file(model / "model.safetensors")
    wide = {name: tensor.double() for name, tensor in weights.items()}
    safetensors.torch.save_file(wide, model / "model.safetensors", {"format": "pt"})
    said = invoke("convert", "torch-to-mlx", model, tmp_path / "mlx", *UNCHECKED, code=0)
    assert f"{len(wide)} tensors stay float64" in said
