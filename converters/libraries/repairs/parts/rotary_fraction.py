"""Whole heads are rotated, where config.json names a part of them."""


class RotaryFraction:
    """The first part of each head is rotated, as large as `partial_rotary_factor` says."""

    def __init__(self, args):
        super().__init__(args)
        for layer in self.layers:
            rope = layer.self_attn.rope
            rope.dims = int(rope.dims * args.partial_rotary_factor)
