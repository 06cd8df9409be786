"""``weighbridge map`` from a shell."""

import json

import pytest
from click.testing import CliRunner

from weighbridge.cli import main
from weighbridge.converters.maps import WeightMap

TORCH, PORT = "examples.ports.encoder:build", "examples.ports.encoder:build_mlx"


def invoke(*arguments, code=0):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output + repr(result.exception)
    return result


def test_show_prints_a_map_that_can_be_given_back(tiny_bert_dir, tmp_path):
    text = invoke("map", "show", tiny_bert_dir).stdout
    (tmp_path / "bert.wmap").write_text(text)
    assert WeightMap.load(tmp_path / "bert.wmap") == WeightMap.load("bert")
    document = json.loads(invoke("map", "show", tiny_bert_dir, "--json").stdout)
    assert document["origin"] == "table bert"


def test_show_says_what_to_do_for_a_type_nobody_knows(tmp_path, tiny_bert_dir):
    (tmp_path / "config.json").write_text('{"model_type": "unheard-of"}')
    (tmp_path / "model.safetensors").write_bytes((tiny_bert_dir / "model.safetensors").read_bytes())
    output = invoke("map", "show", tmp_path, code=3).stderr
    assert "unheard-of" in output
    assert "map infer" in output


def test_infer_writes_a_map_with_its_verdict_on_top(tmp_path):
    target = tmp_path / "port.wmap"
    invoke("map", "infer", TORCH, PORT, target)
    text = target.read_text()
    assert text.startswith("# done: parity with this map says PASS")
    WeightMap.parse(text)
    assert "exists" in invoke("map", "infer", TORCH, PORT, target, code=3).stderr


@pytest.mark.parametrize("port", [TORCH, "examples.ports.nothing:here"])
def test_infer_refuses_what_is_no_port_in_one_line(port, tmp_path):
    result = invoke("map", "infer", TORCH, port, tmp_path / "x.wmap", code=3)
    assert result.stderr.startswith("Error: ")
    assert "Traceback" not in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "says"),
    [("a <-> ", "Error: own.wmap:1:7: "), ("a <-> b", "the tensors do not fit the map own.wmap: ")],
)
def test_what_is_wrong_in_a_map_of_ones_own_names_its_file(
    text, says, tiny_bert_dir, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.wmap").write_text(text)
    given = ("--map", "own.wmap", "--check", "none")
    assert says in invoke("convert", "torch-to-mlx", tiny_bert_dir, "x", *given, code=3).stderr
