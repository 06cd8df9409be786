"""What the five small ports share: weights that all matter, and what a scrambler may do to them."""

from __future__ import annotations

from typing import Any, NamedTuple


class Freedom(NamedTuple):
    """What another author might have stored otherwise; names are those of the port, ``*`` an index.

    Attributes:
        fuse: modules that could be one matrix, and the heads that could be interleaved in it.
        split: tensors that could be several, with the sizes along their first axis.
        stack: prefixes of repeated modules that could be one tensor with an axis more.
        convolutions: weights that are channels last in MLX.
    """

    fuse: tuple[tuple[tuple[str, ...], int], ...] = ()
    split: tuple[tuple[str, tuple[int, ...]], ...] = ()
    stack: tuple[str, ...] = ()
    convolutions: tuple[str, ...] = ()


def perturb(module: Any, seed: int) -> Any:
    """Return the torch MODULE in evaluation mode, norms, biases and statistics moved off 0 and 1."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in sorted(module.state_dict().items()):
            if not tensor.is_floating_point():
                continue
            noise = torch.randn(tensor.shape, generator=generator)
            if name.endswith("running_var"):
                tensor.copy_(0.5 + noise.abs())
            elif tensor.ndim < 2:
                tensor.add_(0.2 * noise)
            else:
                fan = tensor[0].numel()
                tensor.copy_(noise * (0.3 if "embed" in name else fan**-0.5))
    return module.eval()
