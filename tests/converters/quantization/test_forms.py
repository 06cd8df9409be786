"""Codes fitted to the scales as they are stored."""

from __future__ import annotations

import numpy as np

from weighbridge.converters.quantization import Scheme
from weighbridge.converters.quantization.forms import Form, refit


def test_codes_chosen_by_the_rounded_scales_are_nearer():
    values = np.random.default_rng(0).normal(size=(64, 256))
    plain, fitted = (Form(Scheme(8, 64), "BF16", refitted=it) for it in (False, True))
    errors = [np.linalg.norm(form.decode(form.encode(values)) - values) for form in (plain, fitted)]
    assert errors[1] < 0.8 * errors[0]


def test_a_constant_row_survives_being_fitted_again():
    parts = Form(Scheme(8, 64), "F16").encode(np.zeros((2, 64)))
    again = refit(parts, np.zeros((2, 64), np.float32), Scheme(8, 64))
    assert not Form(Scheme(8, 64), "F16").decode(again).any()
