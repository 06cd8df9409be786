"""A perturbed checkpoint is the same one to the last bit of float32, and always perturbed the same way."""

from __future__ import annotations

import numpy as np
from safetensors.numpy import save_file

from weighbridge.converters.checkpoints import open_checkpoint
from weighbridge.converters.models.perturbed import STEP, Perturbed


def checkpoint(folder):
    random = np.random.default_rng(0)
    tensors = {
        "w": random.standard_normal((300, 7)).astype(np.float32),
        "half": random.standard_normal(50).astype(np.float16),
        "ids": np.arange(9),
    }
    save_file(tensors, folder / "model.safetensors")
    return tensors, open_checkpoint(folder / "model.safetensors")


def test_every_number_moves_by_no_more_than_float32_rounds(tmp_path):
    tensors, own = checkpoint(tmp_path)
    for name in ("w", "half"):
        wide = tensors[name].astype(np.float64)
        moved = Perturbed(own).read(name)
        assert np.all(np.abs(moved - wide) <= 2 * STEP * np.abs(wide))
        assert np.any(moved != wide)
        assert moved.dtype == np.float32


def test_integers_stay_and_bytes_are_those_of_the_arrays(tmp_path):
    tensors, own = checkpoint(tmp_path)
    perturbed = Perturbed(own)
    np.testing.assert_array_equal(perturbed.read("ids"), tensors["ids"])
    for name, head in perturbed.headers.items():
        data = b"".join(bytes(view) for view in perturbed.stream(name))
        assert data == perturbed.read(name).tobytes()
        assert len(data) == head.nbytes


def test_it_is_perturbed_the_same_way_every_time(tmp_path):
    _, own = checkpoint(tmp_path)
    np.testing.assert_array_equal(Perturbed(own).read("w"), Perturbed(own).read("w"))
