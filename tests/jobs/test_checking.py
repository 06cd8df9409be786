"""The map that did the job does not check itself, and adapters of every dialect are compared live."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.numpy import load_file
from transformers import BertModel

from weighbridge import jobs
from weighbridge.cli import main
from weighbridge.converters.checkpoints import Header
from weighbridge.converters.maps import WeightMap
from weighbridge.jobs.checking import expectations_of

SOURCE, NATIVE = "examples.timeseries:build", "examples.timeseries:build_mlx"
GOOD = "examples/timeseries.wmap"


@pytest.fixture(scope="module")
def forecaster(tmp_path_factory):
    from examples.timeseries import write_model

    return write_model(tmp_path_factory.mktemp("series") / "torch")


@pytest.fixture
def wrong_map(tmp_path):
    """Return a map that keeps every shape and swaps the channels of square convolutions."""
    text = Path(GOOD).read_text()
    path = tmp_path / "wrong.wmap"
    path.write_text(text.replace("{conv}.weight [out width in]", "{conv}.weight [in width out]"))
    assert path.read_text() != text
    return path


def convert(source, target, map_path, **chosen):
    options = jobs.Options(check="full", map=str(map_path), trust_code=SOURCE, **chosen)
    return jobs.convert(str(source), target, "mlx", options=options)


@pytest.mark.parametrize("joined", ["q + k + v", "v + q + k"])
def test_joined_weights_are_expected_as_they_lie_in_the_target_whatever_their_order_in_the_rule(
    joined,
):
    text = f"k [k], q [q], v [v] <-> joined [({joined})]\n    where k = q = v = size\n"
    headers = {name: Header("F32", (3,)) for name in "kqv"}
    plan = WeightMap.parse(f"weighbridge map 1\n{text}").bind(headers, config={"size": 3})
    assert expectations_of(plan)["joined"].sources == tuple(joined.split(" + "))


@pytest.mark.parametrize(
    ("rule", "axes"),
    [
        ("[1 a b] <-> w [1 b a]", (0, 2, 1)),
        ("[a 1 b] <-> w [a b 1]", (0, 2, 1)),
        ("[1 a b] <-> w [a b]", None),
    ],
)
def test_an_axis_of_size_one_does_not_hide_how_the_others_are_exchanged(rule, axes):
    text = f"weighbridge map 1\nw {rule}\n"
    shape = tuple({"1": 1, "a": 7, "b": 8}[axis] for axis in rule[1:6].split())
    plan = WeightMap.parse(text).bind({"w": Header("F32", shape)}, config={})
    assert expectations_of(plan)["w"].axes == axes


def test_a_map_nobody_vouches_for_is_unverified(forecaster, wrong_map, tmp_path):
    outcome = convert(forecaster, tmp_path / "mlx", wrong_map)
    assert outcome.status == "UNVERIFIED"
    assert outcome.verdict.stage("layout").status == "unverified"
    assert outcome.verdict.exit_code() == 4


def test_a_native_module_shows_that_a_map_is_wrong(forecaster, wrong_map, tmp_path):
    outcome = convert(forecaster, tmp_path / "mlx", wrong_map, candidate_code=NATIVE)
    assert outcome.status == "DIFFERS"
    assert not (tmp_path / "mlx").exists()
    assert (tmp_path / "mlx.rejected").exists()


def test_a_native_module_vouches_for_a_good_map_and_is_remembered(forecaster, tmp_path):
    outcome = convert(forecaster, tmp_path / "mlx", GOOD, candidate_code=NATIVE)
    assert outcome.status == "PASS"
    home = jobs.convert(
        str(tmp_path / "mlx"), tmp_path / "home", "torch", options=jobs.Options(trust_code=SOURCE)
    )
    assert home.status == "PASS"
    assert "native MLX module" in home.verdict.stage("layout").detail


def test_a_table_of_ours_is_vouched_for_by_the_library_it_is_tested_against(
    tiny_bert_dir, tmp_path
):
    outcome = jobs.convert(str(tiny_bert_dir), tmp_path / "mlx", "mlx")
    assert outcome.status == "PASS"
    assert "mlx-embeddings" in outcome.verdict.stage("layout").detail


def test_the_verdict_names_the_target_not_where_it_was_built(tiny_bert_dir, tmp_path):
    jobs.convert(str(tiny_bert_dir), tmp_path / "mlx", "mlx")
    assert "staging" not in (tmp_path / "mlx" / "weighbridge.json").read_text()


@pytest.fixture(scope="module", params=[False, True], ids=["lora", "dora"])
def peft_adapter(request, tiny_bert_dir, tmp_path_factory):
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    config = LoraConfig(
        r=3, lora_alpha=6, target_modules=["query", "value"], use_dora=request.param
    )
    peft = get_peft_model(BertModel.from_pretrained(tiny_bert_dir), config)
    for name, parameter in peft.named_parameters():
        if "lora_" in name:
            noise = torch.randn(parameter.shape) * 0.2
            parameter.data = parameter.data * (1 + noise) if "magnitude" in name else noise
    folder = tmp_path_factory.mktemp("peft") / "adapter"
    peft.save_pretrained(folder)
    return folder, peft


def test_a_peft_adapter_is_merged_and_weighed_live(tiny_bert_dir, peft_adapter, tmp_path):
    folder, peft = peft_adapter
    outcome = jobs.merge(str(tiny_bert_dir), folder, tmp_path / "merged")
    assert outcome.status == "PASS"
    theirs, ours = (
        peft.merge_and_unload().state_dict(),
        load_file(tmp_path / "merged/model.safetensors"),
    )
    for name in outcome.facts["merged"]:
        assert np.allclose(ours[name], theirs[name].numpy(), atol=1e-6), name


def test_json_is_empty_or_parses_when_a_job_fails(tiny_bert_dir, tmp_path):
    for arguments in (["convert", "mlx-to-torch", str(tiny_bert_dir), "x"], ["inspect", "nowhere"]):
        result = CliRunner().invoke(main, [*arguments, "--json"])
        assert result.exit_code == 3
        assert result.stdout == "" or json.loads(result.stdout)


def test_a_users_own_inputs_are_what_is_run(tiny_bert_dir, tmp_path):
    ids = np.arange(5, 21).reshape(2, 8)
    np.savez(tmp_path / "mine.npz", input_ids=ids, attention_mask=np.ones_like(ids))
    arguments = ["parity", "check", str(tiny_bert_dir), str(tiny_bert_dir), "--json"]
    result = CliRunner().invoke(main, [*arguments, "--inputs", str(tmp_path / "mine.npz")])
    rows = next(s for s in json.loads(result.stdout)["stages"] if s["name"] == "structure")
    assert [row["probe"] for row in rows["figures"]["rows"]] == ["inputs"]
    bad = CliRunner().invoke(main, [*arguments, "--inputs", str(tiny_bert_dir / "config.json")])
    assert bad.exit_code == 3


def test_a_recorded_golden_does_not_stand_in_for_a_layout_check(forecaster, wrong_map, tmp_path):
    options = jobs.Options(check="none", map=str(wrong_map), trust_code=SOURCE)
    jobs.convert(str(forecaster), tmp_path / "mlx", "mlx", options=options)
    jobs.record(str(forecaster), tmp_path / "golden", options=jobs.Options(trust_code=SOURCE))
    verdict = jobs.check(
        str(tmp_path / "golden"), str(tmp_path / "mlx"), options=jobs.Options(trust_code=SOURCE)
    )
    assert verdict.stage("layout").status == "unverified"
    assert verdict.exit_code() == 4


def test_another_map_takes_the_layout_check_away(forecaster, wrong_map, tmp_path):
    convert(forecaster, tmp_path / "mlx", GOOD, candidate_code=NATIVE)
    options = jobs.Options(check="full", map=str(wrong_map), trust_code=SOURCE)
    assert jobs.check(str(forecaster), str(tmp_path / "mlx"), options=options).status != "PASS"
