"""Norms take the epsilon of config.json, where transformers has one of its own."""


class FixedEpsilon:
    """The norms of the parts named have the epsilon that transformers gives them."""

    def __init__(self, config):
        super().__init__(config)
        for name, module in self.named_modules():
            if name.startswith(self.parts) and hasattr(module, "eps"):
                module.eps = self.fixed_epsilon
