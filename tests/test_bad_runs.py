"""A run that was damaged is refused by name and stays as it is; what a model has no row for is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file

from tests.fuzz import goods
from weighbridge.cli import main
from weighbridge.trainers.runs import loop

STEP = Path("run") / "checkpoints" / "step-00000002"


def invoke(*arguments, code=3):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output + repr(result.exception)
    return result.output


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """Return a folder with a run that was stopped after two of its four steps."""
    folder = tmp_path_factory.mktemp("stopped")
    for name in ("port.py", "series", "recipe.yaml"):
        goods.GOODS[name](folder / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        invoke("train", "run", "--backend", "torch", "--config", "recipe.yaml", code=0)
    shutil.rmtree(folder / "run" / "checkpoints" / "step-00000004")
    return folder


@pytest.fixture
def run(stopped, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(stopped, tmp_path, dirs_exist_ok=True)
    whole = (tmp_path / "run" / "config.yaml").read_text()
    (tmp_path / "run" / "config.yaml").write_text(whole.replace(str(stopped), str(tmp_path)))


def resume(code=3):
    return invoke("train", "run", "--resume", code=code)


def facts(**changes):
    path = STEP / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def progress(**changes):
    facts(progress=json.loads((STEP / "state.json").read_text())["progress"] | changes)


def state(change, *, recorded=False):
    arrays = load_file(STEP / "state.safetensors")
    change(arrays)
    save_file(arrays, STEP / "state.safetensors")
    if not recorded:  # as 0.1.0 wrote it
        facts(tensors=None)
        path = STEP / "state.json"
        path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if v}))


def rename(arrays):
    arrays["parameters/model.huad.weight"] = arrays.pop("parameters/model.head.weight")


def shorten(arrays):
    arrays["random"] = arrays["random"][:-1].copy()


def lose_a_moment(arrays):
    del arrays["optimizer/exp_avg/model.head.weight"]


def alter(arrays):
    arrays["parameters/model.head.weight"] = arrays["parameters/model.head.weight"] + np.float32(1)


DAMAGE = {
    "progress": (lambda: facts(progress=5), "progress"),
    "a count": (lambda: progress(skipped="x"), "progress.skipped"),
    "a key": (lambda: progress(more=1), "progress.more: missing, or unknown"),
    "a figure": (lambda: progress(before={}), "progress.before: has no loss"),
    "data": (lambda: facts(data=None), "data: None in the checkpoint"),
    "a name": (lambda: state(rename), "parameters/model.head.weight is missing"),
    "random numbers": (lambda: state(shorten), "random is"),
    "a moment": (lambda: state(lose_a_moment), "optimizer/exp_avg/model.head.weight is missing"),
    "a value": (lambda: state(alter, recorded=True), "not what was written"),
    "the best": (
        lambda: [*map(shutil.rmtree, STEP.parent.glob("best-*"))],
        "is missing, the best so far",
    ),
    "preflight": (
        lambda: Path("run/preflight.json").write_text("{"),
        "remove it, or make it again",
    ),
}


@pytest.mark.parametrize("what", DAMAGE)
@pytest.mark.usefixtures("run")
def test_a_damaged_checkpoint_is_refused_and_the_run_stays_as_it_is(what):
    spoil, said = DAMAGE[what]
    spoil()
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    assert said in resume()
    assert {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()} == before


@pytest.mark.usefixtures("run")
def test_what_a_run_has_written_is_not_asked_for_again_when_it_goes_on(monkeypatch):
    asked = []
    monkeypatch.setattr(loop, "require_space", lambda _, needed: asked.append(needed))
    before = sum(path.stat().st_size for path in Path("run").rglob("*.safetensors"))
    invoke("train", "other", "--backend", "torch", "--config", "recipe.yaml", code=0)
    resume(code=0)
    new, resumed = asked
    assert resumed == new - before


@pytest.mark.usefixtures("run")
def test_a_run_that_did_not_help_says_so():
    settings = ("--set", "optimizer.learning_rate=10", "--set", "schedule.warmup=0")
    said = invoke(
        "train", "other", "--backend", "torch", "--config", "recipe.yaml", *settings, code=0
    )
    assert "best at step 0" in said
    assert "what is written is what the run began with" in said


@pytest.mark.usefixtures("run")
def test_a_file_in_place_of_the_checkpoints_is_refused_before_the_journal_is_cut():
    shutil.rmtree("run/checkpoints")
    Path("run/checkpoints").touch()
    before = Path("run/metrics.jsonl").read_bytes()
    assert "not a folder of checkpoints" in resume()
    assert Path("run/metrics.jsonl").read_bytes() == before


@pytest.mark.usefixtures("run")
def test_a_setting_beside_resume_is_held_against_the_runs_own():
    same = invoke("train", "run", "--resume", "--set", "steps=9")
    assert "run holds a run of another configuration" in same
    assert "with which weighbridge train run --resume goes on: 1 problem" in same
    assert "steps: 4 in the run, 9 asked for" in same
    invoke("train", "run", "--resume", "--set", "steps=4", code=0)


def of_no_model():
    """Write a recipe whose model is not there."""
    recipe = Path("recipe.yaml").read_text().replace("port:make", "nowhere")
    Path("other.yaml").write_text(recipe.replace("regression", "classification"))
    return "--recipe", "other.yaml"


@pytest.mark.usefixtures("run")
def test_resume_with_another_recipe_names_the_recipe_and_not_what_that_one_lacks():
    output = invoke("train", "run", "--resume", *of_no_model())
    assert "run holds a run of another configuration" in output
    assert "objective.name: regression in the run, classification asked for" in output
    assert "no run to resume" in invoke("train", "elsewhere", "--resume", *of_no_model())


@pytest.mark.usefixtures("run")
def test_a_file_is_no_run_to_resume():
    Path("file").touch()
    said = invoke("train", "file", "--config", "recipe.yaml")
    assert "file is a file; choose another name\n" in said


@pytest.mark.usefixtures("run")
def test_a_run_whose_checkpoint_has_no_hash_goes_on():
    state(lambda _arrays: None)
    resume(code=0)


@pytest.mark.usefixtures("run")
def test_a_run_with_more_in_its_folder_than_files_goes_on_to_its_end():
    Path("run/mine").mkdir()
    Path("run/link").symlink_to("nowhere")
    resume(code=0)
    assert {"mine", "link"} & set(
        json.loads(Path("run/weighbridge.json").read_text())["files"]
    ) == set()


def test_lengths_beyond_the_positions_of_the_model_are_refused(
    tiny_bert_dir, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    goods.pairs(tmp_path / "pairs")
    (tmp_path / "pairs.yaml").write_text(
        goods.PAIRS.replace("bert", str(tiny_bert_dir)).replace("[16, 24]", "[16, 400]")
    )
    output = invoke("train", "out", "--backend", "torch", "--config", "pairs.yaml")
    assert "data.lengths.document: 400 tokens, and the model has 160 positions" in output


def test_a_rank_that_no_update_can_have_is_refused_before_anything_is_made(
    tiny_bert_dir, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    goods.pairs(tmp_path / "pairs")
    (tmp_path / "pairs.yaml").write_text(goods.PAIRS.replace("bert", str(tiny_bert_dir)))
    settings = ("--backend", "torch", "--config", "pairs.yaml", "--set", "adapter.rank=100000")
    output = invoke("train", "out", *settings)
    assert "adapter.rank is 100000, and no update of its targets has a rank over" in output
    assert "give --set adapter.rank=" in output
    assert not Path("out").exists()


def test_a_damaged_tokenizer_is_refused_by_name(tiny_bert_dir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny_bert_dir, "bert")
    tokenizer = json.loads(Path("bert/tokenizer.json").read_text())
    Path("bert/tokenizer.json").write_text(
        json.dumps(tokenizer | {"post_processor": {"type": "x"}})
    )
    goods.pairs(tmp_path / "pairs")
    (tmp_path / "pairs.yaml").write_text(goods.PAIRS)
    output = invoke("train", "out", "--backend", "torch", "--config", "pairs.yaml")
    assert "tokenizer.json" in output


def test_a_tokenizer_that_fails_on_a_text_is_refused_by_name(tiny_bert_dir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny_bert_dir, "bert")
    tokenizer = json.loads(Path("bert/tokenizer.json").read_text())
    tokenizer["model"]["unk_token"] = "[NONE]"
    tokenizer["model"]["vocab"].pop("t")
    Path("bert/tokenizer.json").write_text(json.dumps(tokenizer))
    goods.pairs(tmp_path / "pairs")
    (tmp_path / "pairs.yaml").write_text(goods.PAIRS)
    for line in ("train out --backend torch --config pairs.yaml", "parity record bert out"):
        assert "tokenizer" in invoke(*line.split())


def test_a_tokenizer_with_ids_that_the_model_does_not_have_is_refused(tiny_bert_dir, tmp_path):
    source = shutil.copytree(tiny_bert_dir, tmp_path / "bert")
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["the"] = 10_000
    (source / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert "10000; the model has 0 to" in invoke("parity", "record", source, tmp_path / "out")


def test_own_inputs_with_ids_that_the_model_does_not_have_are_refused(tiny_bert_dir, tmp_path):
    ids = np.array([[2, 5, 10_000, 3]])
    np.savez(tmp_path / "own.npz", input_ids=ids, attention_mask=np.ones_like(ids))
    output = invoke(
        *("parity", "record", tiny_bert_dir, tmp_path / "out", "--inputs", tmp_path / "own.npz")
    )
    assert "input_ids holds ids from 2 to 10000" in output
