"""Series from .npz files."""

from __future__ import annotations

import numpy as np
import pytest

from weighbridge.errors import BadInputError, MismatchError, UnsupportedError, UntrustedError
from weighbridge.trainers.config import validate
from weighbridge.trainers.data.context import Context
from weighbridge.trainers.data.reading import read_splits
from weighbridge.trainers.data.series import Series, read_arrays

GOOD = {"x": np.arange(6.0).reshape(3, 2), "y": np.arange(3)}
BAD = {
    "z is missing; the file has x, y": GOOD,
    r"z: bool\[3\] is not an array of numbers": GOOD | {"z": np.array([True, False, True])},
    "different numbers of examples": GOOD | {"z": np.zeros(4)},
}


def read(folder, columns, **section):
    """Read the training split of a section whose files are all ``s.npz``."""
    path = str(folder / "s.npz")
    data = {"kind": "series", "train": path, "validation": path, "columns": columns} | section
    config = validate({"model": "m", "data": data, "objective": "regression"})
    return read_splits(config.data, Context())["train"]


def test_rows_of_all_arrays_go_together(tmp_path):
    np.savez(tmp_path / "s.npz", **GOOD)
    series = read(tmp_path, {"x": "x", "y": "y"})
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


DTYPES = {  # columns, dtypes asked for -> what they are
    "as they are": ({"series": "x", "labels": "y"}, {}, ["float32", "int64"]),
    "targets": ({"series": "x", "target": "y"}, {}, ["float32", "float32"]),
    "asked for": ({"a": "x", "b": "y"}, {"a": "int32", "b": "float16"}, ["int32", "float16"]),
}


@pytest.mark.parametrize("case", DTYPES)
def test_columns_have_the_dtypes_asked_for(tmp_path, case):
    np.savez(tmp_path / "s.npz", **GOOD)
    columns, dtypes, wanted = DTYPES[case]
    inputs = read(tmp_path, columns, dtypes=dtypes).batch([2]).inputs
    assert [str(array.dtype) for array in inputs.values()] == wanted
    assert [array.tolist() for array in inputs.values()] == [[[4, 5]], [2]]


def test_numbers_that_are_not_whole_are_refused_where_whole_ones_are_wanted(tmp_path):
    np.savez(tmp_path / "s.npz", x=np.array([0.5, 1.0, 1.5]))
    with pytest.raises(MismatchError, match="labels: 2 of 3 numbers are not whole, for int64"):
        read(tmp_path, {"labels": "x"}, dtypes={"labels": "int64"})


HOLES = {
    "series": np.array([[1, np.nan], [2, 3], [np.inf, 4]]),
    "target": np.array([1.0, 2, np.nan]),
}
COLUMNS = {"series": "series", "target": "target"}


def test_numbers_that_are_not_finite_are_refused_with_their_counts(tmp_path):
    np.savez(tmp_path / "s.npz", **HOLES)
    with pytest.raises(MismatchError) as caught:
        read(tmp_path, COLUMNS)
    assert caught.value.problems == (
        "series: 2 of 6 numbers are not finite",
        "target: 1 of 3 numbers are not finite",
    )


def test_numbers_beyond_the_dtype_are_not_finite(tmp_path):
    np.savez(tmp_path / "s.npz", x=np.array([1e300, 1]))
    with pytest.raises(MismatchError, match="x: 1 of 2 numbers are not finite"):
        read(tmp_path, {"x": "x"})


def test_examples_with_holes_are_left_out_and_counted(tmp_path):
    np.savez(tmp_path / "s.npz", **HOLES)
    series = read(tmp_path, COLUMNS, nan="drop")
    assert series.batch([0]).inputs["series"].tolist() == [[2, 3]]
    assert series.report == {"examples": 1, "dropped": 2}
    np.savez(tmp_path / "s.npz", x=np.array([np.nan, np.nan]))
    with pytest.raises(BadInputError, match="every example has a number that is not finite"):
        read(tmp_path, {"x": "x"}, nan="drop")


def test_holes_are_replaced_and_counted_but_never_in_a_target(tmp_path):
    np.savez(tmp_path / "s.npz", **HOLES | {"target": np.arange(3)})
    series = read(tmp_path, COLUMNS, nan="replace")
    assert series.arrays["series"].tolist() == [[1, 0], [2, 3], [0, 4]]
    assert series.report == {"examples": 3, "replaced": 2}
    np.savez(tmp_path / "s.npz", **HOLES)
    with pytest.raises(MismatchError, match=r"data\.nan: drop leaves out the examples") as caught:
        read(tmp_path, COLUMNS, nan="replace")
    assert caught.value.problems == ("target: 1 of 3 numbers are not finite",)


def test_a_share_of_the_rows_is_held_out(tmp_path):
    np.savez(tmp_path / "s.npz", x=np.arange(10))
    data = {"kind": "series", "train": str(tmp_path / "s.npz"), "columns": {"x": "x"}}
    config = validate({"model": "m", "data": data, "objective": "regression"})
    parts = {
        name: it.arrays["x"].tolist() for name, it in read_splits(config.data, Context()).items()
    }
    assert sorted(parts["train"] + parts["validation"]) == list(range(10))
    assert len(parts["validation"]) == 1
