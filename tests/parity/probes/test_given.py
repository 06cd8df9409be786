"""A user's own inputs are read from a file, and refused by name where they do not fit."""

from __future__ import annotations

import numpy as np
import pytest

from weighbridge.converters.models import Port, Signature
from weighbridge.converters.models.families import encoder_signature
from weighbridge.errors import BadInputError, MismatchError
from weighbridge.parity.probes.given import probes_from_file

ENCODER = encoder_signature({"vocab_size": 500, "hidden_size": 8, "max_position_embeddings": 160})
BAD_FILES = {
    "missing": ({"input_ids": np.ones((1, 4), np.int64)}, "attention_mask is missing"),
    "unexpected": (
        {
            "input_ids": np.ones((1, 4), int),
            "attention_mask": np.ones((1, 4), int),
            "x": np.ones(1),
        },
        "x is unexpected",
    ),
    "rank": (
        {"input_ids": np.ones(4, int), "attention_mask": np.ones((1, 4), int)},
        "input_ids has shape",
    ),
    "dtype": (
        {"input_ids": np.ones((1, 4)), "attention_mask": np.ones((1, 4), int)},
        "input_ids holds float64",
    ),
    "beyond the table": (
        {"input_ids": np.array([[1, 500]]), "attention_mask": np.ones((1, 2), int)},
        "holds ids from 1 to 500; the model has 0 to 499",
    ),
    "negative": (
        {"input_ids": np.array([[-1, 5]]), "attention_mask": np.ones((1, 2), int)},
        "holds ids from -1 to 5",
    ),
}


def test_inputs_that_are_not_finite_are_refused(tmp_path):
    signature = Signature((Port("x", "float32", (1, 2), "hidden"),), ())
    np.savez(tmp_path / "own.npz", x=np.array([[1, np.nan]], np.float32))
    with pytest.raises(MismatchError, match="x is not finite"):
        probes_from_file(tmp_path / "own.npz", signature)


def test_own_inputs_are_read(tmp_path):
    arrays = {"input_ids": np.ones((1, 4), np.int64), "attention_mask": np.ones((1, 4), np.int64)}
    np.savez(tmp_path / "own.npz", **{f"mine/{name}": array for name, array in arrays.items()})
    (probe,) = probes_from_file(tmp_path / "own.npz", ENCODER)
    assert probe.name == "mine"
    assert np.array_equal(probe.inputs["input_ids"], arrays["input_ids"])


@pytest.mark.parametrize(("arrays", "said"), BAD_FILES.values(), ids=BAD_FILES)
def test_own_inputs_that_do_not_fit_are_refused(tmp_path, arrays, said):
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(MismatchError, match=said):
        probes_from_file(tmp_path / "own.npz", ENCODER)


def test_a_file_that_is_no_npz_is_refused(tmp_path):
    (tmp_path / "own.npz").write_text("no")
    with pytest.raises(BadInputError, match=r"own\.npz is text; expected a NumPy archive"):
        probes_from_file(tmp_path / "own.npz", ENCODER)
