"""A large model is checked in full on few tokens, a small one on every probe."""

from __future__ import annotations

import pytest

from weighbridge.converters.models.signature import causal_signature
from weighbridge.parity.probes.budget import tokens_of, within
from weighbridge.parity.probes.probes import layouts, make_probes


@pytest.mark.parametrize("tokens", [20, 128, 400, 900])
def test_layouts_have_no_more_tokens_than_allowed(tokens):
    chosen = within(layouts(4096), tokens)
    assert 0 < sum(map(tokens_of, chosen)) <= tokens
    assert chosen[0].name == "short"


def test_all_layouts_are_kept_where_they_fit():
    assert within(layouts(512), 10_000) == [*layouts(512)]


def test_a_batch_is_kept_beside_a_long_text():
    signature = causal_signature({"vocab_size": 99, "max_position_embeddings": 4096})
    probes = make_probes(signature, tokenizer=None, tokens=128)
    shapes = [probe.inputs["input_ids"].shape for probe in probes]
    assert [shape[0] for shape in shapes] == [1, 1, 4]
    assert shapes[1] == (1, 80)
