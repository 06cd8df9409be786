"""Positions of one text are kept for the next, which then fails or is read by them."""


class NewPositions:
    """Positions are counted from the start for every text."""

    def __init__(self, config):
        super().__init__(config)

        class Language(type(self.language_model)):
            _position_ids = property(*[lambda *_: None] * 3)  # read, set, deleted

        self.language_model.__class__ = Language
