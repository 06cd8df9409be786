"""T5: an encoder; with a decoder, a sequence to sequence model. Names are those of mlx-examples."""

from __future__ import annotations

import math
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from mlx import nn

from .generating import Generation, LayerPast, Past
from .layers import Args, Outputs, Weights, activation, attention


@dataclass
class ModelArgs(Args):
    """The configuration; see transformers' ``T5Config``."""

    vocab_size: int
    d_model: int
    d_kv: int
    d_ff: int
    num_layers: int
    num_heads: int
    num_decoder_layers: int | None = None
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    layer_norm_epsilon: float = 1e-6
    feed_forward_proj: str = "relu"
    tie_word_embeddings: bool | None = None
    scale_decoder_outputs: bool | None = None
    architectures: list[str] | None = None

    def __post_init__(self) -> None:
        self.num_decoder_layers = (
            self.num_layers if self.num_decoder_layers is None else self.num_decoder_layers
        )
        if self.scale_decoder_outputs is None:  # T5 1.1 says so by not tying its embeddings
            self.scale_decoder_outputs = self.tie_word_embeddings is not False

    @property
    def model_class(self) -> str:
        """The class of transformers that it is."""
        return (self.architectures or ["T5ForConditionalGeneration"])[0]


def buckets(distance: np.ndarray, count: int, longest: int, *, both: bool) -> np.ndarray:
    """Return the bucket of each DISTANCE of a key from its query: near ones have their own.

    Args:
        distance: key minus query, integers.
        count: of all buckets.
        longest: from there on all distances share one.
        both: half of the buckets are for keys behind the query; else those count as distance 0.
    """
    first = (distance > 0) * (count // 2) if both else 0
    count = count // 2 if both else count
    away = np.abs(distance) if both else np.maximum(-distance, 0)
    near = count // 2
    ratio = np.log(np.maximum(away, 1).astype(np.float32) / np.float32(near))
    far = near + (ratio / np.float32(math.log(longest / near)) * (count - near)).astype(int)
    return first + np.where(away < near, away, np.minimum(far, count - 1))


class RelativeAttentionBias(nn.Module):
    """What the distance of a key from its query adds, for each head; all layers share it."""

    def __init__(self, args: ModelArgs, *, both: bool) -> None:
        super().__init__()
        self.count = args.relative_attention_num_buckets
        self.longest = args.relative_attention_max_distance
        self.both = both
        self.embeddings = nn.Embedding(self.count, args.num_heads)

    def __call__(self, length: int, first: int = 0) -> mx.array:
        positions = np.arange(length)
        distance = positions[None, :] - positions[first:, None]
        found = buckets(distance, self.count, self.longest, both=self.both)
        return self.embeddings(mx.array(found)).transpose(2, 0, 1)[None]


class Attention(nn.Module):
    """Attention to the sequence itself or to another one; its products are not scaled."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.heads, inner = args.num_heads, args.num_heads * args.d_kv
        self.query_proj = nn.Linear(args.d_model, inner, bias=False)
        self.key_proj = nn.Linear(args.d_model, inner, bias=False)
        self.value_proj = nn.Linear(args.d_model, inner, bias=False)
        self.out_proj = nn.Linear(inner, args.d_model, bias=False)

    def __call__(
        self, x: mx.array, source: mx.array, mask: mx.array | None, past: Past | None = None
    ) -> mx.array:
        past = past or Past(grows=False)
        keys, values = past(lambda: (self.key_proj(source), self.value_proj(source)))
        return self.out_proj(attention(self.query_proj(x), keys, values, self.heads, 1.0, mask))


class DenseActivation(nn.Module):
    """The feed-forward part; gated where the configuration says ``gated-``."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        gated, _, name = args.feed_forward_proj.rpartition("-")
        self.gated = bool(gated)
        if self.gated:
            self.wi_0 = nn.Linear(args.d_model, args.d_ff, bias=False)
            self.wi_1 = nn.Linear(args.d_model, args.d_ff, bias=False)
        else:
            self.wi = nn.Linear(args.d_model, args.d_ff, bias=False)
        self.wo = nn.Linear(args.d_ff, args.d_model, bias=False)
        self.act = activation("gelu_new" if self.gated and name == "gelu" else name)

    def __call__(self, x: mx.array) -> mx.array:
        if self.gated:
            return self.wo(self.act(self.wi_0(x)) * self.wi_1(x))
        return self.wo(self.act(self.wi(x)))


class EncoderLayer(nn.Module):
    """Attention and feed-forward, each behind its norm."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.attention = Attention(args)
        self.ln1 = nn.RMSNorm(args.d_model, args.layer_norm_epsilon)
        self.ln2 = nn.RMSNorm(args.d_model, args.layer_norm_epsilon)
        self.dense = DenseActivation(args)

    def __call__(self, x: mx.array, mask: mx.array) -> mx.array:
        normed = self.ln1(x)
        x = x + self.attention(normed, normed, mask)
        return x + self.dense(self.ln2(x))


class DecoderLayer(nn.Module):
    """Attention to what came before, attention to the encoder, feed-forward."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.self_attention = Attention(args)
        self.cross_attention = Attention(args)
        self.ln1 = nn.RMSNorm(args.d_model, args.layer_norm_epsilon)
        self.ln2 = nn.RMSNorm(args.d_model, args.layer_norm_epsilon)
        self.ln3 = nn.RMSNorm(args.d_model, args.layer_norm_epsilon)
        self.dense = DenseActivation(args)

    def __call__(
        self,
        x: mx.array,
        mask: mx.array,
        memory: mx.array,
        memory_mask: mx.array | None,
        past: LayerPast,
    ) -> mx.array:
        normed = self.ln1(x)
        x = x + self.self_attention(normed, normed, mask, past.own)
        x = x + self.cross_attention(self.ln2(x), memory, memory_mask, past.cross)
        return x + self.dense(self.ln3(x))


class Encoder(nn.Module):
    """The encoder."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.layers = [EncoderLayer(args) for _ in range(args.num_layers)]
        self.ln = nn.RMSNorm(args.d_model, args.layer_norm_epsilon)
        self.relative_attention_bias = RelativeAttentionBias(args, both=True)

    def __call__(self, x: mx.array, mask: mx.array | None) -> mx.array:
        bias = self.relative_attention_bias(x.shape[1])
        bias = bias if mask is None else bias + mask
        for layer in self.layers:
            x = layer(x, bias)
        return self.ln(x)


class Decoder(nn.Module):
    """The decoder, without the head."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.layers = [DecoderLayer(args) for _ in range(args.num_decoder_layers or 0)]
        self.ln = nn.RMSNorm(args.d_model, args.layer_norm_epsilon)
        self.relative_attention_bias = RelativeAttentionBias(args, both=False)

    def __call__(
        self,
        x: mx.array,
        memory: mx.array,
        memory_mask: mx.array | None,
        past: list[LayerPast] | None = None,
    ) -> mx.array:
        past = past or self.past()
        first = past[0].tokens if past else 0
        length = first + x.shape[1]
        causal = nn.MultiHeadAttention.create_additive_causal_mask(length, x.dtype)[first:]
        bias = self.relative_attention_bias(length, first) + causal
        for layer, kept in zip(self.layers, past, strict=True):
            x = layer(x, bias, memory, memory_mask, kept)
        return self.ln(x)

    def past(self) -> list[LayerPast]:
        """Return what the layers keep of a text that is not begun."""
        return [LayerPast() for _ in self.layers]


class OutputHead(nn.Module):
    """The logits of a model that does not share its embeddings with them."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.linear = nn.Linear(args.d_model, args.vocab_size, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        return self.linear(x)


class Model(nn.Module):
    """T5 as its configuration says: the encoder, both halves, or both with logits."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.args, self.generation = args, Generation()
        self.wte = nn.Embedding(args.vocab_size, args.d_model)
        self.encoder = Encoder(args)
        if args.model_class != "T5EncoderModel":
            self.decoder = Decoder(args)
        if self._generates and args.tie_word_embeddings is False:
            self.lm_head = OutputHead(args)

    def sanitize(self, weights: Weights) -> Weights:
        """Return WEIGHTS as they are; where there is no head among them it is the embeddings."""
        if "lm_head.linear.weight" not in weights:
            self.pop("lm_head", None)
        elif self._generates and "lm_head" not in self:  # tied, and stored all the same
            self.lm_head = OutputHead(self.args)
        return weights

    @property
    def _generates(self) -> bool:
        return self.args.model_class == "T5ForConditionalGeneration"

    def encode(self, input_ids: mx.array, attention_mask: mx.array | None = None) -> mx.array:
        """Return the hidden states of INPUT_IDS, both ``[batch, sequence]``; 0 masks a token."""
        return self.encoder(self.wte(input_ids), self.added(attention_mask))

    def added(self, mask: mx.array | None) -> mx.array | None:
        """Return what MASK, 1 for a token that is there, adds to the products of attention."""
        if mask is None:
            return None
        dtype = self.wte.weight.dtype
        hidden = mx.where(mask == 0, mx.finfo(dtype).min, 0.0)
        return hidden.astype(dtype)[:, None, None, :]

    def decode(
        self,
        decoder_input_ids: mx.array,
        memory: mx.array,
        mask: mx.array | None = None,
        past: list[LayerPast] | None = None,
    ) -> mx.array:
        """Return the hidden states of the ids, given the encoder's MEMORY, its MASK and the PAST ids."""
        return self.decoder(self.wte(decoder_input_ids), memory, self.added(mask), past)

    def generate(
        self,
        input_ids: mx.array,
        attention_mask: mx.array | None = None,
        *,
        count: int = 64,
        start: mx.array | None = None,
    ) -> mx.array:
        """Return texts of up to COUNT greedy tokens behind START, ``[batch, tokens]``.

        Args:
            input_ids: what is read, ``[batch, sequence]``.
            attention_mask: 0 for a token that is not there.
            count: how many tokens are added at most.
            start: what the texts begin with; by default as ``generation_config.json`` says.

        Raises:
            ValueError: nothing says what a text begins with.
        """
        first = self.generation.first(len(input_ids), start)
        memory, past = self.encode(input_ids, attention_mask), self.decoder.past()

        def step(ids: mx.array) -> mx.array:
            return self.logits(self.decode(ids, memory, attention_mask, past)[:, -1])

        return self.generation.greedy(step, first, count)

    def logits(self, x: mx.array) -> mx.array:
        """Return the scores of every word of the vocabulary."""
        x = x * self.args.d_model**-0.5 if self.args.scale_decoder_outputs else x
        return self.lm_head(x) if "lm_head" in self else self.wte.as_linear(x)

    def __call__(
        self,
        input_ids: mx.array,
        attention_mask: mx.array | None = None,
        decoder_input_ids: mx.array | None = None,
    ) -> Outputs:
        memory = self.encode(input_ids, attention_mask)
        if decoder_input_ids is None or "decoder" not in self:
            return {"last_hidden_state": memory}
        hidden = self.decode(decoder_input_ids, memory, attention_mask)
        if self.args.model_class == "T5ForConditionalGeneration":
            return {"logits": self.logits(hidden), "encoder_last_hidden_state": memory}
        return {"last_hidden_state": hidden, "encoder_last_hidden_state": memory}
