"""GGUF files held against the model that they were made from, in llama.cpp or in what stands for it here."""

from __future__ import annotations

import shutil

import gguf
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from transformers import AutoModelForCausalLM

from tests.converters.gguf.models import module, saved, tuned
from tests.support.runnable_gguf import runnable_file
from weighbridge.cli import main
from weighbridge.converters.runtimes.programs import llama
from weighbridge.errors import BadInputError, RuntimeEndedError
from weighbridge.jobs.options import CheckOptions
from weighbridge.jobs.parity import check as full_check
from weighbridge.parity.check import candidate as judged_side
from weighbridge.tests.converters.quantization.conftest import MOE, save

needs_llama_cpp = pytest.mark.skipif(
    not llama.LLAMA_CPP.installed, reason="llama_cpp, the binding of llama.cpp, is not installed"
)
FAMILIES = ("llama", "qwen3", "gemma", "gpt2", "mixtral", "qwen3_moe")


def check(reference, candidate):
    return full_check(str(reference), str(candidate), options=CheckOptions(check="quick"))


@pytest.fixture
def stub(monkeypatch):
    """Return what makes a ``Stub`` answer in place of llama.cpp."""
    there = llama.LLAMA_CPP._replace(package="json")  # which there is

    def answer(*given):
        monkeypatch.setattr(judged_side, "LLAMA_CPP", there)
        monkeypatch.setattr(llama, "Process", Stub(*given))

    return answer


class Stub:
    """Answers as the process of a file does: what transformers makes of the model in FOLDER, changed."""

    def __init__(self, folder, change=lambda logits: logits, operations=("MUL_MAT",)):
        self.folder, self.change, self.operations = folder, change, frozenset(operations)

    def __call__(self, _, library):
        self.library = library._replace(package="json")  # which there is
        return self

    def ask(self, request, *given):
        if request == "about":
            return {"binding": "0", "ggml": "0 (none)", "kernels": ""}
        ids, mask = given
        model = AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.float32).eval()
        with torch.inference_mode():
            found = model(torch.tensor(ids)).logits.numpy()
        return self.change(found * mask[..., None]), self.operations


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("judged")
    for family in FAMILIES:
        saved(module(family), folder / family)
        runnable_file(folder / f"{family}.gguf", family, folder / family)
    saved(tuned("llama", torch.float32), folder / "tuned")
    return folder


def status(verdict, name):
    stage = verdict.stage(name)
    return stage and stage.status


def test_a_file_that_computes_what_the_model_does_passes(made, stub):
    stub(made / "llama")
    verdict = check(str(made / "llama"), str(made / "llama.gguf"))
    assert verdict.status == "PASS", verdict
    assert verdict.provenance["candidate"]["runner"]["runtime"] == "llama.cpp"


def test_a_file_that_computes_something_else_differs(made, stub):
    stub(made / "llama", lambda it: it * (1 + 1e-4))
    verdict = check(str(made / "llama"), str(made / "llama.gguf"))
    assert verdict.status == "DIFFERS"
    assert status(verdict, "fingerprints") == "pass"
    assert status(verdict, "structure") == "fail"


def test_without_llama_cpp_nothing_is_claimed_and_weights_are_compared(made, monkeypatch):
    absent = llama.LLAMA_CPP._replace(package="no_llama_cpp")
    for module_ in (llama, judged_side):
        monkeypatch.setattr(module_, "LLAMA_CPP", absent)
    verdict = check(str(made / "llama"), str(made / "llama.gguf"))
    assert verdict.status == "UNVERIFIED"
    assert status(verdict, "fingerprints") == "pass"
    assert "is not installed" in verdict.stage("structure").detail


@pytest.mark.parametrize("family", FAMILIES)
def test_the_weights_of_another_model_differ(made, family, tmp_path, stub):
    stub(made / family)
    other = module(family)
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            if "mlp" in name and parameter.dim() > 1:
                parameter[..., 0, 0] += 1
    saved(other, tmp_path / "other")
    file = runnable_file(tmp_path / "other.gguf", family, tmp_path / "other")
    verdict = check(str(made / family), str(file))
    assert verdict.status == "DIFFERS"
    assert status(verdict, "fingerprints") == "fail"


def test_a_golden_without_its_model_names_no_tensors(made, tmp_path):
    run = CliRunner().invoke
    assert run(main, ["parity", "record", str(made / "llama"), str(tmp_path / "g")]).exit_code == 0
    with pytest.raises(BadInputError, match="name the model"):
        check(str(tmp_path / "g"), str(made / "llama.gguf"))


def test_blocks_are_held_against_the_model_and_the_run_in_float32(made, tmp_path, stub):
    file = runnable_file(tmp_path / "q8.gguf", "llama", made / "llama", "Q8_0")
    exact = tmp_path / "exact"
    shutil.copytree(made / "llama", exact)
    with_blocks_of(exact, file)
    stub(exact)
    verdict = check(str(made / "llama"), str(file))
    assert status(verdict, "compressed") == "pass"
    assert status(verdict, "fingerprints") == "pass"
    assert status(verdict, "structure") == "pass"
    assert status(verdict, "activations") == "unverified"


