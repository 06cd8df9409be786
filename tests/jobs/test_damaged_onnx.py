"""ONNX files that are damaged, or lie about themselves: refused in one line by every verb that reads them."""

from __future__ import annotations

import shutil
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner

from weighbridge.cli import main
from weighbridge.tests.support.shallow import shallow

VERBS = (
    ("inspect", "m.onnx"),
    ("parity", "check", "bert", "m.onnx", "--quick"),
    ("convert", "onnx-to-torch", "m.onnx", "out", "--like", "bert", "--check", "none"),
    ("convert", "onnx-to-mlx", "m.onnx", "out", "--like", "bert", "--check", "none"),
)
DATA = "m.data"


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Return a folder with a model, its export, and the export with its weights in a file beside it."""
    folder = tmp_path_factory.mktemp("good")
    shallow("bert", folder)
    words = ("export", "onnx", folder / "bert", folder / "m.onnx", "--check", "none")
    assert not CliRunner().invoke(main, [*map(str, words)]).exit_code
    (folder / "outside").mkdir()
    proto, more = onnx.load(folder / "m.onnx"), {"location": DATA, "size_threshold": 0}
    onnx.save(proto, folder / "outside/m.onnx", save_as_external_data=True, **more)
    return folder


@pytest.fixture
def place(good, tmp_path, monkeypatch):
    """Return a folder with the model and its export, in which the verbs run."""
    shutil.copytree(good / "bert", tmp_path / "bert")
    shutil.copy(good / "m.onnx", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(place, said):
    """Run every verb, each of which refuses in one line that has what is SAID and leaves nothing."""
    before = sorted(place.rglob("*"))
    for verb in VERBS:
        result = CliRunner().invoke(main, [*verb])
        assert result.exit_code == 3, (verb, result.output)
        lines = [line for line in result.stderr.splitlines() if line.strip()]
        assert len(lines) == 1
        assert "m.onnx: is damaged: " in lines[0]
        assert said in lines[0]
    assert sorted(place.rglob("*")) == before


def edited(change):
    """Let CHANGE edit the export in this folder."""
    proto = onnx.load("m.onnx", load_external_data=False)
    change(proto)
    Path("m.onnx").write_bytes(proto.SerializeToString())


def nodes(proto):
    return proto.graph.node


def largest(proto):
    return max(proto.graph.initializer, key=lambda it: len(it.raw_data))


def circle(proto):
    nodes(proto)[3].input[0] = nodes(proto)[-1].output[0]


def unmade(proto):
    nodes(proto)[5].input[0] = "nothing_there"


def made_twice(proto):
    nodes(proto)[6].output[0] = nodes(proto)[5].output[0]


GRAPHS = {
    "circle": (circle, "waits for what is made of its own outputs"),
    "unmade": (unmade, "nothing makes nothing_there, which is read"),
    "made twice": (made_twice, "is made twice"),
    "no outputs": (lambda it: it.graph.ClearField("output"), "its graph gives nothing"),
    "no nodes": (lambda it: it.graph.ClearField("node"), "nothing makes last_hidden_state"),
    "no inputs": (lambda it: it.graph.ClearField("input"), "nothing makes input_ids"),
    "no version": (lambda it: it.ClearField("opset_import"), "no version of ONNX's own"),
    "version 0": (lambda it: setattr(it.opset_import[0], "version", 0), "version 0 of ONNX"),
    "a stranger's": (lambda it: setattr(nodes(it)[5], "domain", "com.acme"), "of com.acme"),
}
TENSORS = {
    "more rows": (lambda it: it.dims.__setitem__(0, 122), "holds 5,856 bytes, and needs 11,712"),
    "10**18 rows": (lambda it: it.dims.__setitem__(0, 2**62), "holds 5,856 bytes, and needs"),
    "rows below 0": (lambda it: it.dims.__setitem__(0, -5), "has the shape (-5, 24)"),
    "another type": (
        lambda it: setattr(it, "data_type", 11),
        "holds 5,856 bytes, and needs 11,712",
    ),
    "no type": (lambda it: setattr(it, "data_type", 66), "has a type of number 66"),
}


@pytest.mark.parametrize("case", GRAPHS)
def test_a_graph_that_nothing_could_run_is_refused_by_name(case, place):
    change, said = GRAPHS[case]
    edited(change)
    refused(place, said)


@pytest.mark.parametrize("case", TENSORS)
def test_a_tensor_that_is_not_what_it_says_is_refused_by_name(case, place):
    change, said = TENSORS[case]
    edited(lambda proto: change(largest(proto)))
    refused(place, f"tensor embeddings.word_embeddings.weight {said}")


def test_two_tensors_of_one_name_and_other_values_are_refused(place):
    """Onnxruntime takes one of them, a reader of the weights may take the other."""

    def add(proto):
        other = proto.graph.initializer.add()
        other.CopyFrom(largest(proto))
        other.raw_data = other.raw_data[::-1]

    edited(add)
    refused(place, "tensor embeddings.word_embeddings.weight is there twice, with other values")


def moved(**told):
    """Return a change of what every tensor says of its data."""

    def change(proto):
        for entry in (e for it in proto.graph.initializer for e in it.external_data):
            entry.value = told.get(entry.key, entry.value)

    return change


def nothing(proto):
    """Change nothing in the file itself."""


def lose():
    Path(DATA).unlink()


def cut():
    Path(DATA).write_bytes(Path(DATA).read_bytes()[:-700])


def to_itself():
    lose()
    Path(DATA).symlink_to(DATA)


def into_a_folder():
    lose()
    Path(DATA).mkdir()


OUTSIDE = {
    "gone": (nothing, lose, "is kept in m.data, which is not there"),
    "cut off": (nothing, cut, "of m.data, which has 26,468"),
    "a circle": (nothing, to_itself, "which is not there"),
    "a folder": (nothing, into_a_folder, "no file beside the model"),
    "above": (moved(location="../m.data"), None, "no file beside the model"),
    "absolute": (moved(location="/etc/passwd"), None, "no file beside the model"),
    "nowhere": (moved(location=""), None, "no file beside the model"),
    "far": (moved(offset="99999999999"), None, "of m.data, which has 27,168"),
    "below": (moved(offset="-4"), None, "has the offset '-4', which is none"),
    "a word": (moved(length="many"), None, "has the length 'many', which is none"),
    "short": (moved(length="4"), None, "has 4 bytes of m.data, and needs 5,856"),
}


@pytest.mark.parametrize("case", OUTSIDE)
def test_data_outside_that_cannot_be_right_is_refused_by_name(case, place, good):
    change, spoil, said = OUTSIDE[case]
    shutil.copytree(good / "outside", place, dirs_exist_ok=True)
    edited(change)
    if spoil:
        spoil()
    refused(place, said)


def test_data_outside_is_read_where_the_hubs_cache_keeps_it(place, good):
    """There every file of a model is a link to one of another name."""
    (place / "blobs").mkdir()
    for number, name in enumerate(("m.onnx", DATA)):
        shutil.copy(good / "outside" / name, place / f"blobs/{number}")
        (place / name).unlink(missing_ok=True)
        (place / name).symlink_to(f"blobs/{number}")
    words = (*VERBS[2][:-2], "--json")
    result = CliRunner().invoke(main, [*words])
    assert result.exit_code == 0, result.output
    assert '"PASS"' in result.stdout


OTHERS = {
    "unknown": (lambda it: setattr(nodes(it)[5], "op_type", "Frobnicate"), "No Op registered for"),
    "later": (
        lambda it: setattr(it.opset_import[0], "version", 99),
        "ONNX Runtime only *guarantees*",
    ),
}


@pytest.mark.parametrize("case", OTHERS)
def test_what_onnxruntime_does_not_know_is_refused_in_its_words_alone(case, place):
    change, said = OTHERS[case]
    edited(change)
    result = CliRunner().invoke(main, [*VERBS[1]])
    assert result.exit_code == 3
    assert "m.onnx: onnxruntime cannot load it: " in result.stderr
    assert said in result.stderr
    assert not {"onnxruntime_src", "FAIL", "::"} & {*result.stderr.replace("/", " ").split()}
