"""Parameters of any name: MLX's modules take names that begin with an underscore for private ones."""

import mlx.core as mx
import torch
from mlx.utils import tree_flatten
from torch import nn

from weighbridge.converters.captures import capture


class Private(nn.Module):
    def __init__(self):
        super().__init__()
        self._encoder, self.head = nn.Linear(3, 4), nn.Linear(4, 2)
        self._scale = nn.Parameter(torch.rand(2))
        self._shift = nn.Parameter(torch.rand(2), requires_grad=False)

    def forward(self, x):
        return self.head(self._encoder(x)) * self._scale + self._shift


def test_parameters_with_private_names_train_as_in_torch(gradients_of, assert_same):
    module, x = Private(), torch.randn(5, 3)
    captured = capture(module, inputs={"x": x})
    _, found = gradients_of(captured, lambda y: (y**2).sum(), x=mx.array(x.numpy()))
    (module(x) ** 2).sum().backward()
    wanted = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        assert_same(found[name], gradient, 1e-5)
    assert dict(tree_flatten(captured.parameters())).keys() == module.state_dict().keys()


def test_private_names_take_another_dtype_and_freeze_with_the_others():
    captured = capture(Private(), inputs={"x": torch.randn(5, 3)})
    captured.set_dtype(mx.bfloat16)
    assert {value.dtype for _, value in tree_flatten(captured.parameters())} == {mx.bfloat16}
    captured.freeze()
    assert not tree_flatten(captured.trainable_parameters())
    captured.unfreeze()
    assert "_shift" not in dict(tree_flatten(captured.trainable_parameters()))
