"""Modules that take Fourier transforms, exported: by products of short sums, as exact as torch's."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from weighbridge.cli import main

CODE = """
import torch
from torch import nn


class Spectrogram(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.hann_window(64))
        self.bands = nn.Linear(33, 8, bias=False)

    def forward(self, sound):
        found = torch.stft(sound, 64, 16, window=self.window, return_complex=True)
        return self.bands((found.abs() ** 2).mT).clamp(min=1e-4).log10()


class Spectra(nn.Module):
    def forward(self, sound):
        window = torch.hamming_window(15)
        odd = torch.stft(sound, 20, 7, 15, window, normalized=True, return_complex=True)
        short = torch.fft.rfft(sound[..., :35], n=30, norm="ortho")
        rows = torch.fft.rfft(sound[..., :9].reshape(-1, 3, 3), n=7, dim=1, norm="forward")
        return {
            "size": odd.abs(),
            "pair": torch.view_as_real(2 * odd.mT / 3),
            "short": short.real - short.imag,
            "rows": rows.imag + rows.angle().cos(),
            "whole": torch.fft.rfft(sound).abs(),
        }


class Filtered(nn.Module):
    def forward(self, sound):
        return torch.fft.irfft(torch.fft.rfft(sound) * torch.arange(161))


def seeded(kind):
    torch.manual_seed(0)
    return kind().eval()


def spectrogram(): return seeded(Spectrogram)
def spectra(): return seeded(Spectra)
def filtered(): return seeded(Filtered)
"""
TARGETS = {"coreml": "a.mlpackage", "onnx": "a.onnx", "coreai": "a.aimodel"}


@pytest.fixture
def export(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "spectral_modules.py").write_text(CODE)
    sound = np.random.default_rng(0).normal(size=(2, 320))
    np.savez("sound.npz", sound=sound.astype(np.float32))

    def run(kind, name, precision="fp32"):
        if kind == "coreai":
            pytest.importorskip("coreai_torch")
        words = ["export", kind, f"spectral_modules:{name}", TARGETS[kind], "--inputs", "sound.npz"]
        return CliRunner().invoke(main, [*words, "--precision", precision, "--json"])

    return run


@pytest.mark.parametrize("kind", sorted(TARGETS))
@pytest.mark.parametrize("name", ["spectrogram", "spectra"])
def test_transforms_are_those_of_torch(export, kind, name):
    verdict = json.loads(export(kind, name).stdout)["verdict"]
    assert verdict["status"] in ("PASS", "PASS-REFERENCE"), verdict


@pytest.mark.parametrize("name", ["spectra", pytest.param("spectrogram", marks=pytest.mark.heavy)])
def test_at_mixed_precision_transforms_are_in_float32_and_proven(export, name):
    """PyTorch has none in 16 bits on a CPU: it computes them in float32 and rounds, as its GPUs do sums."""
    verdict = json.loads(export("coreml", name, "mixed").stdout)["verdict"]
    assert verdict["status"] == "PASS-REFERENCE", verdict


@pytest.mark.parametrize("kind", ["coreml", "coreai"])
def test_other_uses_of_complex_numbers_are_refused_by_name(export, kind):
    result = export(kind, "filtered")
    assert result.exit_code == 3
    assert "has no complex numbers" in result.output
    assert "take abs(), .real" in result.output
