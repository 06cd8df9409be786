"""Weights of experts are not normalised, whatever config.json says."""

import mlx.core as mx


class NormalisedExperts:
    """Weights of the experts that were chosen sum to one, where `norm_topk_prob` says so."""

    def __init__(self, args):
        super().__init__(args)
        kind = getattr(library, self.block)

        class Block(kind):
            def __call__(self, x):
                weights = mx.softmax(self.gate(x), axis=-1, precise=True)
                chosen = mx.argpartition(-weights, kth=self.top_k - 1, axis=-1)[..., : self.top_k]
                chosen = mx.stop_gradient(chosen)
                weights = mx.take_along_axis(weights, chosen, axis=-1)
                weights = weights / weights.sum(axis=-1, keepdims=True)
                y = (self.switch_mlp(x, chosen) * weights[..., None]).sum(axis=-2)
                return y + mx.sigmoid(self.shared_expert_gate(x)) * self.shared_expert(x)

        for module in self.modules():
            if type(module) is kind and args.norm_topk_prob:
                module.__class__ = Block
