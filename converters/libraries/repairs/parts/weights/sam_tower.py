"""The tower of SAM has one size, and the tower behind it wants weights that nothing reads."""

import mlx.nn as nn
from mlx_vlm.models.deepseekocr.sam import SAMEncoder


class SamTower:
    """The tower of SAM has the sizes of config.json, and the tower behind it no patches of its own."""

    def __init__(self, config):
        super().__init__(config)
        own, behind = config.vision_config.params, self.vision_model.embeddings
        if not own:  # as published: the one size
            return
        inner, last = own["downsample_channels"]
        self.sam_model = SAMEncoder(
            img_size=own["image_size"],
            patch_size=own["patch_size"],
            embed_dim=own["hidden_size"],
            depth=own["num_hidden_layers"],
            num_heads=own["num_attention_heads"],
            mlp_ratio=own["mlp_dim"] / own["hidden_size"],
            out_chans=own["output_channels"],
            window_size=own["window_size"],
            global_attn_indexes=own["global_attn_indexes"],
        )
        how = {"kernel_size": 3, "stride": 2, "padding": 1, "bias": False}
        self.sam_model.net_2 = nn.Conv2d(own["output_channels"], inner, **how)
        self.sam_model.net_3 = nn.Conv2d(inner, last, **how)
        del behind.patch_embedding
        behind.num_positions = (config.vision_config.image_size // behind.patch_size) ** 2 + 1
        behind.position_embedding = nn.Embedding(behind.num_positions, behind.embed_dim)
