"""Of many experts a few are traced, but only where they are surely alike."""

from __future__ import annotations

import pytest

from weighbridge.converters.checkpoints.base import Header
from weighbridge.converters.maps.learn.trace.reduction import FEW, MORE, Mixture

CONFIG = {"n_routed_experts": 64, "inner": {"num_experts": 64}, "hidden_size": 64}


def headers(count=64, layers=2):
    return {
        f"layers.{n}.experts.{e}.w": Header("F32", (2, 3))
        for n in range(layers)
        for e in range(count)
    }


def test_config_and_tensors_are_reduced_together():
    (found, _), *_ = Mixture(CONFIG, {**headers(), "norm": Header("F32", (64,))}).attempts()
    assert found.config == {
        "n_routed_experts": FEW, "inner": {"num_experts": FEW}, "hidden_size": 64,
    }  # fmt: skip
    assert len(found.headers) == 2 * FEW + 1


def test_more_are_kept_than_have_one_digit_so_that_an_order_by_text_would_show():
    (_, found), *_ = Mixture(CONFIG, headers()).attempts()
    assert len(found.headers) == MORE > 10
    assert {name.partition(".experts")[0] for name in found.headers} == {"layers.0"}


@pytest.mark.parametrize(
    "change",
    [
        lambda h: h.pop("layers.1.experts.63.w"),
        lambda h: h.pop("layers.0.experts.5.w"),
        lambda h: h.update({"layers.0.experts.5.w": Header("F32", (3, 2))}),
        lambda h: h.update({"layers.0.experts.64.w": Header("F32", (2, 3))}),
    ],
)
def test_an_irregular_family_is_not_reduced(change):
    irregular = headers()
    change(irregular)
    assert not list(Mixture(CONFIG, irregular).attempts())


def test_a_number_that_the_config_does_not_give_is_not_reduced():
    assert not list(Mixture({"hidden_size": 64}, headers()).attempts())
    assert not list(Mixture({"num_experts": 64}, headers(16)).attempts())
