"""Sections of rotary positions are gone through twice, where each is twice as long."""


class RotarySections:
    """Each kind of position has one section of a head, twice as long as config.json says."""

    def __init__(self, config):
        super().__init__(config)
        for layer in self.layers:
            layer.self_attn.xdrope_section = Doubled(layer.self_attn.xdrope_section)


class Doubled(list):
    def __mul__(self, times):
        return [times * it for it in self]
