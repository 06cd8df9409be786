"""Experts are weighted by a softmax over those that were chosen, where it should be over all."""

import mlx.core as mx


class RouterWeights:
    """Experts are weighted by a softmax over all of them, and not normalised again."""

    def __init__(self, args):
        super().__init__(args)
        kind = getattr(library, self.block)

        class Block(kind):
            def __call__(self, x):
                weights = mx.softmax(self.router(x), axis=-1, precise=True)
                chosen = mx.topk(weights, self.num_experts_per_tok, axis=-1)
                return super().__call__(x) * chosen.sum(axis=-1, keepdims=True)

        for module in self.modules():
            if type(module) is kind:
                module.__class__ = Block
