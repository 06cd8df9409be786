"""A class confirms the layout without the table: right tables pass, faults in a table are caught."""

from __future__ import annotations

import json
import shutil

import mlx.core as mx
import numpy as np
import pytest
from click.testing import CliRunner

import weighbridge
from weighbridge import jobs
from weighbridge.cli import main
from weighbridge.converters.common.policy import Policy
from weighbridge.converters.maps.binding import weightmap
from weighbridge.converters.planning.opening import open as open_model
from weighbridge.errors import UnsupportedError
from weighbridge.fixtures import HERE
from weighbridge.parity.check.candidate import Candidate
from weighbridge.parity.check.check import Check
from weighbridge.parity.goldens.golden import Golden

from .conftest import make

HEAVY = ((), pytest.mark.heavy)
FAMILIES = ["clip", "convnext", "resnet", "t5", "vit", "wav2vec2", "whisper"]


def layout_of(golden, mlx):
    """Run the class on the directory MLX, and judge it against what was recorded of the source."""
    ran = Candidate(open_model(mlx), "mlx", Policy())
    [stage] = Check(Golden.load(golden), ran, {}, (True, "the class")).layout_stages()
    return stage


def run(*arguments):
    result = CliRunner().invoke(main, [*map(str, arguments), "--json"])
    return result.exit_code, json.loads(result.stdout)


def stages(verdict):
    return {stage["name"]: stage for stage in verdict["stages"]}


@pytest.mark.parametrize("family", [pytest.param(it, marks=HEAVY[it != "t5"]) for it in FAMILIES])
def test_a_conversion_at_defaults_passes(family, tmp_path):
    code, answer = run("convert", "torch-to-mlx", HERE / family / "model", tmp_path / "mlx")
    assert (code, answer["verdict"]["status"]) == (0, "PASS")
    assert "mlx_classes" in stages(answer["verdict"])["layout"]["detail"]


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["SiglipVisionModel", "SwinForImageClassification"])
def test_a_conversion_of_other_families_with_a_class_passes_too(name, tmp_path):
    make(name, tmp_path / "torch")
    code, answer = run("convert", "torch-to-mlx", tmp_path / "torch", tmp_path / "mlx")
    assert (code, answer["verdict"]["status"]) == (0, "PASS")
    assert "mlx_classes" in stages(answer["verdict"])["layout"]["detail"]


@pytest.mark.heavy
@pytest.mark.parametrize("family", FAMILIES)
def test_a_check_of_what_was_converted_passes(family, tmp_path):
    options = jobs.Options(check="none")
    jobs.convert(str(HERE / family / "model"), tmp_path / "mlx", "mlx", options=options)
    code, verdict = run("parity", "check", HERE / family / "model", tmp_path / "mlx")
    assert (code, verdict["status"]) == (0, "PASS")


PART = "encoder.stages.{stage}.layers.{layer}.layer.{part}.normalization"


def swapped(path, one, other, axes):
    """Return the rules of a table that take ONE parameter of PATH for the OTHER."""
    pairs = ((one, other), (other, one))
    return "\n".join(f"{path}.{a} {axes} <-> {path}.{b} {axes}" for a, b in pairs)


# What is planted: the table, its text, what stands there instead, and the case that shows it.
FAULTS = {
    "queries and keys": ("t5", [("query_proj", "@"), ("key_proj", "query_proj"), ("@", "key_proj")]),
    "both norms of a layer": ("whisper", [(".attn_ln.", "@"), (".mlp_ln.", ".attn_ln."), ("@", ".mlp_ln.")]),
    "a kernel's rows and columns": ("clip", [("[image height width colours]", "[image width height colours]")]),
    "a kernel of one channel": ("convnext", [("[channels rows columns 1]", "[channels columns rows 1]")]),
    "the channels of a kernel": ("whisper", [("[hidden width inner]", "[inner width hidden]")]),
    "a norm's scale and bias": ("vit", [
        ("layernorm.{p} [hidden]                                                       <-> same",
         swapped("layernorm", "weight", "bias", "[hidden]")),
    ]),
    "means and variances": ("resnet", [
        (f"{PART}.running_{{r}} [out]   <-> same",
         swapped(PART, "running_mean", "running_var", "[out]")),
    ]),
    "values and keys": ("wav2vec2", [
        ("attention.k_proj.weight [heads hidden]             <-> same",
         "attention.k_proj.weight [heads hidden] <-> encoder.layers.{n}.attention.v_proj.weight [heads hidden]"),
        ("attention.v_proj.weight [heads hidden]             <-> same",
         "attention.v_proj.weight [heads hidden] <-> encoder.layers.{n}.attention.k_proj.weight [heads hidden]"),
    ]),
    "a bias that is dropped": ("convnext", [
        ("layers.{layer}.dwconv.bias [channels]                      <-> same",
         "layers.{layer}.dwconv.bias -> original"),
    ]),
}  # fmt: skip


