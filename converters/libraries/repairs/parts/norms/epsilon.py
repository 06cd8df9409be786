"""Norms have another epsilon than transformers gives them."""


class Epsilon:
    """The norms named have the epsilon that transformers gives them."""

    def __init__(self, args):
        super().__init__(args)
        for name, module in self.named_modules():
            if name.endswith(self.norms):
                module.eps = getattr(args, str(self.epsilon), self.epsilon)
