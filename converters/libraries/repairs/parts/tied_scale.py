"""A tied head is given hidden states that are not scaled."""


class TiedScale:
    """A tied head is given hidden states divided by `hidden_size / dim_model_base`, as another is."""

    def __call__(self, *inputs, **named):
        out = super().__call__(*inputs, **named)
        scale = self.args.hidden_size / self.args.dim_model_base
        return out / scale if self.args.tie_word_embeddings else out