@pytest.fixture
def faulty(tmp_path, monkeypatch):
    """Return a function that puts a fault into a table, for this test alone."""
    tables = tmp_path / "tables"
    shutil.copytree(weightmap.TABLES, tables)
    monkeypatch.setattr(weightmap, "TABLES", tables)

    def plant(name, changes):
        path = tables / f"{name}.wmap"
        text = path.read_text()
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        path.write_text(text)

    return plant


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_table_is_caught_by_the_class_alone(fault, faulty, tmp_path):
    family, changes = FAULTS[fault]
    faulty(family, changes)
    options = jobs.Options(check="none")
    jobs.convert(str(HERE / family / "model"), tmp_path / "mlx", "mlx", options=options)
    assert layout_of(HERE / family / "golden", tmp_path / "mlx").status == "fail"


def test_a_right_table_is_confirmed_from_a_recording(tmp_path):
    options = jobs.Options(check="none")
    jobs.convert(str(HERE / "resnet" / "model"), tmp_path / "mlx", "mlx", options=options)
    assert layout_of(HERE / "resnet" / "golden", tmp_path / "mlx").status == "pass"


def test_a_conversion_by_a_faulty_table_differs(faulty, tmp_path):
    faulty(*FAULTS["queries and keys"])
    code, answer = run("convert", "torch-to-mlx", HERE / "t5" / "model", tmp_path / "mlx")
    assert (code, answer["verdict"]["status"]) == (1, "DIFFERS")
    failed = {stage["name"] for stage in answer["verdict"]["stages"] if stage["status"] == "fail"}
    assert failed == {"layout"}


def test_what_a_class_does_not_support_is_named_and_stays_unverified(tmp_path):
    source = tmp_path / "source"
    shutil.copytree(HERE / "vit" / "model", source)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"hidden_act": "mish"}))
    code, answer = run("convert", "torch-to-mlx", source, tmp_path / "mlx")
    assert (code, answer["verdict"]["status"]) == (4, "UNVERIFIED")
    assert "activation 'mish'" in stages(answer["verdict"])["layout"]["detail"]


def test_inspect_names_the_class(tmp_path):
    assert run("inspect", HERE / "t5" / "model")[1]["runs in MLX by"].endswith("mlx_classes.t5")


def test_a_user_gets_a_model_that_runs(directories):
    model = weighbridge.mlx_model(directories("T5ForConditionalGeneration")[1])
    ids, decoded = mx.array([[5, 9, 3, 1]]), mx.array([[0]])
    memory = model.encode(ids)
    for _ in range(3):  # greedy
        logits = model.logits(model.decode(decoded, memory))[:, -1:]
        decoded = mx.concatenate([decoded, logits.argmax(-1).astype(decoded.dtype)], axis=1)
    whole = model(ids, decoder_input_ids=decoded)["logits"]
    assert np.array_equal(np.array(whole[:, :-1].argmax(-1)), np.array(decoded[:, 1:]))


def test_a_torch_directory_is_no_model_in_mlx(directories):
    with pytest.raises(UnsupportedError, match="Convert it with weighbridge convert torch-to-mlx"):
        weighbridge.mlx_model(directories("T5ForConditionalGeneration")[0])


def test_the_way_home_is_confirmed_by_the_class_too(directories, tmp_path):
    mlx = directories("ResNetForImageClassification")[1]
    outcome = jobs.convert(str(mlx), tmp_path / "home", "torch")
    assert outcome.status == "PASS"
    assert "mlx_classes.resnet" in outcome.verdict.stage("layout").detail
