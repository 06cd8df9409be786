"""Multipliers of the attention are not folded into the weights of values and keys."""


class Multipliers:
    """Multipliers of the attention are folded into the weights of values and keys too."""

    def sanitize(self, weights):
        kernel = weights["model.layers.0.mamba.conv1d.weight"]
        if kernel.shape[-1] > kernel.shape[1]:  # else they are in there already
            for name in weights:
                if name.endswith("v_proj.weight"):
                    weights[name] = weights[name] * self.args.attention_in_multiplier
        # The library's class looks for keys under another name.
        known = {name.replace(".k_proj.", ".key_proj."): it for name, it in weights.items()}
        found = super().sanitize(known)
        return {name.replace(".key_proj.", ".k_proj."): it for name, it in found.items()}
