"""What a configuration says of long texts is seen on a long text, or is said not to have been."""

from __future__ import annotations

import json
from types import SimpleNamespace as Config

import pytest
from click.testing import CliRunner
from transformers import Step3p7TextConfig as StepConfig

from weighbridge.cli import main
from weighbridge.converters.models.signature import causal_signature
from weighbridge.converters.models.signatures import vit_signature
from weighbridge.parity.check.verdict import Stage
from weighbridge.parity.configuration.lengths import lengths_stage, parting, tokens_of
from weighbridge.parity.probes.probes import make_probes
from weighbridge.parity.probes.thresholds import Threshold, affordable, cost, thresholds
from weighbridge.tests.support.atlas.tiny import make

SIGNATURE = causal_signature({"vocab_size": 50, "max_position_embeddings": 256})
WINDOW = Threshold("sliding_window", 32)


def run(*arguments):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    return result.exit_code, result.output


@pytest.fixture(scope="module")
def mistral(tmp_path_factory):
    """Return a tiny model whose window mlx-lm does not apply."""
    folder = tmp_path_factory.mktemp("models") / "mistral"
    return make(
        "mistral", folder, own={"sliding_window": 32, "max_position_embeddings": 256}
    ).folder


def test_a_window_that_the_class_ignores_differs_and_names_class_and_length(mistral, tmp_path):
    code, output = run("convert", "torch-to-mlx", mistral, tmp_path / "out", "--json")
    verdict = json.loads(output)["verdict"]
    structure = next(it for it in verdict["stages"] if it["name"] == "structure")
    assert (code, verdict["status"]) == (1, "DIFFERS")
    assert "from token 33 on" in structure["detail"]
    assert "mlx_lm.models.llama" in structure["detail"]
    assert "sliding_window 32" in structure["detail"]
    assert not (tmp_path / "out").exists()


def test_what_only_the_class_gets_wrong_is_published_where_that_is_accepted(mistral, tmp_path):
    target = tmp_path / "out"
    code, _ = run("convert", "torch-to-mlx", mistral, target, "--accept", "UPSTREAM")
    assert (code, target.is_dir()) == (0, True)
    manifest = json.loads((target / "weighbridge.json").read_text())
    assert manifest["verdict"]["status"] == "DIFFERS"
    assert "mlx_lm.models.llama" in manifest["verdict"]["upstream"]


def test_a_fault_of_ours_is_published_under_no_option(mistral, tmp_path):
    target = tmp_path / "out"
    run("convert", "torch-to-mlx", mistral, target, "--check", "none")
    config = json.loads((target / "config.json").read_text()) | {"rms_norm_eps": 1e-2}
    (target / "config.json").write_text(json.dumps(config))
    assert run("parity", "check", mistral, target, "--quick", "--accept", "UPSTREAM")[0] == 1


@pytest.mark.parametrize("quick", [True, False])
def test_one_probe_is_longer_than_every_length_by_no_more_than_64(quick):
    probes = make_probes(
        SIGNATURE, tokenizer=None, quick=quick, past=[Threshold("chunk", 8), WINDOW]
    )
    [long] = [it for it in probes if it.rows]
    assert tokens_of(SIGNATURE, long) == 96
    assert {*range(16), *range(24, 40), *range(88, 96)} == {*long.rows}


def test_a_length_that_no_probe_crossed_is_named_and_caps_the_verdict():
    probes = make_probes(SIGNATURE, tokenizer=None, quick=True)
    [stage] = lengths_stage([["sliding_window", 32]], SIGNATURE, probes)
    assert stage.status == "unverified"
    assert "sliding_window 32" in stage.detail


def test_a_length_beyond_all_that_a_model_takes_is_no_question():
    probes = make_probes(SIGNATURE, tokenizer=None, quick=True)
    assert lengths_stage([["sliding_window", 256]], SIGNATURE, probes) == []


def test_a_window_of_patches_is_no_length_of_a_text():
    """Swin has a ``window_size``, and takes pictures of one size."""
    signature = vit_signature({"hidden_size": 8, "image_size": 32, "num_channels": 3})
    probes = make_probes(signature, tokenizer=None, quick=True)
    assert lengths_stage([["window_size", 7]], signature, probes) == []


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"sliding_window": None}, []),
        ({"sliding_window": 4096, "use_sliding_window": False}, []),
        ({"sliding_window": 7, "layer_types": ["full_attention"]}, []),
        ({"sliding_window": 7, "layer_types": ["sliding_attention"]}, [7]),
        ({"attention_chunk_size": 8, "sliding_window": 4}, [4, 8]),
        ({"local_attention": 128}, [64]),
        (
            {
                "rope_parameters": {
                    "rope_type": "longrope",
                    "original_max_position_embeddings": 4096,
                }
            },
            [4096],
        ),
        ({"rope_parameters": {"rope_type": "llama3", "original_max_position_embeddings": 8}}, []),
        ({"rope_parameters": {"rope_type": "dynamic"}, "max_position_embeddings": 64}, [64]),
    ],
)
def test_lengths_are_those_that_some_layer_reads(config, expected):
    assert [it.tokens for it in thresholds(Config(**config))] == expected


def test_a_probe_that_costs_too_much_is_not_made():
    config = Config(sliding_window=4096, hidden_size=4096, num_attention_heads=32)
    assert affordable(config, 7_000_000_000, 32768, quick=True) == ()
    assert affordable(Config(sliding_window=32), 10_000, 256, quick=True) == (WINDOW,)


def test_a_text_costs_what_the_layer_with_most_heads_needs():
    layers = {"layer_types": ["full_attention", "sliding_attention"], "num_hidden_layers": 2}
    alike = StepConfig(**layers, num_attention_heads=8)
    differ = StepConfig(**layers, num_attention_heads=4, num_sliding_attention_heads=8)
    assert cost(differ, 10_000, 100) == cost(alike, 10_000, 100)


@pytest.mark.parametrize(
    ("allowed", "expected"), [((0.5, 9.0), WINDOW), ((9.0, 9.0), None), ((0.5, 0.5), None)]
)
def test_a_length_is_to_blame_only_where_shorter_texts_agree(allowed, expected):
    rows = [{"probe": name, "allowed": it} for name, it in zip("ab", allowed, strict=True)]
    stage = Stage("structure", "fail", "", {"rows": rows})
    assert parting([["sliding_window", 32]], {"a": 16, "b": 96}, stage) == expected
