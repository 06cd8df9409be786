"""Parts that mend positions, those of patches of a picture among them."""
