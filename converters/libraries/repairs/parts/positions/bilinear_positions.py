"""Positions of patches are interpolated as if the picture had a tenth of a patch more, and go on past edges."""

from mlx_vlm.models.interpolate import resize_bilinear_nhwc


class BilinearPositions:
    """Positions of patches are interpolated linearly to the size of the picture, and end at its edges."""

    def __init__(self, config):
        super().__init__(config)

        class Embeddings(type(self.vision_tower.embeddings)):
            def _interpolate_pos_embed(self, table, height, width):
                return resize_bilinear_nhwc(table, (height, width))

        self.vision_tower.embeddings.__class__ = Embeddings
