"""The recipe of late interaction: trained, merged, ranked and searched through what a user types."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.cli import main
from weighbridge.trainers import bundled
from weighbridge.trainers.bundles import docstrings
from weighbridge.trainers.config import load_config
from weighbridge.trainers.data.hybrid import best_share, lexical_scores, mixed
from weighbridge.trainers.data.retrieval import ranks_of
from weighbridge.trainers.objectives.maxsim import MaxSim
from weighbridge.trainers.runs.loop import make_step
from weighbridge.trainers.tasks import build_task

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))
from search import Encoder, Index, paragraphs

WORDS = (
    "read",
    "file",
    "path",
    "sum",
    "list",
    "sort",
    "key",
    "tree",
    "open",
    "name",
    "text",
    "mean",
)


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Let a narrow model and a few pairs stand for those of the recipe."""

    def write_pairs(out):
        generator = np.random.default_rng(4)
        for split in ("train", "validation", "test"):
            rows = []
            for number in range(16):
                words = generator.choice(WORDS, 5, replace=False).tolist()
                document = f"def {split}{number} {words[4]} {words[0]}"
                rows.append(json.dumps({"query": " ".join(words), "document": document}))
            (out / f"{split}.jsonl").write_text("\n".join(rows) + "\n")

    monkeypatch.setenv("WEIGHBRIDGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(docstrings, "write_pairs", write_pairs)
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 32, "vocab_size": 200}
    monkeypatch.setattr(docstrings, "LATE", docstrings.LATE | sizes)
    return tmp_path


@pytest.mark.heavy
def test_the_recipe_trains_and_its_merge_ranks_as_mlx_does(small):
    """24 of 24 projections are merged, and PyTorch puts the documents in the order of the trained model."""
    how = ["steps=3", "batch_size=8", "validate_every=3", "checkpoint_every=3"]
    options = [part for one in how for part in ("--set", one)]
    run, tuned = small / "run", small / "tuned"
    train = CliRunner().invoke(
        main, ["train", str(run), "--recipe", "xtr", "--backend", "mlx", *options]
    )
    assert train.exit_code == 0, train.output
    config = load_config("xtr", how)
    merge = CliRunner().invoke(main, ["merge", config.model, str(run), str(tuned), "--json"])
    assert merge.exit_code == 0, merge.output
    manifest = json.loads((tuned / "weighbridge.json").read_text())
    assert len(manifest["merged"]) == 24
    task = build_task(config)
    step = make_step("mlx", task, config)
    step.assign(best_of(run))
    pairs = task.splits["test"]
    live = task.objective.measure(step, pairs, 8)
    encoder = Encoder(tuned)
    sides = (encoder([pair[side] for pair in pairs.pairs]) for side in (0, 1))
    ranks = ranks_of(MaxSim(torch.nn.Identity()).scored(*sides))
    assert np.array_equal(1 / live.each, ranks)


def best_of(run):
    from safetensors.numpy import load_file

    (file,) = (run / "checkpoints").glob("best*/*.safetensors")
    return load_file(file)


def test_the_recipe_names_what_is_made_and_adapts_24_projections(small):
    config = load_config("xtr")
    bundled.provide(config.sources())
    task = build_task(config)
    assert len(task.updates) == 24
    assert config.objective.width == 32


def test_words_alone_find_what_repeats_them():
    documents = ["def read_file(path)", "def sort_list(keys)", "def sum(numbers)"]
    scores = lexical_scores(["read a file", "nothing of it"], documents)
    assert scores[0].argmax() == 0
    assert not scores[1].any()


@given(st.integers(0, 100))
def test_a_share_of_one_ranks_by_meaning_and_of_none_by_words(seed):
    dense, words = np.random.default_rng(seed).normal(size=(2, 6, 6))
    assert np.array_equal(ranks_of(mixed(dense, words, 1.0)), ranks_of(dense))
    assert np.array_equal(ranks_of(mixed(dense, words, 0.0)), ranks_of(words))


def test_the_share_is_that_of_the_better_side():
    right, wrong = np.eye(5), 1 - np.eye(5)
    assert best_share(right, wrong) > 0.5 > best_share(wrong, right)


def test_a_folder_is_searched_and_its_index_kept_until_a_file_changes(small):
    bundled.provide(load_config("xtr").sources())
    model, folder = Path(load_config("xtr").model), small / "notes"
    folder.mkdir()
    (folder / "a.md").write_text("read the text file\n\nsort the list by key\n\nx")
    (folder / "b.bin").write_text("read the text file")
    assert paragraphs(folder / "a.md") == ["read the text file", "sort the list by key"]
    encoder = Encoder(model)
    index = Index.of(folder, encoder, model)
    assert index.search("sort a list", encoder, 1)[0].text == "sort the list by key"
    kept = (folder / ".search.npz").read_bytes()
    assert np.array_equal(Index.of(folder, None, model).embeddings, index.embeddings)
    (folder / "a.md").write_text("open the path by name")
    assert Index.of(folder, encoder, model).texts == ["open the path by name"]
    assert (folder / ".search.npz").read_bytes() != kept
