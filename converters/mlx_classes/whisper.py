"""Whisper: an encoder of spectrograms and a decoder of text. Names are those of mlx-examples."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
from mlx import nn

from .generating import Generation, LayerPast, Past
from .layers import Args, Outputs, Weights, activation, attention, head_of, without


@dataclass
class ModelArgs(Args):
    """The configuration; see transformers' ``WhisperConfig``."""

    vocab_size: int
    num_mel_bins: int
    d_model: int
    encoder_layers: int
    encoder_attention_heads: int
    encoder_ffn_dim: int
    decoder_layers: int
    decoder_attention_heads: int
    decoder_ffn_dim: int
    max_source_positions: int = 1500
    max_target_positions: int = 448
    activation_function: str = "gelu"
    architectures: list[str] | None = None


class MultiHeadAttention(nn.Module):
    """Attention; the keys have no bias."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def __call__(
        self, x: mx.array, source: mx.array, mask: str | None = None, past: Past | None = None
    ) -> mx.array:
        past = past or Past(grows=False)
        keys, values = past(lambda: (self.key(source), self.value(source)))
        return self.out(attention(self.query(x), keys, values, self.heads, self.scale, mask))


class Block(nn.Module):
    """A layer of the encoder, or, where it attends to that too, of the decoder."""

    def __init__(self, args: ModelArgs, heads: int, wide: int, *, cross: bool) -> None:
        super().__init__()
        width = args.d_model
        self.attn, self.attn_ln = MultiHeadAttention(width, heads), nn.LayerNorm(width)
        if cross:
            self.cross_attn, self.cross_attn_ln = (
                MultiHeadAttention(width, heads),
                nn.LayerNorm(width),
            )
        self.mlp1, self.mlp2 = nn.Linear(width, wide), nn.Linear(wide, width)
        self.mlp_ln = nn.LayerNorm(width)
        self.act = activation(args.activation_function)

    def __call__(
        self, x: mx.array, memory: mx.array | None = None, past: LayerPast | None = None
    ) -> mx.array:
        normed, past = self.attn_ln(x), past or LayerPast()
        x = x + self.attn(normed, normed, None if memory is None else "causal", past.own)
        if memory is not None:
            x = x + self.cross_attn(self.cross_attn_ln(x), memory, past=past.cross)
        return x + self.mlp2(self.act(self.mlp1(self.mlp_ln(x))))


class AudioEncoder(nn.Module):
    """Spectrograms to hidden states, half as many."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        width, heads, wide = args.d_model, args.encoder_attention_heads, args.encoder_ffn_dim
        self.conv1 = nn.Conv1d(args.num_mel_bins, width, 3, padding=1)
        self.conv2 = nn.Conv1d(width, width, 3, stride=2, padding=1)
        self.positional_embedding = mx.zeros((args.max_source_positions, width))
        self.blocks = [Block(args, heads, wide, cross=False) for _ in range(args.encoder_layers)]
        self.ln_post = nn.LayerNorm(width)

    def __call__(self, input_features: mx.array) -> mx.array:
        x = nn.gelu(self.conv1(input_features.transpose(0, 2, 1)))
        x = nn.gelu(self.conv2(x)) + self.positional_embedding
        for block in self.blocks:
            x = block(x)
        return self.ln_post(x)


class TextDecoder(nn.Module):
    """The ids so far, and the encoder's hidden states, to those of the next ids."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        width, heads, wide = args.d_model, args.decoder_attention_heads, args.decoder_ffn_dim
        self.token_embedding = nn.Embedding(args.vocab_size, width)
        self.positional_embedding = mx.zeros((args.max_target_positions, width))
        self.blocks = [Block(args, heads, wide, cross=True) for _ in range(args.decoder_layers)]
        self.ln = nn.LayerNorm(width)

    def __call__(
        self, ids: mx.array, memory: mx.array, past: list[LayerPast] | None = None
    ) -> mx.array:
        past = past or self.past()
        first = past[0].tokens if past else 0
        places = self.positional_embedding[first : first + ids.shape[1]]
        x = self.token_embedding(ids) + places
        for block, kept in zip(self.blocks, past, strict=True):
            x = block(x, memory, kept)
        return self.ln(x)

    def past(self) -> list[LayerPast]:
        """Return what the layers keep of a text that is not begun."""
        return [LayerPast() for _ in self.blocks]


class Model(nn.Module):
    """Whisper; its logits share the embeddings."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.args, self.generation = args, Generation()
        self.generates = head_of(args.architectures) == "ForConditionalGeneration"
        self.encoder = AudioEncoder(args)
        self.decoder = TextDecoder(args)

    def sanitize(self, weights: Weights) -> Weights:
        """Return WEIGHTS, the positions under a name that MLX takes for a parameter's."""
        own, hidden = "encoder.positional_embedding", "encoder._positional_embedding"
        kept = without(weights, "alignment_heads")
        return {own if name == hidden else name: array for name, array in kept.items()}

    def encode(self, input_features: mx.array) -> mx.array:
        """Return the hidden states of INPUT_FEATURES, ``[batch, bands, frames]``."""
        return self.encoder(input_features)

    def decode(
        self, decoder_input_ids: mx.array, memory: mx.array, past: list[LayerPast] | None = None
    ) -> mx.array:
        """Return the hidden states of the ids, given those of the encoder and the PAST ids."""
        return self.decoder(decoder_input_ids, memory, past)

    def generate(
        self, input_features: mx.array, *, count: int = 64, start: mx.array | None = None
    ) -> mx.array:
        """Return texts of up to COUNT greedy tokens behind START, ``[batch, tokens]``.

        Args:
            input_features: spectrograms, ``[batch, bands, frames]``.
            count: how many tokens are added at most.
            start: what the texts begin with, language and task among it; by default the one token
                that ``generation_config.json`` names, and no language is detected.

        Raises:
            ValueError: nothing says what a text begins with, or it has more tokens than positions.
        """
        first = self.generation.first(len(input_features), start)
        if first.shape[1] + count > self.args.max_target_positions:
            most = self.args.max_target_positions - first.shape[1]
            raise ValueError(f"count={count}: behind this start there is room for {most} tokens")
        memory, past = self.encode(input_features), self.decoder.past()

        def step(ids: mx.array) -> mx.array:
            return self.logits(self.decode(ids, memory, past)[:, -1])

        return self.generation.greedy(step, first, count)

    def logits(self, x: mx.array) -> mx.array:
        """Return the scores of every word of the vocabulary."""
        return self.decoder.token_embedding.as_linear(x)

    def __call__(self, input_features: mx.array, decoder_input_ids: mx.array) -> Outputs:
        memory = self.encode(input_features)
        hidden = self.decode(decoder_input_ids, memory)
        if self.generates:
            return {"logits": self.logits(hidden), "encoder_last_hidden_state": memory}
        return {"last_hidden_state": hidden, "encoder_last_hidden_state": memory}
