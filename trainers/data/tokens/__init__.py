"""Texts as token ids: coded, cut or packed, hidden, and padded to a few lengths."""
