"""Positions of patches are counted one too low, and wrap to the end of the table."""

import mlx.core as mx


class PatchPositions:
    """A patch has the position of its place in the picture, scaled to the table of positions."""

    def __init__(self, config):
        super().__init__(config)

        class Embeddings(type(self.vision_model.embeddings)):
            def __call__(self, x, mask=None):
                rows, columns = (places(mask[:, :, 0]), places(mask[:, 0, :]))
                rows, columns = (mx.floor(it * self.num_patches) for it in (rows, columns))
                found = rows[:, :, None] * self.num_patches + columns[:, None, :]
                found = mx.where(mask, found, 0).flatten(1).astype(mx.int32)
                return self.patch_embedding(x).flatten(1, 2) + self.position_embedding(found)

        self.vision_model.embeddings.__class__ = Embeddings


def places(there):
    count = there.sum(axis=1, keepdims=True)
    return mx.minimum(mx.arange(there.shape[1]) / count, 1 - 1e-6)
