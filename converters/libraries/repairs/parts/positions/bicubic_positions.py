"""Positions of patches are interpolated linearly, and are nothing beyond the edge."""

import mlx.core as mx


class BicubicPositions:
    """Positions of patches are interpolated cubically, and go on beyond the edge."""

    def __init__(self, config):
        super().__init__(config)

        class Embeddings(type(self.vision_tower.embeddings)):
            def __call__(self, embeddings, lengths, image_shapes, h_coords, w_coords):
                weight = self.position_embedding.weight.astype(mx.float32)
                side = int(weight.shape[0] ** 0.5)
                sizes = zip(image_shapes, lengths)
                sizes = mx.concatenate([mx.broadcast_to(it[1:], (n, 2)) for it, n in sizes])
                rows, down = taps(h_coords, sizes[:, 0], side)
                columns, across = taps(w_coords, sizes[:, 1], side)
                near = weight[rows[:, :, None] * side + columns[:, None, :]]
                shares = (down[:, :, None] * across[:, None, :])[..., None]
                return embeddings + (near * shares).sum((1, 2)).astype(embeddings.dtype)

        self.vision_tower.embeddings.__class__ = Embeddings


def taps(places, sizes, side):
    at = (places + 0.5) * side / sizes - 0.5
    first = mx.floor(at)
    t = (at - first)[:, None] + mx.array([1, 0, -1, -2])
    t = mx.abs(t)
    inner = (1.25 * t - 2.25) * t * t + 1
    outer = ((-0.75 * t + 3.75) * t - 6) * t + 3
    index = first.astype(mx.int32)[:, None] + mx.arange(-1, 3)
    return mx.clip(index, 0, side - 1), mx.where(t <= 1, inner, outer)
