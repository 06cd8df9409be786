"""Weights of a gain that trained ones have: at smaller ones errors do not show."""

import torch


def realistic(module, seed=0):
    """Return MODULE with weights of realistic gain: norms, biases and positions matter."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in module.parameters():
            drawn = torch.randn(weight.shape, generator=generator).to(weight.dtype)
            fan_in = weight[0].numel() if weight.ndim > 1 else 25
            weight.copy_(drawn * 1.5 / fan_in**0.5 + (weight if weight.ndim == 1 else 0))
    return module.eval()
