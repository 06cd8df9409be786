"""Which C++ compilers MLX can use."""

from __future__ import annotations

import pytest

from weighbridge.trainers.runs.length import about
from weighbridge.trainers.steps import compiler
from weighbridge.trainers.steps.compiler import judge_version, optimizer_pays

VERSIONS = {
    "9": None,
    "12.2.0\n": None,
    "13": "g++ 13 is too new",
    "14.1": "g++ 14",
    "": "does not say",
}


@pytest.mark.parametrize(("text", "problem"), VERSIONS.items())
def test_versions_are_judged(text, problem):
    found = judge_version(text)
    assert found is None if problem is None else problem in found


@pytest.mark.parametrize(("values", "tensors"), [(6_000_000, 50), (130_000, 28), (1000, 2)])
def test_an_optimizer_is_compiled_where_enough_updates_win_back_what_that_takes(
    values, tensors, monkeypatch
):
    monkeypatch.setattr(compiler, "compile_problem", lambda: None)
    monkeypatch.setattr(compiler, "_compiles", lambda: True)
    sizes = [values // tensors] * tensors
    least = next(number for number in range(1, 10**6) if optimizer_pays(sizes, number))
    saved = least * (compiler.A_VALUE * values + compiler.A_TENSOR * tensors)
    assert saved == pytest.approx(compiler.COMPILING, rel=0.02)
    assert not optimizer_pays(sizes, least - 1)


def test_no_optimizer_is_compiled_where_mlx_cannot(monkeypatch):
    monkeypatch.setattr(compiler, "compile_problem", lambda: "g++ is not installed")
    assert not optimizer_pays([10**9], 10**6)


def test_a_run_of_epochs_has_as_many_updates_as_its_examples_make(series_config):
    config = series_config(epochs=3, steps=None, batch_size=4, accumulation=2)
    assert (about(config, range(80)), about(series_config(steps=7), range(80))) == (30, 7)
