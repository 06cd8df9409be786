"""The BLAS that MLX is given on Linux."""

from __future__ import annotations

import os
import sys

import pytest

from weighbridge.converters.runtimes.blas import preload_blas

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere MLX has its own")


@pytest.mark.parametrize(("chosen", "kept"), [(None, "AUTO"), ("COMPATIBLE", "COMPATIBLE")])
def test_mkl_is_asked_for_the_same_bits_in_every_run_unless_the_user_chose(
    chosen, kept, monkeypatch
):
    monkeypatch.delenv("MKL_CBWR", raising=False)
    if chosen:
        monkeypatch.setenv("MKL_CBWR", chosen)
    preload_blas.__wrapped__()
    assert os.environ["MKL_CBWR"] == kept
