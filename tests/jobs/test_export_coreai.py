"""``weighbridge export coreai``: checked by value in Core AI's own runtime, from a shell."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from weighbridge.cli import main
from weighbridge.converters import coreai_export
from weighbridge.converters.checkpoints.formats.coreai import process
from weighbridge.converters.checkpoints.formats.coreai.asset import Asset
from weighbridge.tests.support.coreml.assets import exchanged, with_weights

pytest.importorskip("coreai", reason="Core AI has no package for this machine")
LLAMA = Path(__file__).parents[2] / "fixtures" / "llama" / "model"


def invoke(*arguments, code=0) -> str:
    result = CliRunner().invoke(main, [str(it) for it in arguments])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Return the asset that the verb made of a small Llama, and what it said."""
    target = tmp_path_factory.mktemp("coreai") / "llama.aimodel"
    return target, json.loads(invoke("export", "coreai", LLAMA, target, "--json"))


@pytest.fixture(scope="module")
def narrow(tmp_path_factory):
    """Return an asset in float16, and what the verb said."""
    target = tmp_path_factory.mktemp("coreai") / "narrow.aimodel"
    words = ("--precision", "fp16", "--json")
    return target, json.loads(invoke("export", "coreai", LLAMA, target, *words))


def test_a_language_model_passes_its_check_in_the_vendors_runtime(exported):
    target, document = exported
    assert document["verdict"]["status"] == "PASS"
    assert "a beta" in document["verdict"]["provenance"]["candidate"]["runner"]["version"]
    assert target.with_name("llama.aimodel.weighbridge.json").is_file()


def test_its_weights_have_the_names_and_bytes_of_the_source(exported):
    from safetensors.numpy import load_file

    asset = Asset(exported[0])
    for name, array in load_file(LLAMA / "model.safetensors").items():
        assert np.array_equal(asset.read(name), array.astype(np.float32)), name


def test_inspect_shows_operators_weights_and_ports(exported):
    facts = json.loads(invoke("inspect", exported[0], "--json"))
    assert facts["is"] == "a Core AI asset"
    assert facts["operators"]["batch_matmul"] > 0
    assert "model.embed_tokens.weight" in facts["headers"]
    assert facts["inputs"] == ["input_ids: int32 ['batch', 'sequence']"]


def test_the_asset_says_nothing_of_the_machine_that_made_it(exported):
    content = b"".join(file.read_bytes() for file in Asset(exported[0]).files)
    for told in (b"/home", b"site-packages", b".py", b"creationDate"):
        assert told not in content


