"""Greedy texts are compared where both libraries mean the same by a token."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers

from weighbridge.tests.support.atlas import logits, tiny

PROMPT = np.array([5, 6])


@pytest.fixture(scope="module")
def glimmer(tmp_path_factory):
    return tiny.make("muse_glimmer", tmp_path_factory.mktemp("hub"), gain=tiny.GAIN).model


def test_transformers_looks_up_no_embedding_of_what_stands_for_a_picture(glimmer):
    barred = logits.placeholders(glimmer.config)
    with torch.no_grad():
        one, two, word = (glimmer(torch.tensor([[7, it]])).logits for it in (*barred, 9))
    assert torch.equal(one, two)
    assert not torch.equal(one, word)


def test_a_configuration_of_texts_alone_has_no_placeholders():
    assert logits.placeholders(transformers.LlamaConfig()) == []


@pytest.mark.parametrize(("without", "behind"), [((), 0.5), ((1,), 0.0), ((0, 1), 0.0)])
def test_a_token_that_nobody_may_choose_puts_no_other_behind(without, behind):
    rows = torch.tensor([[0.0, 4.0, 2.0]]).double()
    model = SimpleNamespace(
        double=lambda: lambda ids, **_: SimpleNamespace(logits=rows.expand(1, ids.shape[1], 3))
    )
    assert logits.behind(model, PROMPT, np.array([2, 2]), without) == behind


def test_generation_chooses_none_of_the_barred():
    import mlx.core as mx

    class Model:
        layers = ()

        def __call__(self, ids, cache):
            return mx.broadcast_to(mx.array([0.0, 4.0, 2.0]), (*ids.shape, 3))

    assert logits.greedy(Model(), PROMPT, (1,), count=3).tolist() == [2, 2, 2]
    assert logits.greedy(Model(), PROMPT, count=3).tolist() == [1, 1, 1]
