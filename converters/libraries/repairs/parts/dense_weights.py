"""Projections are packed with a scale each, and unpacked weights do not load."""

import mlx.nn as nn
from mlx.utils import tree_map_with_path


class DenseWeights:
    """Projections have weights as they are, not packed."""

    def __init__(self, args):
        super().__init__(args)

        def dense(_, layer):
            if isinstance(layer, library.BitLinear):
                return nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
            return layer

        self.update_modules(
            tree_map_with_path(dense, self.leaf_modules(), is_leaf=nn.Module.is_module)
        )