def with_blocks_of(folder, file):
    """Put what FILE holds into the checkpoint in FOLDER."""
    from safetensors.numpy import save_file

    from weighbridge.jobs.importing.compared_gguf import judged
    from weighbridge.jobs.options import ReadOptions

    model, _ = judged(ReadOptions().open(str(folder)), file)
    arrays = {
        name: np.ascontiguousarray(model.tensors.read(name)) for name in model.tensors.headers
    }
    save_file(arrays, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(("bits", "more"), [(4, ()), (8, ("--allow-lossy",))])
def test_stacked_experts_of_mlx_are_those_that_a_file_has(bits, more, stub, tmp_path):
    run, mlx, dense = CliRunner().invoke, tmp_path / "mlx", tmp_path / "dense"
    config = MOE | {"num_hidden_layers": 2, "architectures": ["Qwen3MoeForCausalLM"]}
    save(mlx, config, "float16", group_size=32, bits=bits)
    unchecked = ["--check", "none"]
    back = ["convert", "mlx-to-torch", mlx, dense, "--dequantize", "fp32", "--original", "none"]
    assert run(main, [*map(str, back), *unchecked]).exit_code == 0
    like = runnable_file(tmp_path / "like.gguf", "qwen3_moe", dense)
    file = tmp_path / "a.gguf"
    words = ["export", "gguf", mlx, file, "--like", like, *more, *unchecked]
    result = run(main, [*map(str, words)])
    assert result.exit_code == 0, result.output
    with_blocks_of(dense, file)
    stub(dense)
    found = check(mlx, file)
    wrong = {it.name: it.detail for it in found.stages if it.status == "fail"}
    assert wrong == {}
    assert status(found, "structure") == "pass"


def test_numbers_further_than_a_step_are_named(made, tmp_path, stub):
    stub(made / "llama")
    other = module("llama")
    with torch.no_grad():
        other.model.layers[0].mlp.up_proj.weight[3] *= -1
    saved(other, tmp_path / "other")
    file = runnable_file(tmp_path / "q8.gguf", "llama", tmp_path / "other", "Q8_0")
    verdict = check(str(made / "llama"), str(file))
    assert verdict.status == "DIFFERS"
    assert "up_proj" in verdict.stage("compressed").detail


def test_settings_that_say_otherwise_differ(made, tmp_path, stub):
    stub(made / "llama")
    file = changed(made / "llama.gguf", tmp_path / "a.gguf", b"rope.freq_base", 5e5)
    verdict = check(str(made / "llama"), str(file))
    assert verdict.status == "DIFFERS"
    assert "rope.freq_base is 500000" in verdict.stage("configuration").detail


def changed(source, target, name, number):
    """Return TARGET, a copy of SOURCE whose float32 of metadata NAME is NUMBER."""
    data = bytearray(source.read_bytes())
    place = data.index(name) + len(name) + 4
    data[place : place + 4] = np.float32(number).tobytes()
    target.write_bytes(data)
    return target


@needs_llama_cpp
@pytest.mark.parametrize("family", FAMILIES)
def test_llama_cpp_computes_what_the_model_does(made, family):
    verdict = check(str(made / family), str(made / f"{family}.gguf"))
    assert verdict.status == "PASS", verdict


@needs_llama_cpp
def test_rows_that_llama_cpp_reads_otherwise_differ(made, tmp_path):
    reader = gguf.GGUFReader(made / "llama.gguf")
    place = next(it for it in reader.tensors if it.name == "blk.1.attn_q.weight")
    data = bytearray((made / "llama.gguf").read_bytes())
    rows = np.frombuffer(data, np.float32, 32 * 64, place.data_offset).reshape(4, 4, 2, 64)
    rows[:] = rows.copy().swapaxes(1, 2).reshape(rows.shape)  # as transformers has them
    (tmp_path / "a.gguf").write_bytes(data)
    verdict = check(str(made / "llama"), str(tmp_path / "a.gguf"))
    assert verdict.status == "DIFFERS"
    assert status(verdict, "structure") == "fail"


@needs_llama_cpp
def test_an_export_is_run(made, tmp_path):
    command = ["export", "gguf", made / "tuned", tmp_path / "a.gguf", "--like", made / "llama.gguf"]
    result = CliRunner().invoke(main, [*map(str, command)])
    assert result.exit_code == 0, result.output
    assert "PASS" in result.output
    assert "did not run it" not in result.output


@needs_llama_cpp
def test_what_llama_cpp_cannot_load_is_one_line(made, tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    process = llama.Process(tmp_path / "a.gguf", llama.LLAMA_CPP)
    with pytest.raises(BadInputError, match=r"llama\.cpp fails loading it") as caught:
        process.ask("about")
    assert "\n" not in str(caught.value)


@needs_llama_cpp
def test_the_end_of_its_process_is_one_line(made):
    process = llama.Process(
        made / "llama.gguf", llama.LLAMA_CPP._replace(code="import os; os.abort()")
    )
    with pytest.raises(RuntimeEndedError, match=r"llama\.cpp ended its process by signal SIGABRT"):
        process.ask("about")
