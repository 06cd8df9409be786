"""The class has no room for layer_scale of the tower, which save_pretrained writes."""

import mlx.core as mx
import mlx.nn as nn


class LayerScale:
    """What attention and MLP of a layer of the tower give is scaled, channel by channel."""

    def __init__(self, config):
        super().__init__(config)

        class Scale(nn.Module):
            def __init__(self, size):
                super().__init__()
                self.lambda1 = mx.ones((size,))

        class Block(type(self.vision_model.radio_model.model.blocks[0])):
            def __call__(self, x):
                x = x + self.layer_scale1.lambda1 * self.attn(self.norm1(x))
                return x + self.layer_scale2.lambda1 * self.mlp(self.norm2(x))

        for block in self.vision_model.radio_model.model.blocks:
            block.__class__ = Block
            size = config.vision_config.hidden_size
            block.layer_scale1, block.layer_scale2 = Scale(size), Scale(size)
