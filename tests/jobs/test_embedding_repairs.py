"""Directories whose model file mends mlx-embeddings' class; the oracle is transformers."""

from __future__ import annotations

import warnings
from importlib import import_module

import pytest
from click.testing import CliRunner

from weighbridge.cli import main
from weighbridge.converters.libraries import find
from weighbridge.converters.libraries.repairs.catalogue import EMBEDDING
from weighbridge.converters.libraries.repairs.writing import MODEL_FILES
from weighbridge.tests.support.atlas import libraries, logits, tiny, tower_upstream

LIBRARY = "mlx-embeddings"
FILE = MODEL_FILES[LIBRARY]


def invoke(*words, code=0):
    result = CliRunner().invoke(main, [str(it) for it in words])
    assert result.exit_code == code, result.output + repr(result.exception)
    return " ".join(result.output.split())


def make(kind, folder, own=None):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tiny.make(kind, folder, own=own, gain=tiny.GAIN, library=LIBRARY)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make("qwen3", tmp_path_factory.mktemp("embeddings") / "hub")


@pytest.fixture(scope="module")
def mended(made):
    folder = made.folder.parent / "mlx"
    words = ("convert", "torch-to-mlx", made.folder, folder, "--library", LIBRARY)
    assert "reads no model_file" in invoke(*words, "--repair")
    return folder


def worst(made, folder):
    """Return the error that is the largest for its bar, as a part of it, over texts padded on both sides."""
    model, found = libraries.load(LIBRARY, folder), []
    for shape in (logits.SHORT, logits.LONG):
        given = {"input_ids": logits.tokens(shape), **libraries.padded(logits.tokens(shape))}
        wanted = libraries.reference(LIBRARY, made.model, given)
        found.append(logits.error(libraries.native(model, given), wanted.double) / wanted.bar)
    return max(found)


@pytest.mark.parametrize("kind", EMBEDDING)
def test_a_repair_is_of_a_class_that_mlx_embeddings_has(kind):
    target = find({"model_type": kind, "model_file": FILE, "sliding_window": 64})
    assert target.library == LIBRARY
    assert target.repaired
    assert issubclass(target.code().Model, import_module(target.module).Model)


@pytest.mark.heavy
@pytest.mark.parametrize("kind", EMBEDDING)
def test_a_class_computes_wrongly_and_its_repair_mends_it(kind):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        error, bar = tower_upstream.worst(kind, LIBRARY)
        assert error > bar, "upstream has mended it: take it out of EMBEDDING and run the atlas"
        error, bar = tower_upstream.worst(kind, LIBRARY, repair=True)
    assert error <= bar


def test_texts_padded_on_either_side_are_those_of_transformers(made, mended):
    assert worst(made, mended) <= 1


@pytest.mark.parametrize("both", [True, False], ids=["both ways", "causal"])
def test_the_window_holds_whichever_way_tokens_look(both, tmp_path):
    own = {"use_bidirectional_attention": both}
    made = make("gemma3_text", tmp_path / "hub", own)
    words = ("convert", "torch-to-mlx", made.folder, tmp_path / "mlx", "--library", LIBRARY)
    invoke(*words, "--repair", "--check", "none")
    assert worst(made, tmp_path / "mlx") <= 1


def test_layers_that_lie_in_folders_of_their_own_are_loaded_with_the_rest(tmp_path):
    made = make("lfm2", tmp_path / "hub")
    words = ("convert", "torch-to-mlx", made.folder, tmp_path / "mlx", "--library", LIBRARY)
    offered = invoke(*words, code=1)
    assert "will not load this" not in offered
    assert "--repair" in offered


def test_a_broken_file_in_such_a_folder_is_named(tmp_path):
    made = make("lfm2", tmp_path / "hub")
    file = made.folder / "1_Dense" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    words = ("convert", "torch-to-mlx", made.folder, tmp_path / "mlx", "--library", LIBRARY)
    invoke(*words, "--repair", code=3)


def test_the_way_back_gives_the_checkpoint_and_leaves_the_code_behind(made, mended, tmp_path):
    invoke("convert", "mlx-to-torch", mended, tmp_path / "home", "--check", "none")
    for file in made.folder.iterdir():
        assert (tmp_path / "home" / file.name).read_bytes() == file.read_bytes()
    assert not (tmp_path / "home" / FILE).exists()


@pytest.mark.parametrize("back", [False, True], ids=["there", "back"])
def test_a_check_of_two_directories_takes_them_as_the_library_does(made, mended, back):
    sides = (mended, made.folder) if back else (made.folder, mended)
    assert "PASS" in invoke("parity", "check", *sides, "--quick")


def test_other_code_is_refused_and_not_run(made, mended, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    invoke(
        *("convert", "torch-to-mlx", made.folder, "it", "--library", LIBRARY),
        *("--repair", "--check", "none"),
    )
    file = tmp_path / "it" / FILE
    file.write_text(file.read_text() + "from pathlib import Path\nPath('code-ran').touch()\n")
    assert "not what Weighbridge writes" in invoke("convert", "mlx-to-torch", "it", "out", code=3)
    assert not (tmp_path / "code-ran").exists()
