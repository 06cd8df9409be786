"""Fourier transforms against torch, values and gradients."""

from __future__ import annotations

import torch
from torch import fft

WINDOW = torch.hann_window(8)


def parts(x):
    return torch.view_as_real(x)


def spectrum(x, **options):
    return torch.stft(x, 8, 3, window=WINDOW, return_complex=True, **options)


TRANSFORMS = {
    "fft": lambda x: parts(fft.fft(x)),
    "fft padded": lambda x: parts(fft.fft(x, n=9, norm="ortho")),
    "fft of another axis": lambda x: parts(fft.fft(x, dim=0, norm="forward")),
    "fft and back": lambda x: fft.ifft(fft.fft(x) * 1j).imag,
    "rfft": lambda x: parts(fft.rfft(x)),
    "rfft and back": lambda x: fft.irfft(fft.rfft(x) * 2, n=x.shape[-1]),
    "odd rfft and back": lambda x: fft.irfft(fft.rfft(x[:, :5]), n=5, norm="ortho"),
    "ihfft": lambda x: parts(fft.ihfft(x).resolve_conj()),
    "angle": lambda x: fft.rfft(x)[:, 1:-1].angle(),
    "hfft": lambda x: fft.hfft(fft.rfft(x)),
    "hfft of two": lambda x: fft.hfft(x[:, :2]),
    "irfft2 of two": lambda x: fft.irfft2(x[:1, :2]),
    "fft2": lambda x: parts(fft.fft2(x)),
    "rfft2 and back": lambda x: fft.irfft2(fft.rfft2(x), s=x.shape),
    "fftn": lambda x: parts(fft.fftn(x)),
    "fftshift": fft.fftshift,
    "polar": lambda x: parts(torch.polar(x, x.flip(-1)) * fft.fft(x)),
    "power": lambda x: fft.rfft(x).abs() ** 2,
    "convolution": lambda x: fft.irfft(fft.rfft(x, n=16) * fft.rfft(x.flip(-1), n=16), n=16),
    "stft": lambda x: parts(spectrum(x)),
    "stft without padding": lambda x: parts(spectrum(x, center=False, onesided=False)),
    "normalized stft": lambda x: parts(spectrum(x, normalized=True)),
    "loudness": lambda x: (spectrum(x).abs() ** 2 + 1e-3).log(),
    "stft and back": lambda x: torch.istft(spectrum(x), 8, 3, window=WINDOW),
}


def test_fourier_transforms(agree):
    agree({name: (function, (3, 12)) for name, function in TRANSFORMS.items()}, rtol=1e-5)
