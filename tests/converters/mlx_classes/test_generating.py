"""Texts of the classes with a decoder are transformers' own greedy ones, with and without padding."""

from __future__ import annotations

import json
import shutil

import mlx.core as mx
import numpy as np
import pytest
import torch
import transformers

import weighbridge
from weighbridge.converters.mlx_classes.generating import Generation

from .conftest import make

COUNT = 32
T5, WHISPERS = "T5ForConditionalGeneration", "WhisperForConditionalGeneration"


def transformers_own(folder, name, inputs, **settings):
    """Return the tokens that transformers generates greedily.

    Without its cache, whose layers are those of T5's encoder, so that deeper decoders crash.
    """
    model = getattr(transformers, name.partition("-")[0]).from_pretrained(folder).eval()
    given = {key: torch.from_numpy(value) for key, value in inputs.items()}
    with torch.no_grad():  # not Whisper's own, which cuts what it returns
        found = transformers.GenerationMixin.generate(
            model, **given, max_new_tokens=COUNT, do_sample=False, use_cache=False, **settings
        )
    return found.numpy()


def settled(folder, target, **said):
    """Copy FOLDER to TARGET, where ``generation_config.json`` also has what is SAID."""
    shutil.copytree(folder, target)
    file = target / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | said))
    return target


def texts(rows=3):
    noise = np.random.default_rng(2)
    ids, mask = noise.integers(3, 60, (rows, 33)), np.ones((rows, 33), np.int64)
    mask[1, 20:] = ids[1, 20:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def test_a_text_of_t5_is_transformers_own_past_its_farthest_distance(directories, tmp_path):
    inputs, start = texts(), {"decoder_start_token_id": 0}
    hub, mlx = (
        settled(it, tmp_path / str(place), **start) for place, it in enumerate(directories(T5))
    )
    wanted = transformers_own(hub, T5, inputs)
    model = weighbridge.mlx_model(mlx)
    found = np.array(model.generate(*map(mx.array, inputs.values()), count=COUNT))
    assert wanted.shape[1] > 30
    np.testing.assert_array_equal(found, wanted)


def test_rows_that_end_are_padded_until_the_last_one_ends(directories, tmp_path):
    (hub, mlx), inputs = directories(T5), [mx.array(it) for it in texts().values()]
    free = weighbridge.mlx_model(mlx).generate(*inputs, start=mx.zeros((3, 1), mx.int32), count=9)
    said = {"decoder_start_token_id": 0, "eos_token_id": free[:, 9].tolist()}
    hub, mlx = settled(hub, tmp_path / "hub", **said), settled(mlx, tmp_path / "mlx", **said)
    wanted = transformers_own(hub, T5, texts())
    found = weighbridge.mlx_model(mlx).generate(*inputs, count=COUNT)
    assert wanted.shape[1] <= 10
    np.testing.assert_array_equal(np.array(found), wanted)


def test_a_text_without_a_beginning_is_refused(directories):
    model = weighbridge.mlx_model(directories(T5)[1])
    with pytest.raises(ValueError, match="start="):
        model.generate(mx.array(texts()["input_ids"]))


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    """A Whisper with room for a text, and its directory in MLX."""
    folder = tmp_path_factory.mktemp("whisper")
    make(WHISPERS, folder / "hub", max_target_positions=60, eos_token_id=2)
    weighbridge.convert(folder / "hub", folder / "mlx", to="mlx", check="none")
    return folder


def test_a_text_of_whisper_is_transformers_own_without_what_is_banned(whisper, tmp_path):
    features = np.random.default_rng(3).normal(size=(2, 6, 18)).astype(np.float32)
    inputs, begin = {"input_features": features}, np.array([[1, 5, 7]] * 2)
    free = np.array(weighbridge.mlx_model(whisper / "mlx").generate(mx.array(features), count=4))
    said = {"suppress_tokens": [int(free[0, 4])], "begin_suppress_tokens": [int(free[1, 1])]}
    for part in ("hub", "mlx"):
        settled(whisper / part, tmp_path / part, **said)
    model = weighbridge.mlx_model(tmp_path / "mlx")
    for start in (None, begin):
        own = {} if start is None else {"decoder_input_ids": torch.from_numpy(start)}
        wanted = transformers_own(tmp_path / "hub", WHISPERS, inputs, **own)
        given = None if start is None else mx.array(start)
        found = model.generate(mx.array(features), count=COUNT, start=given)
        np.testing.assert_array_equal(np.array(found), wanted)
        assert said["suppress_tokens"][0] not in wanted
    with pytest.raises(ValueError, match="room for 59 tokens"):
        model.generate(mx.array(features), count=60)


def test_what_says_nothing_bans_no_word_and_begins_no_text():
    said = {"decoder_start_token_id": None, "bos_token_id": 5, "suppress_tokens": [-1]}
    generation = Generation.from_dict(said)
    found = generation.greedy(lambda _: mx.arange(4.0)[None], generation.first(1, None), 2)
    assert found.tolist() == [[5, 3, 3]]


def test_settings_that_are_not_done_here_are_refused_by_name():
    off = {"repetition_penalty": 1.0, "min_length": 0, "forced_decoder_ids": None}
    assert Generation.from_dict(off | {"bos_token_id": 5}).first(2, None).tolist() == [[5], [5]]
    asked = {"repetition_penalty": 1.2, "forced_decoder_ids": [[1, 3]], "bos_token_id": 5}
    generation = Generation.from_dict(off | asked)
    with pytest.raises(ValueError, match="forced_decoder_ids, repetition_penalty of generation"):
        generation.first(2, None)
    with pytest.raises(ValueError, match=r"^repetition_penalty of .* is not done here"):
        generation.first(2, mx.array([[5, 3]]))
