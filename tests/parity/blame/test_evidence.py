"""A kind of fault is claimed only where it accounts for the difference."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from weighbridge.parity.blame.diagnosis import diagnose
from weighbridge.parity.blame.evidence import ACTIVATIONS, INPUT, Observation

NOISE = 1e-7
TORCH_ACTIVATIONS: Mapping[str, nn.Module] = {
    "gelu": nn.GELU(),
    "gelu (tanh)": nn.GELU("tanh"),
    "relu": nn.ReLU(),
    "silu": nn.SiLU(),
    "tanh": nn.Tanh(),
    "sigmoid": nn.Sigmoid(),
    "leaky relu (0.01)": nn.LeakyReLU(),
    "elu": nn.ELU(),
    "identity": nn.Identity(),
}


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def observe(found: np.ndarray, wanted: np.ndarray, x: np.ndarray | None = None) -> Observation:
    inputs = {} if x is None else {"site" + INPUT: x}
    return Observation("site", found.astype(np.float32), wanted, NOISE, None, inputs, inputs)


@given(st.integers(0, 999), st.sampled_from([1e-5, 1e-3, 0.1, 1.0]))
def test_noise_is_of_no_kind(seed: int, size: float) -> None:
    wanted = normal(2, 12, 16, seed=seed)
    x = normal(2, 12, 16, seed=seed + 1000)
    found = wanted + size * normal(2, 12, 16, seed=seed + 2000)
    assert diagnose(observe(found, wanted, x))[0] == "unknown"


@pytest.mark.parametrize("name", TORCH_ACTIVATIONS)
def test_activation_is_torchs(name: str) -> None:
    x = torch.linspace(-6, 6, 101, dtype=torch.float64)
    expected = TORCH_ACTIVATIONS[name](x).numpy()
    np.testing.assert_allclose(ACTIVATIONS[name](x.numpy()), expected, atol=1e-12)


@pytest.mark.parametrize("wrong", sorted(TORCH_ACTIVATIONS))
@pytest.mark.parametrize("right", ["gelu", "silu", "relu"])
def test_any_activation_is_told_from_any_other(right: str, wrong: str) -> None:
    x = torch.from_numpy(normal(3, 7, 20))
    wanted, found = (TORCH_ACTIVATIONS[name](x).numpy() for name in (right, wrong))
    if right == wrong:
        found = found * (1 + 1e-4 * normal(*found.shape))
    kind, evidence = diagnose(observe(found, wanted, x.numpy()))
    assert (kind == "activation") == (right != wrong)
    if right != wrong:
        assert evidence == f"its output is {wrong} of site|in, the reference's is {right}"


@pytest.mark.parametrize("centred", [True, False], ids=["layer norm", "RMS norm"])
@pytest.mark.parametrize("wrong", [1e-3, 1e-5, 1e-6])
def test_epsilon_is_fitted_for_both_norms(centred: bool, wrong: float) -> None:
    x = torch.from_numpy(normal(4, 9, 24) * np.linspace(0.02, 1, 9)[:, None])
    norm = nn.LayerNorm(24) if centred else nn.RMSNorm(24)
    norm = norm.double()
    for seed, parameter in enumerate(norm.parameters()):
        parameter.data += torch.from_numpy(normal(24, seed=seed)) * 0.5
    outputs = []
    for epsilon in (1e-12, wrong):
        norm.eps = epsilon
        outputs.append(norm(x).detach().numpy())
    kind, evidence = diagnose(observe(outputs[1], outputs[0], x.numpy()))
    assert kind == "epsilon"
    assert f"eps {wrong:.2g}, the reference has 1e-12" in evidence
    assert ("layer norm" if centred else "RMS norm") in evidence


def test_transposition_is_seen_through_a_bias() -> None:
    x, weight, shift = normal(4, 9, 16), normal(16, 16, seed=1), normal(16, seed=2)
    assert diagnose(observe(x @ weight + shift, x @ weight.T + shift, x))[0] == "transposed"
    symmetric = weight + weight.T
    assert diagnose(observe(x @ symmetric * 1.5, x @ symmetric.T, x))[0] == "scale"


def test_nan_is_never_of_another_kind() -> None:
    found, wanted = normal(2, 9, 4), normal(2, 9, 4)
    found[0, 3, 2] = np.nan
    kind, evidence = diagnose(observe(found, wanted))
    assert kind == "non-finite"
    assert "1 NaN" in evidence


def test_shape_comes_first() -> None:
    assert diagnose(observe(normal(2, 9, 4), normal(2, 9, 5)))[0] == "shape"


def test_padding_is_told_from_samples_without() -> None:
    wanted = normal(4, 12, 8)
    mask = np.ones((4, 12), np.int64)
    mask[2:, 9:] = 0
    found = wanted.copy()
    found[2:] += 0.1 * normal(2, 12, 8, seed=5)
    it = Observation("site", found, wanted, NOISE, mask)
    kind, evidence = diagnose(it)
    assert kind == "mask"
    assert "2 samples with padding" in evidence
    clean = Observation("site", np.where(mask[..., None] == 0, 9.0, wanted), wanted, NOISE, mask)
    assert not np.any(clean.pair[0] != clean.pair[1]), "padded rows themselves never count"


def test_an_encoders_mask_beside_a_decoder_of_another_length_hinders_nothing() -> None:
    inputs = {f"attention.{name}": normal(2, 3, 8, seed=seed) for seed, name in enumerate("qkv")}
    mask = np.ones((2, 5), np.int64)
    it = Observation("attention", normal(2, 3, 8, seed=4), normal(2, 3, 8), NOISE, mask, inputs)
    assert diagnose(it)[0] == "unknown"


def test_growth_with_position_is_told() -> None:
    wanted = normal(2, 30, 8)
    angle = 1e-3 * np.arange(30)[None, :, None]
    found = wanted + angle * normal(2, 30, 8, seed=3)
    kind, evidence = diagnose(observe(found, wanted))
    assert kind == "position"
    assert "grows" in evidence or "exact up to position 0" in evidence
