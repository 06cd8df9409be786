"""What a row compares: files as they lie, bit for bit."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from weighbridge.errors import MismatchError
from weighbridge.tests.support.atlas import row, rows


@pytest.fixture
def stored(tmp_path):
    def read(**tensors):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        save_file(tensors, folder / "model.safetensors")
        return row.read(folder)

    return read


def test_the_same_bytes_are_exact(stored):
    values = np.array([[1.0, np.nan]], np.float32)
    assert row.difference(stored(a=values), stored(a=values.copy())) == "exact"


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (np.array([[-0.0, 1.0]], np.float32), "a: other values"),
        (np.array([[0.0], [1.0]], np.float32), "a: F32[2, 1] instead of F32[1, 2]"),
        (np.array([[0.0, 1.0]], np.float16), "a: F16[1, 2] instead of F32[1, 2]"),
    ],
)
def test_signs_of_zero_shapes_and_dtypes_count(stored, other, said):
    wanted = stored(a=np.array([[0.0, 1.0]], np.float32))
    assert row.difference(stored(a=other), wanted) == f"1 differ: {said}"


def test_names_count(stored):
    one = np.zeros(1, np.float32)
    assert row.difference(stored(b=one), stored(a=one)) == (
        "2 differ: a is missing; b is left over"
    )


def test_a_step_of_the_last_bit_is_taken(tmp_path):
    save_file({"a": np.array([1.0, -2.0], np.float32)}, tmp_path / "model.safetensors")
    row.nudge(tmp_path, 1)
    moved = row.singles(tmp_path)["a"]
    assert moved.tolist() == np.nextafter(np.float32([1, -2]), np.float32(np.inf)).tolist()


def test_weights_that_one_tensor_makes_together_are_counted_and_put_back(monkeypatch, tmp_path):
    for part, value in (("mlx", 1.0), ("trained", 2.0)):
        (tmp_path / part).mkdir()
        held = {name: np.full(3, value, np.float32) for name in ("alpha", "beta", "weight")}
        save_file(held, tmp_path / part / "model.safetensors")
    said = iter([["gate does not follow from alpha, beta"], []])

    def refusing(*_):
        if problems := next(said):
            raise MismatchError("trained cannot go back", problems)

    monkeypatch.setattr(row, "home", refusing)
    assert row.go_home_trained(tmp_path, "mlx") == 6
    found = {name: value.tolist() for name, value in row.singles(tmp_path / "trained").items()}
    assert found == {"alpha": [1.0] * 3, "beta": [1.0] * 3, "weight": [2.0] * 3}


@pytest.mark.parametrize("problem", ["a does not follow from b", "a is in the original alone"])
def test_a_refusal_of_anything_else_is_ours(monkeypatch, tmp_path, problem):
    def refusing(*_):
        raise MismatchError("trained cannot go back", ["gate does not follow from c, d", problem])

    monkeypatch.setattr(row, "home", refusing)
    with pytest.raises(MismatchError):
        row.go_home_trained(tmp_path, "mlx")


def test_a_process_that_dies_costs_its_row_alone(monkeypatch, tmp_path):
    script = tmp_path / "python"
    script.write_text('#!/bin/sh\necho \'{"kind": "a"}\'\nexit 3\n')
    script.chmod(0o755)
    monkeypatch.setattr(rows.sys, "executable", str(script))
    first, second = rows.batch(["a:saved", "b:hub"])
    assert first == json.loads('{"kind": "a"}')
    assert (second["kind"], second["layout"]) == ("b", "hub")
    assert second["failed"] == "the process ended with 3: "
