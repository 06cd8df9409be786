"""Norms of the tower have an epsilon that is fixed."""


class TowerEpsilon:
    """The norms of the tower that are named have the epsilon of config.json."""

    def __init__(self, config):
        super().__init__(config)
        for name, module in self.named_modules():
            if name.startswith("vision") and name.endswith(self.norms):
                module.eps = getattr(config.vision_config, self.epsilon)
