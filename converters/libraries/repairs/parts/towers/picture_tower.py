"""The class has no tower for pictures, which config.json names."""

import mlx.core as mx
from mlx_vlm.models.granite4_vision.vision import MHA, SigLipVisionModel, VisionModel


class PictureTower:
    """Pictures pass a tower of their own, and are scored with the texts."""

    def __init__(self, config):
        super().__init__(config)

        class Pooling(MHA):
            def __call__(self, probe, seen):
                queries, *_ = mx.split(self.in_proj(probe), 3, axis=-1)
                _, *rest = mx.split(self.in_proj(seen), 3, axis=-1)
                rows = (mx.unflatten(it, -1, (self.num_heads, -1)) for it in (queries, *rest))
                heads = (it.swapaxes(1, 2) for it in rows)
                found = mx.fast.scaled_dot_product_attention(*heads, scale=self.scale)
                return self.out_proj(found.swapaxes(1, 2).flatten(2))

        self.vision_model = SigLipVisionModel(config.vision_config)
        self.vision_model.head.attention.__class__ = Pooling
        self.logit_scale, self.logit_bias = mx.zeros((1,)), mx.zeros((1,))

    def __call__(self, input_ids, pixel_values=None, **named):
        found = super().__call__(input_ids, **named)
        if pixel_values is not None:
            head = self.vision_model.head
            seen, *_ = self.vision_model(pixel_values.transpose(0, 2, 3, 1))
            seen = head.attention(
                mx.broadcast_to(head.probe, (len(seen), *head.probe.shape[1:])), seen
            )
            seen = (seen + head.mlp(head.layernorm(seen)))[:, 0]
            found.image_embeds = seen / mx.linalg.norm(seen, axis=-1, keepdims=True)
            scores = found.image_embeds @ found.text_embeds.T
            found.logits_per_image = scores * mx.exp(self.logit_scale) + self.logit_bias
        return found

    def sanitize(self, weights):
        beside = {k: v for k, v in weights.items() if k.startswith(("vision_model", "logit_"))}
        return super().sanitize(weights) | VisionModel.sanitize(beside)
