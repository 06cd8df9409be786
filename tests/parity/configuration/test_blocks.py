"""A length too large for a run of the whole model is crossed on one block of each kind."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

from weighbridge.cli import main
from weighbridge.converters.runtimes.blocks.kinds import one_of_each, outermost
from weighbridge.errors import UnsupportedError
from weighbridge.parity.probes import thresholds
from weighbridge.parity.probes.thresholds import Cost
from weighbridge.tests.support.atlas.tiny import make

HEADS = {"num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 8, "hidden_size": 64}


def converted(kind, folder, **own):
    """Return the verdict of converting a tiny model of a KIND."""
    source = make(kind, folder / kind, own=own).folder
    arguments = ["convert", "torch-to-mlx", str(source), str(folder / "out"), "--json"]
    result = CliRunner().invoke(main, arguments)
    verdict = json.loads(result.stdout)["verdict"]
    return verdict["status"], {it["name"]: it for it in verdict["stages"]}, verdict["upstream"]


@pytest.fixture
def dear(monkeypatch):
    """Let every run of a whole model past a window be too expensive."""
    monkeypatch.setattr(thresholds, "QUICK", Cost(0, 0))


@pytest.mark.usefixtures("dear")
def test_a_window_that_the_class_ignores_differs_on_one_block(tmp_path):
    status, stages, upstream = converted("mistral", tmp_path, sliding_window=32)
    lengths = stages["lengths"]
    assert (status, stages["structure"]["status"], lengths["status"]) == ("DIFFERS", "pass", "fail")
    assert "from token 33 on" in lengths["detail"]
    assert "sliding_window 32" in lengths["detail"]
    assert "mlx_lm.models.llama" in lengths["detail"]
    assert "mlx_lm.models.llama" in upstream


@pytest.mark.heavy
@pytest.mark.usefixtures("dear")
def test_what_only_the_class_gets_wrong_on_one_block_is_published_where_accepted(tmp_path):
    source = make("mistral", tmp_path / "mistral", own={"sliding_window": 32}).folder
    asked = ["convert", "torch-to-mlx", str(source), str(tmp_path / "out"), "--json"]
    result = CliRunner().invoke(main, [*asked, "--accept", "UPSTREAM"])
    verdict = json.loads(result.stdout)["verdict"]
    assert (result.exit_code, verdict["status"]) == (0, "DIFFERS")
    assert "mlx_lm.models.llama" in verdict["upstream"]
    assert (tmp_path / "out" / "config.json").is_file()


@pytest.mark.usefixtures("dear")
@pytest.mark.parametrize("kind", ["exaone4", "cohere2"])
def test_a_window_that_the_class_honours_passes_on_one_block_of_each_kind(kind, tmp_path):
    status, stages, _ = converted(kind, tmp_path, sliding_window=32)
    assert (status, stages["lengths"]["status"]) == ("PASS", "pass")
    assert stages["lengths"]["figures"]["blocks"] == [0, 1]


@pytest.mark.usefixtures("dear")
def test_a_captured_model_has_no_blocks_and_stays_unverified(tmp_path, monkeypatch):
    monkeypatch.setattr("weighbridge.converters.runtimes.mlx.misfits", lambda _: ["no class"])
    monkeypatch.setattr(
        "weighbridge.converters.runtimes.native.classes.misfits", lambda _: ["no class"]
    )
    source = make(
        "mistral", tmp_path / "mistral", own={"sliding_window": 32, "num_hidden_layers": 1}
    ).folder
    arguments = ["convert", "torch-to-mlx", source, tmp_path / "out", "--json"]
    result = CliRunner().invoke(main, [*map(str, arguments)])
    stages = json.loads(result.stdout)["verdict"]["stages"]
    [lengths] = [it for it in stages if it["name"] == "lengths"]
    assert lengths["status"] == "unverified"
    assert "no blocks of its own" in lengths["detail"]


@pytest.mark.heavy
@pytest.mark.parametrize("window", [2047, 4096])
@pytest.mark.parametrize(
    ("kind", "expected"), [("mistral", ("DIFFERS", "fail")), ("exaone4", ("PASS", "pass"))]
)
def test_windows_of_real_models_are_crossed_by_blocks(
    kind, expected, window, tmp_path, monkeypatch
):
    memory = 24 * 8 * (window + 63) ** 2  # what eight heads may take, less a little
    monkeypatch.setattr(thresholds, "QUICK", Cost(4e11, memory))
    own = HEADS | {"sliding_window": window, "max_position_embeddings": 8192}
    status, stages, _ = converted(kind, tmp_path, **own)
    assert (status, stages["lengths"]["status"]) == expected


@pytest.mark.heavy
@pytest.mark.parametrize("window", [2047, 4096])
@pytest.mark.parametrize(
    ("kind", "expected"), [("mistral", ("DIFFERS", "fail")), ("exaone4", ("PASS", "pass"))]
)
def test_windows_of_thin_models_are_crossed_by_the_whole_model(kind, expected, window, tmp_path):
    own = {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 32, "hidden_size": 32}
    own |= {"sliding_window": window, "max_position_embeddings": 8192}
    status, stages, _ = converted(kind, tmp_path, **own)
    assert (status, stages["structure"]["status"]) == expected
    probes = [row["probe"] for row in stages["structure"]["figures"]["rows"]]
    assert any(name.startswith("past sliding_window") for name in probes)


def test_blocks_are_alike_whose_settings_are_on_both_sides():
    source = [{"window": 8, "number": 0}, {"window": None, "number": 1}, {"window": 8, "number": 2}]
    other = [{"window": 8}, {"window": None}, {"window": None}]
    assert one_of_each(source) == [0, 1]
    assert one_of_each(source, other) == [0, 1, 2]


def test_blocks_are_the_one_outermost_list_of_their_number():
    block = SimpleNamespace()
    rows = [
        ("model.layers.0.experts", [block] * 2),
        ("model.layers", [block] * 2),
        ("heads", [block]),
    ]
    assert len(outermost(rows, 2)) == 2
    with pytest.raises(UnsupportedError, match=r"encoder\.layers, decoder\.layers"):
        outermost([("encoder.layers", [block] * 2), ("decoder.layers", [block] * 2)], 2)


def test_one_block_at_some_positions_gives_what_it_gives_in_a_whole_run(tmp_path):
    import torch

    from weighbridge.converters.runtimes.blocks.torch import blocks_of, run_block

    model = make("mistral", tmp_path / "mistral", own={"sliding_window": 16}).model
    ids, rows, seen = torch.arange(40)[None], (3, 17, 39), {}

    def states(shape):
        return np.random.default_rng(0).normal(size=shape)

    def record(_, args, kwargs, out):
        seen["whole"] = out[:, list(rows)].detach().numpy()

    def begin(_, args, kwargs):
        return (torch.from_numpy(states(tuple(args[0].shape))).float(), *args[1:]), kwargs

    last = model.model.layers[2]
    handles = [
        last.register_forward_pre_hook(begin, with_kwargs=True),
        last.register_forward_hook(record, with_kwargs=True),
    ]
    with torch.no_grad():
        model(ids)
        for handle in handles:
            handle.remove()
        found = run_block(blocks_of(model, 4), 2, lambda: model(ids), states, rows)
    np.testing.assert_allclose(found, seen["whole"], rtol=1e-5, atol=1e-5)
    assert "forward" not in vars(last)
