"""The bias by which experts are chosen is dropped."""

import mlx.core as mx


class CorrectionBias:
    """Experts are chosen by their score and a bias, and weighted by the score alone."""

    def __init__(self, args):
        super().__init__(args)
        kind = library.Ernie4_5_MoeMLP

        class Block(kind):
            def __call__(self, x):
                scores = self.gate_act(self.gate(x).astype(mx.float32))
                biased = scores + self.e_score_correction_bias
                chosen = mx.argpartition(-biased, kth=self.k - 1, axis=-1)[..., : self.k]
                chosen = mx.stop_gradient(chosen)
                scores = mx.take_along_axis(scores, chosen, axis=-1)
                scores = scores / mx.maximum(scores.sum(axis=-1, keepdims=True), 1e-12)
                y = self.switch_mlp(x, chosen)
                y = (y * scores[..., None]).sum(axis=-2).astype(y.dtype)
                return y if self.shared_experts is None else y + self.shared_experts(x)

        for module in self.modules():
            if type(module) is kind:
                module.__class__ = Block
                module.e_score_correction_bias = mx.zeros((1, args.moe_num_experts))

    def sanitize(self, weights):
        kept = {k: v for k, v in weights.items() if "e_score_correction_bias" in k}
        kept = {k.replace("moe_statics.", ""): v for k, v in kept.items() if "mtp" not in k}
        return super().sanitize(weights) | kept
