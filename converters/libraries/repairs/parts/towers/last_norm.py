"""Pictures are taken before the last norm of their tower."""


class LastNorm:
    """Pictures are taken after the last norm of their tower."""

    def __init__(self, config):
        super().__init__(config)

        class Tower(type(self.vision_tower)):
            def __call__(self, *args, **named):
                normed, first, states = super().__call__(*args, **named)
                return normed, first, (*states, normed)

        self.vision_tower.__class__ = Tower
