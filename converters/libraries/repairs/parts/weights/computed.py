"""The class wants as weights what is computed from the configuration, and save_pretrained leaves out."""


class Computed:
    """What is computed from the configuration is no weight; one that is there all the same is left out."""

    def __init__(self, config):
        super().__init__(config)
        for module in self.modules():
            for name in self.computed & module.keys():
                known = {name: module.pop(name)}
                module.__class__ = type(type(module).__name__, (type(module),), known)

    def sanitize(self, weights):
        kept = super().sanitize(weights)
        return {k: v for k, v in kept.items() if k.rpartition(".")[2] not in self.computed}
