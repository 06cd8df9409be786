"""Series from .npz files."""

from __future__ import annotations

import numpy as np
import pytest

from weighbridge.errors import BadInputError, MismatchError, UnsupportedError, UntrustedError
from weighbridge.trainers.data.series import Series, read_arrays

GOOD = {"x": np.arange(6.0).reshape(3, 2), "y": np.arange(3)}
BAD = {
    "z is missing; the file has x, y": GOOD,
    "z: 1 of 3 numbers are not finite": GOOD | {"z": np.array([1, np.nan, 2])},
    r"z: bool\[3\] is not an array of numbers": GOOD | {"z": np.array([True, False, True])},
    "different numbers of examples": GOOD | {"z": np.zeros(4)},
}


def test_rows_of_all_arrays_go_together(tmp_path):
    np.savez(tmp_path / "s.npz", **GOOD)
    series = Series(read_arrays(tmp_path / "s.npz", ["x", "y"]))
    batch = series.batch([2, 0])
    assert batch.inputs["x"].tolist() == [[4, 5], [0, 1]]
    assert batch.inputs["y"].tolist() == [2, 0]
    assert batch.inputs["y"].dtype == np.float32
    assert (len(series), batch.rows, batch.tokens) == (3, 2, 6)


@pytest.mark.parametrize(("message", "arrays"), BAD.items())
def test_arrays_that_do_not_fit_are_refused(tmp_path, message, arrays):
    np.savez(tmp_path / "s.npz", **arrays)
    with pytest.raises(MismatchError, match=message):
        read_arrays(tmp_path / "s.npz", ["x", "z"])


@pytest.mark.parametrize("content", [b"", b"PK", b"\x93NUMPY", None])
def test_a_file_of_another_kind_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "s.npz").write_bytes(content)
    with pytest.raises(BadInputError, match=r"s\.npz"):
        read_arrays(tmp_path / "s.npz", ["x"])


def test_pickles_are_never_opened(tmp_path):
    np.savez(tmp_path / "s.npz", x=np.array([{}], dtype=object))
    with pytest.raises(UntrustedError, match="holds Python objects"):
        read_arrays(tmp_path / "s.npz", ["x"])


def test_texts_are_no_series_and_are_let_alone_where_they_are_not_needed(tmp_path):
    np.savez(tmp_path / "s.npz", **GOOD, names=np.array(["a", "b", "c"]))
    assert list(read_arrays(tmp_path / "s.npz", ["x", "y"])) == ["x", "y"]
    with pytest.raises(UnsupportedError, match="tensor names: dtype <U1"):
        read_arrays(tmp_path / "s.npz", ["names"])


def test_the_digest_follows_the_numbers():
    one, two = np.zeros((2, 2)), np.zeros((2, 2))
    two[1, 1] = 1
    assert (
        Series({"x": one}).digest == Series({"x": one.copy()}).digest != Series({"x": two}).digest
    )
