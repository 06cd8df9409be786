"""Words of one concept are found in any spelling, and no phrase means two things."""

from collections import Counter

import pytest

from weighbridge.converters.maps.infer.synonyms import CONCEPTS, PIECES
from weighbridge.converters.maps.infer.tokens import alike, concepts, likeness


@pytest.mark.parametrize(
    "names",
    [
        ("self_attn.q_proj", "attention.query", "attn.to_q", "SelfAttention.wq"),
        ("input_layernorm", "ln_1", "norm1", "attention_norm"),
        ("mlp.gate_up_proj", "ffn.w13"),
        ("final_layer_norm", "ln_f", "normF".replace("F", "_f")),
    ],
)
def test_one_concept_has_many_spellings(names):
    assert len({concepts(name) for name in names}) == 1


def test_no_phrase_stands_for_two_concepts():
    phrases = Counter(p.strip() for row in CONCEPTS.values() for p in set(row.split(",")))
    assert [phrase for phrase, count in phrases.items() if count > 1] == []


def test_pieces_are_concepts():
    assert {
        concept for row in PIECES.values() for concept in row
    } | PIECES.keys() <= CONCEPTS.keys()


def test_an_abbreviation_is_like_its_word_and_numbers_are_only_like_themselves():
    assert 0 < alike("embd", "embedded") < 1
    assert alike("1", "10") == 0


def test_rare_words_count_more():
    weight = {"zork": 3.0, "weight": 0.1}
    assert likeness(("zork", "a"), ("zork", "b"), weight) > likeness(
        ("weight", "a"), ("weight", "b"), weight
    )
