"""Experts do not limit what they multiply, where config.json says how far."""

from mlx_vlm.models.glm5_next.language import LimitedSwiGLU


class LimitedExperts:
    """What experts multiply stays within `swiglu_limit`."""

    def __init__(self, config):
        super().__init__(config)
        for layer in self.layers:
            if hasattr(layer.mlp, "switch_mlp"):
                layer.mlp.switch_mlp.activation = LimitedSwiGLU(config.swiglu_limit)
