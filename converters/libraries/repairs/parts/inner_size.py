"""Feed-forward layers are four times as wide as the hidden size, whatever config.json says."""

import mlx.nn as nn


class InnerSize:
    """Feed-forward layers are as wide as config.json says."""

    def __init__(self, args):
        super().__init__(args)
        up, down = self.feed_forward
        inner = getattr(args, self.inner_size)
        for layer in self.layers if inner else ():
            hidden = layer.mlp[down].weight.shape[0]
            layer.mlp[up] = nn.Linear(hidden, inner)
            layer.mlp[down] = nn.Linear(inner, hidden)
