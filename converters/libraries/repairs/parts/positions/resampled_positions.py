"""Positions of patches are interpolated otherwise where a picture has another size than the table."""

import mlx.core as mx
from mlx_vlm.models.deepseekocr import sam, vision
from mlx_vlm.models.kernels import bicubic_interpolate


class ResampledPositions:
    """Positions of patches are interpolated as torch does: bicubic in a grid, linear along an axis."""

    def __init__(self, config):
        super().__init__(config)
        self.vision_model.embeddings.__class__ = Embeddings
        for block in self.sam_model.blocks:
            block.attn.__class__ = Attention


class Embeddings(vision.VisionEmbeddings):
    def _get_abs_pos(self, table, count):
        side, wanted = (int((it - 1) ** 0.5) for it in (table.shape[1], count))
        if side == wanted:
            return table
        grid = mx.unflatten(table[:, 1:], 1, (side, side)).transpose(0, 3, 1, 2)
        grid = bicubic_interpolate(grid, size=(wanted, wanted), antialias=True)
        rows = grid.transpose(0, 2, 3, 1).flatten(1, 2)
        return mx.concatenate([table[:, :1], rows], axis=1)


class Attention(sam.Attention):
    def __call__(self, x):
        own = self.rel_pos_h, self.rel_pos_w
        sizes = (2 * it - 1 for it in x.shape[1:3])
        self.rel_pos_h, self.rel_pos_w = map(resampled, own, sizes)
        try:
            return super().__call__(x)
        finally:
            self.rel_pos_h, self.rel_pos_w = own


def resampled(table, count):
    places = mx.maximum((mx.arange(count) + 0.5) * (len(table) / count) - 0.5, 0)
    first = mx.floor(places).astype(mx.int32)
    share = (places - first)[:, None].astype(table.dtype)
    return table[first] * (1 - share) + table[mx.minimum(first + 1, len(table) - 1)] * share
