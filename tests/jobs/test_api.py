"""The public functions: few, lazy, documented, and every example in a docstring runs."""

from __future__ import annotations

import inspect
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import mlx.core
import mlx.core as mx
import mlx.nn
import numpy
import pytest
import torch

import weighbridge
from weighbridge.errors import BadInputError, UnsupportedError, WeighbridgeError
from weighbridge.fixtures import unpack
from weighbridge.jobs.options import Options

VERBS = {"open", "convert", "convert_adapter", "merge", "check", "record", "train", "export"}
VERBS |= {"inspect", "capture", "assert_parity", "mlx_model"}
HEAVY = {"train", "export", "convert"}
SHOWN = [name for name in VERBS if "Example::" in (getattr(weighbridge, name).__doc__ or "")]
EXAMPLES = [
    pytest.param(name, marks=[pytest.mark.heavy] if name in HEAVY else []) for name in sorted(SHOWN)
]


@pytest.fixture
def here(tmp_path, tiny_bert_dir, monkeypatch):
    """Enter a folder with a model, its golden, an adapter, and pairs for an encoder."""
    unpack(tmp_path)
    (tmp_path / "bert-adapter").rename(tmp_path / "adapter")
    shutil.copytree(tiny_bert_dir, tmp_path / "encoder")
    lines = [f'{{"query": "the first of {n}", "document": "only {n} made"}}' for n in range(40)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_as_written(name, here):
    code = getattr(weighbridge, name).__doc__.partition("Example::")[2]
    names = {"weighbridge": weighbridge, "torch": torch, "numpy": numpy, "mlx": mlx, "mx": mlx.core}
    exec(compile(textwrap.dedent(code), name, "exec"), names)


def test_every_verb_but_those_with_objects_shows_an_example():
    assert VERBS - set(SHOWN) == {"open", "assert_parity"}


@pytest.mark.parametrize("name", sorted(VERBS))
def test_a_function_says_what_it_takes_and_raises(name):
    function = getattr(weighbridge, name)
    text = inspect.getdoc(function)
    assert "Raises:" in text
    named = [it.name for it in inspect.signature(function).parameters.values()]
    assert [it for it in named if it not in text and it.upper() not in text] == []


def test_every_error_is_public_and_one_of_ours():
    errors = {name for name in weighbridge.__all__ if name.endswith("Error")}
    theirs = {cls.__name__ for cls in WeighbridgeError.__subclasses__()}
    assert theirs <= errors
    assert all(issubclass(getattr(weighbridge, name), WeighbridgeError) for name in errors)


def test_an_unknown_name_is_no_attribute():
    with pytest.raises(AttributeError, match="has no attribute 'weigh'"):
        _ = weighbridge.weigh


def test_the_functions_import_no_framework_until_they_are_called():
    code = "import sys, weighbridge as w; [getattr(w, n) for n in {names}];"
    code += "print([m for m in ('torch', 'mlx', 'transformers') if m in sys.modules])"
    names = sorted(VERBS - {"assert_parity"})
    command = [sys.executable, "-c", code.format(names=names)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_target_that_no_exporter_knows_is_refused(tmp_path):
    with pytest.raises(
        BadInputError, match=r"name it \*.mlpackage, \*.onnx or \*.aimodel, or \*.gguf with like="
    ):
        weighbridge.export("bert", tmp_path / "bert.bin")


def test_a_capture_goes_to_a_framework_that_there_is():
    with pytest.raises(UnsupportedError, match="the targets are 'mlx' and 'torch'"):
        weighbridge.capture(torch.nn.Linear(2, 2), inputs={}, to="jax")


def test_a_capture_computes_what_the_module_does():
    module, inputs = torch.nn.Linear(3, 2), {"input": numpy.ones((4, 3), "f4")}
    model = weighbridge.capture(module, inputs=inputs)
    weighbridge.assert_parity(module, model, inputs)
    assert model(input=mx.array(inputs["input"])).shape == (4, 2)


BAD = {
    "check": "maybe",
    "sidecar": "huge",
    "dequantize": "int3",
    "max_shard_size": -5,
}


@pytest.mark.parametrize("name", BAD)
def test_a_value_that_an_option_does_not_have_is_refused(name, here):
    with pytest.raises(BadInputError, match=f"{name} .*{BAD[name]}"):
        weighbridge.convert("bert", "bert-mlx", to="mlx", **{name: BAD[name]})
    assert not (here / "bert-mlx").exists()


OTHER_KINDS = {
    "accept": "all",
    "force": "no",
    "dry_run": 1,
    "repair": "yes",
    "map": 3,
    "report": "loudly",
    "max_shard_size": True,
}


@pytest.mark.parametrize("name", OTHER_KINDS)
def test_a_value_of_another_kind_is_refused(name):
    with pytest.raises(BadInputError, match=f"{name} cannot be {OTHER_KINDS[name]!r}; give "):
        Options(**{name: OTHER_KINDS[name]})


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: weighbridge.merge("bert", "adapter", "new", promote="no"),
            "promote cannot be 'no'",
        ),
        (
            lambda: weighbridge.merge("bert", "adapter", "new", trained_on=3),
            "trained_on cannot be 3",
        ),
        (
            lambda: weighbridge.convert(None, "new", to="mlx"),
            "source cannot be None; give a text or a path",
        ),
        (
            lambda: weighbridge.check(torch.nn.Sequential(torch.nn.ReLU()), "new"),
            "reference cannot be an object of type Sequential; give a text or a path",
        ),
        (
            lambda: weighbridge.convert("bert", "new", to="mlx", dequantise="bf16"),
            "there is no option dequantise; did you mean dequantize",
        ),
        (
            lambda: weighbridge.export("bert", "new.onnx", everything=True),
            "there is no option everything; options are .*check",
        ),
        (
            lambda: weighbridge.convert_adapter("adapter", "new", to="mlx", base=7),
            "base cannot be 7; give a text",
        ),
        (
            lambda: weighbridge.quantize("bert", "new", rules="q=6"),
            "rules cannot be 'q=6'; give a list",
        ),
        (lambda: weighbridge.quantize("bert", "new", bits="4"), "bits cannot be '4'; give a whole"),
        (lambda: weighbridge.check("bert", "bert", quick="full"), "quick cannot be 'full'"),
        (
            lambda: weighbridge.export("bert", "new.onnx", upper=[3]),
            r"upper cannot be \[3\]; give a map",
        ),
        (lambda: weighbridge.export("bert", "new.onnx", opset="20"), "opset cannot be '20'"),
        (lambda: weighbridge.train("new", "minilm-lora", resume="no"), "resume cannot be 'no'"),
        (lambda: weighbridge.train("new", "minilm-lora", settings=["a=1"]), "settings cannot be"),
    ],
)
def test_an_argument_of_another_kind_is_refused(call, words, here):
    with pytest.raises(BadInputError, match=words):
        call()
    assert not list(here.glob("new*"))


def test_paths_and_texts_stand_for_each_other():
    options = Options(inputs="given.npz", original=Path("bert"))
    assert (options.inputs, options.original) == (Path("given.npz"), "bert")


def test_no_bits_are_not_the_usual_ones(here):
    with pytest.raises(UnsupportedError, match="0-bit"):
        weighbridge.quantize("bert", "less", bits=0)


def test_an_unknown_dialect_or_precision_is_refused(here):
    with pytest.raises(BadInputError, match="choose from mlx, peft"):
        weighbridge.convert_adapter("adapter", "other", to="gguf", base="bert")
    with pytest.raises(BadInputError, match="choose from float32, float16, bfloat16"):
        weighbridge.check("bert", "bert", compute="float8")
