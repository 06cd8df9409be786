"""Every so many layers is one of full attention, whatever layers config.json names."""

from mlx_lm.models.rope_utils import initialize_rope


class LayerKinds:
    """Layers have the window and the rotation of the kind that config.json names."""

    def __init__(self, args):
        text = vars(args).get("text_config") or vars(args)
        text["sliding_window_pattern"] = 1  # all as those of full attention
        super().__init__(args)
        base = getattr(self, "language_model", self).args.rope_local_base_freq
        for attention in (layer.self_attn for layer in self.layers):
            if attention.window:
                attention.rope = initialize_rope(attention.head_dim, base, traditional=False)
