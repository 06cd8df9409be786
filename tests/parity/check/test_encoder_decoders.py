"""Models that answer a text: answers of other lengths than the text's, read piece by piece."""

from __future__ import annotations

import json
from textwrap import dedent

import pytest
import torch
from click.testing import CliRunner
from transformers import T5Config, T5ForConditionalGeneration

from weighbridge.cli import main
from weighbridge.tests.support.torch_caches import Answers, ShortSight, StaleText

SIZES = {"vocab_size": 64, "d_model": 32, "d_ff": 48, "d_kv": 8, "num_layers": 2, "num_heads": 4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return the folder of a tiny T5."""
    model = T5ForConditionalGeneration(T5Config(**SIZES, decoder_start_token_id=0))
    noise = torch.Generator().manual_seed(0)
    for value in model.parameters():
        scale = 1.5 / value.shape[-1] ** 0.5 if value.ndim > 1 else 0.1
        value.data += scale * torch.randn(value.shape, generator=noise) - (value.ndim > 1) * value
    made = tmp_path_factory.mktemp("t5")
    model.save_pretrained(made)
    return made


@pytest.fixture
def check(folder, tmp_path, monkeypatch):
    """Return what checks a class that answers against its source."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(kind):
        name = f"answers_{kind.__name__}"
        text = f"""
            from pathlib import Path
            from weighbridge.tests.support.torch_caches import {kind.__name__}

            def made():
                return {kind.__name__}(Path({str(folder)!r}))
            """
        (tmp_path / f"{name}.py").write_text(dedent(text))
        given = ["parity", "check", str(folder), f"{name}:made", "--quick", "--json"]
        result = CliRunner().invoke(main, given)
        verdict = json.loads(result.stdout)
        return result.exit_code, {it["name"]: it for it in verdict["stages"]}

    return run


def test_a_right_answer_passes_at_once_and_piece_by_piece(check):
    code, stages = check(Answers)
    assert (code, stages["structure"]["status"], stages["decoding"]["status"]) == (
        0,
        "pass",
        "pass",
    )


def test_a_text_that_is_kept_too_long_differs(check):
    code, stages = check(StaleText)
    assert (code, stages["structure"]["status"], stages["decoding"]["status"]) == (
        1,
        "pass",
        "fail",
    )
    assert "rows turned" in stages["decoding"]["detail"]


def test_a_text_longer_than_its_answer_is_read_to_its_end(check):
    code, stages = check(ShortSight)
    assert (code, stages["structure"]["status"]) == (1, "fail")
