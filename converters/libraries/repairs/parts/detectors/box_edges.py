"""Boxes at an edge, or next to nothing wide, are moved on from a point nearer to it than transformers'."""

from types import FunctionType

import mlx.core as mx
from mlx_vlm.models.sam3 import decoder


class BoxEdges:
    """A box is moved on from a thousandth of a picture within its edges, as transformers does."""

    def __init__(self, config):
        super().__init__(config)

        def inverse(x):
            return mx.log(mx.maximum(x, 1e-3) / mx.maximum(1 - x, 1e-3))

        known = vars(decoder) | {"inverse_sigmoid": inverse}

        class Decoder(decoder.DETRDecoder):
            __call__ = FunctionType(decoder.DETRDecoder.__call__.__code__, known)

        self.detector_model.detr_decoder.__class__ = Decoder
