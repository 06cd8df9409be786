"""A checkpoint with other tensors in it is one like any other."""

from __future__ import annotations

import numpy as np
import pytest

from weighbridge.converters.checkpoints import CHUNK, Header, Writer, open_checkpoint
from weighbridge.converters.checkpoints.derived import Overlay


@pytest.fixture
def checkpoint(tmp_path):
    layout = {"a": Header("F32", (2, 3)), "b": Header("F32", (4,))}
    writer = Writer(tmp_path, layout, metadata={"format": "pt"})
    writer.write("a", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.write("b", np.ones(4, np.float32))
    writer.close()
    return open_checkpoint(tmp_path)


def streamed(source, name, *within):
    return b"".join(bytes(view) for view in source.stream(name, *within))


def test_other_tensors_are_seen_and_the_rest_stays(checkpoint):
    other = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    overlay = Overlay(checkpoint, {"a": other, "c": np.zeros((), np.int64)})
    assert overlay.headers == {
        "a": Header("F64", (2, 3)), "b": Header("F32", (4,)), "c": Header("I64", ())
    }  # fmt: skip
    assert overlay.read("a").tolist() == other.tolist()
    assert streamed(overlay, "a") == other.tobytes()
    assert streamed(overlay, "a", 3, 17) == other.tobytes()[3:17]
    assert streamed(overlay, "c") == bytes(8)
    assert streamed(overlay, "b", 4) == streamed(checkpoint, "b", 4)
    assert overlay.read("b").tolist() == [1] * 4
    assert (overlay.path, overlay.files) == (checkpoint.path, checkpoint.files)
    assert (overlay.ignored, overlay.metadata) == ((), {"format": "pt"})


def test_what_is_read_belongs_to_the_reader(checkpoint):
    overlay = Overlay(checkpoint, {"a": np.zeros((2, 3))})
    overlay.read("a")[:] = 1
    assert not overlay.read("a").any()


def test_no_more_than_a_chunk_comes_at_a_time(checkpoint):
    large = np.arange(CHUNK, dtype=np.uint16)
    overlay = Overlay(checkpoint, {"a": large})
    assert [view.nbytes for view in overlay.stream("a")] == [CHUNK, CHUNK]
    assert streamed(overlay, "a") == large.tobytes()
