"""Linear attention is computed in chunks where there is no Metal, which loses a digit."""

from mlx_vlm.models.qwen3_5 import gated_delta


class LinearSteps:
    """Linear attention goes token by token where there is no Metal: as exact as on a Mac, and slower there."""

    def __init__(self, config):
        super().__init__(config)

        class Language(type(self.language_model)):
            def __call__(self, *inputs, **named):
                chunked = gated_delta.gated_delta_chunked
                gated_delta.gated_delta_chunked = gated_delta.gated_delta_ops
                try:
                    return super().__call__(*inputs, **named)
                finally:
                    gated_delta.gated_delta_chunked = chunked

        self.language_model.__class__ = Language
