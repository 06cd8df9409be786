"""Special functions against torch, values and gradients."""

from __future__ import annotations

import torch

EVERYWHERE = torch.cat([torch.arange(-7.0, 12) + part for part in (0.3, 0.5, 0.8)])
ABOVE = torch.linspace(0.05, 30, 40)
BOTH_SIDES = torch.cat([torch.linspace(-60, 60, 41), torch.tensor([0.0, 1e-3, -1e-3])])
POLES = torch.tensor([0.0, -0.0, -1.0, -2.0, torch.inf, torch.nan])
FUNCTIONS = {
    "lgamma": (torch.lgamma, EVERYWHERE),
    "lgamma of large numbers": (torch.lgamma, ABOVE * 100),
    "digamma": (torch.digamma, EVERYWHERE),
    "trigamma": (lambda x: torch.polygamma(1, x), ABOVE),
    "third derivative of digamma": (lambda x: torch.polygamma(3, x), ABOVE + 1),
    "zeta": (lambda x: torch.special.zeta(torch.tensor(2.5), x), ABOVE),
    "multigammaln": (lambda x: torch.special.multigammaln(x, 3), ABOVE + 1),
    "beta": (lambda x: torch.lgamma(x) + torch.lgamma(x + 1) - torch.lgamma(2 * x + 1), ABOVE),
    "logaddexp2": (torch.logaddexp2, ABOVE, ABOVE.flip(0)),
    "entr": (torch.special.entr, ABOVE),
    "sinc": (torch.sinc, EVERYWHERE),
    "ndtr": (torch.special.ndtr, EVERYWHERE),
    "i0 of far numbers": (lambda x: torch.i0(x) * 1e-20, BOTH_SIDES),
    "i0, i1": (lambda x: (torch.i0(x), torch.special.i1(x)), BOTH_SIDES / 20),
    "scaled i0, i1": (lambda x: (torch.special.i0e(x), torch.special.i1e(x)), BOTH_SIDES * 30),
    "a Hamming window": (lambda x: x * torch.hamming_window(20), ABOVE[:20]),
    "with numbers of its own": (
        lambda x: x * torch.hamming_window(20, False, 0.6, 0.3),
        ABOVE[:20],
    ),
    "a Blackman window": (lambda x: x * torch.blackman_window(20), ABOVE[:20]),
    "a Bartlett window": (lambda x: x * torch.bartlett_window(20, periodic=False), ABOVE[:20]),
    "a Hann window": (lambda x: x * torch.hann_window(20), ABOVE[:20]),
    "windows of one": (
        lambda x: x * torch.hamming_window(1) + torch.bartlett_window(1),
        ABOVE[:20],
    ),
    "a Kaiser window": (lambda x: x * torch.kaiser_window(20, periodic=False), ABOVE[:20]),
    "another": (lambda x: x * torch.kaiser_window(20, True, 8.5), ABOVE[:20]),
    "that of torch.signal": (lambda x: x * torch.signal.windows.kaiser(20, beta=8.5), ABOVE[:20]),
}


def test_special_functions(agree):
    agree(FUNCTIONS, rtol=1e-5)


def test_special_functions_at_their_poles(agree):
    cases = {"lgamma": torch.lgamma, "digamma": torch.digamma}
    agree({name: (function, POLES) for name, function in cases.items()}, gradients=False)


def test_the_step_function(agree):
    agree({"heaviside": (lambda x: torch.heaviside(x, torch.tensor(0.5)), POLES)}, gradients=False)