def test_a_disk_that_fails_while_an_asset_is_written_leaves_one_line(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(coreai_export.shutil, "copyfileobj", full)
    source = "weighbridge.tests.support.coreml.modules:conv1d"
    output = invoke("export", "coreai", source, tmp_path / "a.aimodel", code=3)
    assert "No space left on device" in output
    assert [*tmp_path.iterdir()] == []


class Twice(torch.nn.Module):
    """Two outputs that are equal, if ALIKE, or of which one is used by the other."""

    def __init__(self, *, alike: bool) -> None:
        super().__init__()
        self.alike = alike

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return sums of X along its last axis."""
        first, second = x.cumsum(-1), x.cumsum(-1)
        return first, second if self.alike else second + x


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch's own exporter
@pytest.mark.parametrize(("alike", "sums"), [(False, 1), (True, 2)])
def test_equal_sums_are_computed_once_unless_they_are_outputs(alike, sums):
    graph = torch.export.export(Twice(alike=alike), (torch.ones(2, 3),)).run_decompositions()
    found = coreai_export.computed_once(graph).graph
    assert sum("cumsum" in str(it.target) for it in found.nodes) == sums


def test_a_dry_run_writes_nothing(tmp_path):
    output = invoke("export", "coreai", LLAMA, tmp_path / "a.aimodel", "--dry-run")
    assert "float32" in output
    assert [*tmp_path.iterdir()] == []


def test_weights_come_back_under_their_names(exported, tmp_path):
    words = ("convert", "coreai-to-torch", exported[0], tmp_path / "back", "--like", LLAMA)
    assert json.loads(invoke(*words, "--json"))["verdict"]["status"] == "PASS"


def other_weight(asset, tmp_path):
    """Return ASSET with one weight changed."""
    name = "model.layers.1.mlp.up_proj.weight"
    changed = Asset(asset).read(name)
    changed[2, 3] += 0.1
    return with_weights(asset, tmp_path / "other.aimodel", {name: changed})


def test_a_changed_weight_differs_and_is_named(exported, tmp_path):
    other = other_weight(exported[0], tmp_path)
    output = invoke("parity", "check", LLAMA, other, "--json", code=1)
    assert json.loads(output)["status"] == "DIFFERS"
    assert "layers.1.mlp.up_proj" in output


OTHER = """
import os, sys
from pathlib import Path
from coreai.authoring import AIModelAsset
from coreai._compiler.dialects import coreai
from coreai._compiler.ir import InsertionPoint
asset = AIModelAsset.load(Path(sys.argv[1]))
program = asset.program
body = program._get_graph("main").bodyRegion.blocks[0]
old = next(it for it in body.operations if it.operation.name == "coreai.silu")
with InsertionPoint(old), old.location:
    new = coreai.tanh(old.operands[0])
old.results[0].replace_all_uses_with(new)
old.operation.erase()
program.save_asset(Path(sys.argv[2]), asset.metadata)
os._exit(0)
"""


def test_another_activation_differs_and_its_submodule_is_named(exported, tmp_path):
    other = tmp_path / "other.aimodel"
    command = [sys.executable, "-c", OTHER, str(exported[0]), str(other)]
    subprocess.run(command, check=True, capture_output=True)
    output = invoke("parity", "check", LLAMA, other, "--json", code=1)
    (fault,) = json.loads(output)["faults"]
    assert fault["site"] == "model.layers.0.mlp.act_fn"
    assert "tanh of" in fault["evidence"]
    assert "the reference's is silu" in fault["evidence"]


def test_two_weights_that_changed_places_are_both_named(exported, tmp_path):
    one, other = (f"model.layers.1.mlp.{it}_proj.weight" for it in ("gate", "up"))
    changed = exchanged(exported[0], tmp_path / "other.aimodel", one, other)
    faults = json.loads(invoke("parity", "check", LLAMA, changed, "--json", code=1))["faults"]
    said = {it["site"]: (it["kind"], it["evidence"]) for it in faults}
    assert said == {
        name.removesuffix(".weight"): ("exchanged", f"{name}: holds the values of {values}")
        for name, values in ((one, other), (other, one))
    }


def test_every_submodule_is_a_site_with_what_torch_computes(exported):
    from weighbridge.converters.models import open as open_model
    from weighbridge.converters.runtimes import load

    inputs = {"input_ids": np.array([[5, 7, 9, 2]])}
    wanted = load(open_model(str(LLAMA)), "torch").trace(inputs).sites
    runner = load(open_model(str(exported[0])))
    found = runner.trace(inputs).sites
    assert found.keys() == {site for site in wanted if not site.endswith("|in")}
    for site, array in found.items():
        assert array == pytest.approx(wanted[site], abs=1e-5), site
    given = np.ones_like(wanted["model.layers.0"])
    corrected = runner.trace(inputs, {"model.layers.0": given})
    assert np.array_equal(corrected.sites["model.layers.0"], found["model.layers.0"])
    forced = load(open_model(str(LLAMA)), "torch").trace(inputs, {"model.layers.0": given})
    assert corrected.outputs["logits"] == pytest.approx(forced.outputs["logits"], abs=1e-5)


def test_float16_halves_the_weights_and_keeps_their_names(exported, narrow):
    wide, half = (Asset(it[0]) for it in (exported, narrow))
    name = "model.layers.0.self_attn.q_proj.weight"
    assert half.headers[name].dtype == "F16"
    assert np.array_equal(half.read(name), wide.read(name).astype(np.float16))


def test_a_float16_asset_says_how_it_runs(narrow):
    verdict = narrow[1]["verdict"]
    (stage,) = (it for it in verdict["stages"] if it["name"] == "precision")
    assert (verdict["status"], stage["status"]) == ("PASS", "pass")
    assert verdict["provenance"]["candidate"]["shipped"] == "float16"


def spoiled(asset, folder, name, content):
    target = folder / "bad.aimodel"
    shutil.copytree(asset, target)
    (target / name).write_bytes(content)
    return target


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("main.mlirb", lambda it: it[: len(it) // 2], "it is cut off or was changed"),
        ("main.hash", lambda it: it[::-1], "it is cut off or was changed"),
        ("metadata.json", lambda it: it.replace(b'"2.0"', b'"9.1"'), "an asset of version 9.1"),
        ("metadata.json", lambda it: it[:40], "metadata.json"),
    ],
)
def test_a_damaged_asset_is_one_line(exported, tmp_path, name, change, message):
    asset = spoiled(exported[0], tmp_path, name, change((exported[0] / name).read_bytes()))
    for words in (("inspect", asset), ("parity", "check", LLAMA, asset)):
        output = invoke(*words, code=3)
        assert message in output
        assert sum(line.startswith("Error:") for line in output.splitlines()) == 1


def test_a_runtime_that_dies_is_named_and_ours_goes_on(exported, tmp_path):
    half = (exported[0] / "main.mlirb").read_bytes()[:3000]
    asset = spoiled(exported[0], tmp_path, "main.mlirb", half)
    (asset / "main.hash").write_bytes(hashlib.sha256(half).digest())
    output = invoke("parity", "check", LLAMA, asset, code=3)
    assert "Core AI ended its process by signal SIGABRT while reading the constants" in output


def test_a_runtime_that_dies_under_way_tells_nothing_of_the_candidate(exported, monkeypatch):
    died = f"import os; from {process.__package__}.inside import Inside, main\n"
    died += "Inside.run = lambda *_, **__: os.abort()\nmain()"
    monkeypatch.setattr(process, "CODE", died)
    output = invoke("parity", "check", LLAMA, exported[0], "--quick", code=3)
    assert "Core AI ended its process by signal SIGABRT while running it" in output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("export", "coreai", LLAMA, "{folder}/a.bin"), "is named *.aimodel"),
        (
            ("export", "coreai", "{asset}", "{folder}/a.aimodel"),
            "bring its weights back first: weighbridge convert",
        ),
        (("export", "coreai", LLAMA, "{folder}/a.aimodel", "--upper", "b=3"), "no dimension b"),
        (("convert", "mlx-to-torch", "{asset}", "{folder}/a"), "convert coreai-to-torch"),
        (("inspect", "{folder}/none.aimodel"), "none.aimodel"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(exported, tmp_path, words, message):
    names = {"asset": exported[0], "folder": tmp_path}
    output = invoke(*(str(word).format(**names) for word in words), code=3)
    assert sum(line.startswith("Error:") for line in output.splitlines()) == 1
    assert message in output
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("verb", ["export", "parity"])
def test_without_the_package_one_line_says_how_to_get_it(exported, tmp_path, monkeypatch, verb):
    for name in ("coreai", "coreai_torch"):
        monkeypatch.setitem(sys.modules, name, None)
    words = {
        "export": ("export", "coreai", LLAMA, tmp_path / "a.aimodel"),
        "parity": ("parity", "check", LLAMA, exported[0]),
    }
    output = invoke(*words[verb], code=3)
    assert "pip install 'weighbridge[coreai]'" in output
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("end", ["", "__import__('os').kill(__import__('os').getpid(), 9)"])
def test_no_process_and_no_folder_is_left(exported, tmp_path, end):
    code = (
        "import sys, tempfile; tempfile.tempdir = sys.argv[2]\n"
        "from pathlib import Path; from weighbridge.converters.models import open as open_model\n"
        "from weighbridge.converters.runtimes import load\n"
        "runner = load(open_model(sys.argv[1]))\n"
        "runner.run({'input_ids': __import__('numpy').ones((1, 3), int)})\n"
        "print(runner._asset.process._process.pid, flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code + end, str(exported[0]), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    until = time.monotonic() + 30
    while [*tmp_path.iterdir()] and time.monotonic() < until:
        time.sleep(0.05)
    assert [*tmp_path.iterdir()] == []
    if not end:  # nobody may wait for a process whose parent is gone
        with pytest.raises(ProcessLookupError):
            os.kill(int(done.stdout), 0)
