"""Probes are real text, in several lengths, padded both ways; structured signals elsewhere."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from weighbridge.converters.models import Port, Signature
from weighbridge.converters.models.families import encoder_signature
from weighbridge.converters.models.signature import causal_signature
from weighbridge.errors import UnsupportedError
from weighbridge.parity.probes.probes import LARGEST, make_probes, masks_of, stand_ins
from weighbridge.parity.probes.sentences import SENTENCES
from weighbridge.parity.text.tokenizers import load_tokenizer

ENCODER = encoder_signature({"vocab_size": 500, "hidden_size": 8, "max_position_embeddings": 160})
IDS = Port("ids", "int64", ("batch", "sequence"), "token_ids", (("vocabulary", 500),))
SERIES = [("batch", "time"), ("batch", 3, "time"), ("batch", 96, 2), (1, 64)]


def mask_of(probe):
    """Return the mask of the encoder's one output."""
    return masks_of(ENCODER, probe)[ENCODER.outputs[0].name]


@pytest.fixture(scope="module")
def probes(tiny_bert_dir):
    return make_probes(ENCODER, tokenizer=tiny_bert_dir)


def padding(probe):
    """Return whether a row of PROBE is padded on the left, on the right."""
    mask = mask_of(probe)
    return bool((mask[:, 0] == 0).any()), bool((mask[:, -1] == 0).any())


def test_lengths_reach_64_tokens_and_beyond_half_of_the_positions(probes):
    lengths = [probe.inputs["input_ids"].shape[1] for probe in probes]
    assert min(lengths) < 16
    assert any(length >= 64 for length in lengths)
    assert 80 < max(lengths) <= 160


def test_rows_are_padded_on_the_right_and_on_the_left(probes):
    assert {padding(probe) for probe in probes} == {(False, False), (True, False), (False, True)}


def test_the_text_is_what_the_tokenizer_makes_of_the_sentences(probes, tiny_bert_dir):
    encode = load_tokenizer(tiny_bert_dir).encode
    known = {number for sentence in SENTENCES for number in encode(sentence)}
    used = {int(number) for probe in probes for number in probe.inputs["input_ids"].ravel()}
    assert used <= known | {0}
    assert len(used) > 30


def test_the_same_arguments_make_the_same_probes():
    first, second = (make_probes(ENCODER, tokenizer=None, seed=3) for _ in range(2))
    assert all(
        np.array_equal(one.inputs[name], other.inputs[name])
        for one, other in zip(first, second, strict=True)
        for name in one.inputs
    )


def test_without_a_tokenizer_ids_avoid_the_special_ones_and_fit_the_vocabulary():
    for probe in make_probes(ENCODER, tokenizer=None):
        used = probe.inputs["input_ids"][mask_of(probe) == 1]
        assert used.min() >= 62
        assert used.max() < 500


def test_a_model_without_a_mask_gets_no_padding():
    for probe in make_probes(Signature((IDS,), ()), tokenizer=None):
        assert (probe.inputs["ids"] > 0).all()


def test_fixed_sizes_are_kept():
    ports = tuple(
        Port(role, "int32", (2, 33), role, (("vocabulary", 90),))
        for role in ("token_ids", "attention_mask", "token_types", "positions")
    )
    probes = make_probes(Signature(ports, ()), tokenizer=None)
    assert {array.shape for probe in probes for array in probe.inputs.values()} == {(2, 33)}
    assert len(probes) >= 3


@pytest.mark.parametrize("shape", SERIES, ids=str)
def test_series_are_finite_and_structured(shape):
    signature = Signature((Port("x", "float32", shape, "series"),), ())
    for probe in make_probes(signature, tokenizer=None):
        series = probe.inputs["x"]
        assert series.dtype == np.float32
        assert np.isfinite(series).all()
        axis = len(shape) - 1 if "time" in shape else int(np.argmax(series.shape[1:])) + 1
        steps = np.diff(series, axis=axis)
        if series.shape[axis] > 32:  # noise alone would have steps sqrt(2) as wide as itself
            assert np.std(steps) < np.std(series)


def test_every_row_ends_as_the_tokenizer_ends_a_text(probes, tiny_bert_dir):
    end = load_tokenizer(tiny_bert_dir).encode("the end")[-1]
    for probe in probes:
        for ids, mask in zip(probe.inputs["input_ids"], mask_of(probe), strict=True):
            assert ids[mask == 1][-1] == end


def test_a_large_vocabulary_gets_shorter_probes():
    """Logits of all of it in float64 are to be kept."""
    ids = replace(IDS, upper=(("vocabulary", 500), ("sequence", 4096)))

    def longest(width):
        outputs = (Port("logits", "float32", ("batch", "sequence", width), "logits"),)
        made = make_probes(Signature((ids,), outputs), tokenizer=None)
        return max(probe.inputs["ids"].shape[1] for probe in made)

    wide = 1 << 17
    assert longest(wide) * wide <= LARGEST < longest(8) * wide


def test_a_quick_check_has_one_small_probe_padded_both_ways():
    (probe,) = make_probes(ENCODER, tokenizer=None, quick=True)
    assert mask_of(probe).sum(1).tolist() == [16, 7, 7]
    assert mask_of(probe)[:, 0].tolist() == [1, 1, 0]


def test_an_unknown_role_is_refused_by_name():
    signature = Signature((Port("x", "float32", (1, 2), "telepathy"),), ())
    with pytest.raises(UnsupportedError, match="telepathy"):
        make_probes(signature, tokenizer=None)


def test_ids_that_stand_for_pictures_are_in_no_text_that_is_drawn():
    config = {"vocab_size": 136, "image_token_id": 130, "text_config": {"audio_token_index": 132}}
    taken = causal_signature(config)
    reserved = stand_ins(config)
    drawn, left = (
        {
            int(it)
            for probe in make_probes(taken, tokenizer=None, **ways)
            for it in probe.inputs["input_ids"].flat
        }
        for ways in ({}, {"reserved": reserved})
    )
    assert drawn >= reserved == {130, 132}
    assert drawn - left == reserved
