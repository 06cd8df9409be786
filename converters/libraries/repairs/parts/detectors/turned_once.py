"""Kernels of convolutions are turned whenever they are loaded, those too that lie as the class has them."""

from mlx.utils import tree_flatten


class TurnedOnce:
    """Weights that have the class's own names lie as it has them, and are left so."""

    def sanitize(self, weights):
        own = {name for name, value in tree_flatten(self.parameters()) if value.ndim == 4}
        return weights if own <= weights.keys() else super().sanitize(weights)
