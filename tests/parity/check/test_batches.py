"""Rows padded, among others and alone: what is right in some batches only differs, and says in which."""

from __future__ import annotations

import json
from textwrap import dedent

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from transformers import BertConfig, BertModel, RobertaConfig, RobertaModel

from weighbridge.cli import main
from weighbridge.converters.models.families import encoder_signature
from weighbridge.parity.check.batches import AMONG, LEFT, RIGHT, alone_of
from weighbridge.parity.probes.probes import Probe, make_probes
from weighbridge.tests.support import batch_faults

SIZES = {
    "vocab_size": 90,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 80,
}
ENCODER = encoder_signature(SIZES)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Return the folders of a tiny encoder by its type."""
    top = tmp_path_factory.mktemp("encoders")
    made = {"bert": BertModel(BertConfig(**SIZES)), "roberta": RobertaModel(RobertaConfig(**SIZES))}
    noise = torch.Generator().manual_seed(0)
    for kind, model in made.items():
        for value in model.parameters():
            scale = 1.5 / value.shape[-1] ** 0.5 if value.ndim > 1 else 0.1
            value.data = value.data * (value.ndim == 1) + scale * torch.randn(
                value.shape, generator=noise
            )
        model.save_pretrained(top / kind)
    return top


@pytest.fixture
def check(folders, tmp_path, monkeypatch):
    """Return what checks a class of faulty batches against its source."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(fault, kind="bert", *options):
        name = f"batched_{fault.__name__}_{len([*tmp_path.iterdir()])}_{tmp_path.name}"
        text = f"""
            from pathlib import Path
            from weighbridge.tests.support.batch_faults import {fault.__name__}

            def made():
                return {fault.__name__}(Path({str(folders / kind)!r}))
            """
        (tmp_path / f"{name}.py".replace("-", "_")).write_text(dedent(text))
        given = ["parity", "check", str(folders / kind), f"{name}:made".replace("-", "_"), "--json"]
        result = CliRunner().invoke(main, [*given, *options])
        verdict = json.loads(result.stdout)
        found = next((it for it in verdict["stages"] if it["name"] == "batch"), None)
        return result.exit_code, verdict, found

    return run


@pytest.mark.parametrize("options", [("--quick",), pytest.param((), marks=pytest.mark.heavy)])
@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_a_right_encoder_passes_in_every_batch(check, kind, options):
    code, verdict, found = check(batch_faults.Right, kind, *options)
    assert (code, verdict["status"], found["status"]) == (0, "PASS", "pass"), verdict["stages"]
    assert found["detail"].startswith(f"{AMONG} and {RIGHT}")


@pytest.mark.parametrize("fault", batch_faults.PADDED)
def test_padding_that_is_seen_differs_and_is_named(check, fault):
    code, _, found = check(fault, "bert", "--quick")
    assert (code, found["status"]) == (1, "fail")
    assert found["detail"].startswith(f"only {RIGHT} and {LEFT} are wrong")


def test_padding_on_the_left_taken_for_the_right_differs(check):
    code, _, found = check(batch_faults.CountsLengths, "bert", "--quick")
    assert (code, found["status"]) == (1, "fail")
    assert found["detail"].startswith(f"only {LEFT} are wrong")


def test_positions_that_count_padding_differ(check):
    code, _, found = check(batch_faults.CountsAllTokens, "roberta", "--quick")
    assert (code, found["status"]) == (1, "fail")
    assert found["detail"].startswith(f"only {LEFT} are wrong")


def test_rows_coupled_by_the_batch_differ(check):
    code, verdict, _ = check(batch_faults.Coupled, "bert", "--quick")
    assert (code, verdict["status"]) == (1, "DIFFERS")


@pytest.mark.parametrize("fault", batch_faults.ALONE)
def test_a_row_that_is_wrong_alone_differs(check, fault):
    code, verdict, found = check(fault, "bert", "--quick")
    structure = next(it for it in verdict["stages"] if it["name"] == "structure")
    assert (code, structure["status"], found["status"]) == (1, "pass", "fail")
    assert "alone" in found["detail"]


def reach(verdict):
    return next(it for it in verdict["stages"] if it["name"] == "reach")


@pytest.mark.parametrize("fault", [batch_faults.IgnoresTypes, batch_faults.TurnsTypes])
def test_token_types_that_a_class_takes_and_treats_otherwise_differ(check, fault):
    code, verdict, _ = check(fault, "bert", "--quick")
    assert (code, reach(verdict)["status"]) == (1, "fail")
    assert "token types 0 to 1" in reach(verdict)["detail"]


def test_token_types_are_given_where_the_class_takes_them(check):
    code, verdict, _ = check(batch_faults.TakesTypes, "bert", "--quick")
    assert (code, verdict["status"]) == (0, "PASS")
    assert "token types 0 to 1" in reach(verdict)["detail"]
    missed = check(batch_faults.Right, "bert", "--quick")[1]["provenance"]["not_checked"]
    assert "token_type_ids other than 0: the candidate takes none" in missed


def test_a_short_row_is_cut_out_without_its_padding():
    (probe,) = make_probes(ENCODER, tokenizer=None, quick=True)
    alone = alone_of(ENCODER, None, [probe])
    assert alone.probe.inputs["input_ids"].shape == (1, 7)
    assert alone.probe.inputs["attention_mask"].all()
    assert np.array_equal(alone.probe.inputs["input_ids"][0], probe.inputs["input_ids"][1, :7])


def test_a_batch_of_one_has_no_row_to_run_alone():
    ids = np.ones((1, 4), np.int64)
    one = Probe("one", {"input_ids": ids, "attention_mask": ids})
    assert alone_of(ENCODER, None, [one]) is None
