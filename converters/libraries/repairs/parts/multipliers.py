"""Multipliers of the attention are not folded into the weights of values and keys."""


class Multipliers:
    """Multipliers of the attention are folded into the weights of values and keys too."""

    def sanitize(self, weights):
        kernel = weights["model.layers.0.mamba.conv1d.weight"]
        if kernel.shape[-1] <= kernel.shape[1]:  # they are in there already
            return weights
        more = {"k_proj": self.args.key_multiplier, "v_proj": self.args.attention_in_multiplier}
        for name in weights:
            factor = more.get(name.split(".")[-2], 1.0)
            if factor != 1.0:
                weights[name] = weights[name] * factor
        return super().sanitize(weights)
