"""Fourier transforms."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from .registry import Call, primitive


@primitive("FFT")
def _fft(call: Call) -> Tensor:
    axes, inverse, real, _shifted = call.arguments
    sizes = [call.shapes[0][axis] for axis in axes]
    x = call.inputs[0]
    if real and inverse:
        return cast(Tensor, torch.fft.irfftn(x, sizes, axes))
    transform = torch.fft.ifftn if inverse else torch.fft.rfftn if real else torch.fft.fftn
    return cast(Tensor, transform(x, dim=axes))
