"""The feed-forward layers compute another activation than config.json names."""

import mlx.nn as nn

ALIASES = dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "gelu_approx")
ALIASES |= {"quick_gelu": "gelu_fast_approx", "swish": "silu"}


class Activation:
    """Feed-forward layers compute the activation that config.json names."""

    def __init__(self, args):
        super().__init__(args)
        name = getattr(args, self.activation, self.activation)
        act = getattr(nn, ALIASES.get(name, name))
        gate, *up, down = self.feed_forward

        class MLP(type(self.layers[0].mlp)):
            def __call__(self, x):
                y = act(self[gate](x))
                for name in up:
                    y = y * self[name](x)
                return self[down](y)

        for layer in self.layers:
            layer.mlp.__class__ = MLP
