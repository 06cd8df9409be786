# ruff: noqa: D101, D102, D103 - a layer says what calling it does
"""The same three steps as somebody writes them for MLX, with its fast kernels; weights by torch's names."""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
from mlx import nn

from .workloads import RANK, SCALE


class Linear(nn.Module):
    """A linear layer, with a low-rank update where RANK is given."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True, rank: int = 0):
        super().__init__()
        self.weight = mx.zeros((outputs, inputs))
        if bias:
            self.bias = mx.zeros(outputs)
        if rank:
            bound = 1 / math.sqrt(inputs)
            self.lora_a = mx.random.uniform(-bound, bound, (inputs, rank))
            self.lora_b = mx.zeros((rank, outputs))

    def __call__(self, x):
        y = mx.addmm(self.bias, x, self.weight.T) if "bias" in self else x @ self.weight.T
        if "lora_a" in self:
            y = y + SCALE * ((x @ self.lora_a) @ self.lora_b)
        return y


def heads(x, count):
    """Return X, shape (batch, sequence, features), as (batch, heads, sequence, width)."""
    return x.reshape(*x.shape[:2], count, -1).transpose(0, 2, 1, 3)


def merged(x):
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)


class Part(nn.Module):
    """A module made of what it is given."""

    def __init__(self, /, **parts: Any):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


class BertLayer(nn.Module):
    def __init__(self, c, adapted):
        super().__init__()
        wide, eps = c.hidden_size, c.layer_norm_eps
        ranks = {name: RANK * (name in adapted) for name in ("query", "key", "value")}
        self.attention = Part(
            self=Part(**{name: Linear(wide, wide, rank=rank) for name, rank in ranks.items()}),
            output=Part(dense=Linear(wide, wide), LayerNorm=nn.LayerNorm(wide, eps=eps)),
        )
        self.intermediate = Part(dense=Linear(wide, c.intermediate_size))
        self.output = Part(
            dense=Linear(c.intermediate_size, wide), LayerNorm=nn.LayerNorm(wide, eps=eps)
        )
        self.count, self.scale = c.num_attention_heads, (wide // c.num_attention_heads) ** -0.5

    def __call__(self, x):
        own = self.attention["self"]
        q, k, v = (heads(each(x), self.count) for each in (own.query, own.key, own.value))
        attended = merged(mx.fast.scaled_dot_product_attention(q, k, v, scale=self.scale))
        out = self.attention.output
        x = out.LayerNorm(out.dense(attended) + x)
        return self.output.LayerNorm(self.output.dense(nn.gelu(self.intermediate.dense(x))) + x)


class Bert(nn.Module):
    """InfoNCE over BERT, perhaps with LoRA at what is ADAPTED."""

    def __init__(self, c, adapted=()):
        super().__init__()
        self.model = Part(
            embeddings=Part(
                word_embeddings=nn.Embedding(c.vocab_size, c.hidden_size),
                position_embeddings=nn.Embedding(c.max_position_embeddings, c.hidden_size),
                token_type_embeddings=nn.Embedding(c.type_vocab_size, c.hidden_size),
                LayerNorm=nn.LayerNorm(c.hidden_size, eps=c.layer_norm_eps),
            ),
            encoder=Part(layer=[BertLayer(c, adapted) for _ in range(c.num_hidden_layers)]),
        )

    def __call__(self, input_ids):
        e = self.model.embeddings
        x = e.word_embeddings(input_ids) + e.token_type_embeddings.weight[0]
        x = e.LayerNorm(x + e.position_embeddings.weight[: input_ids.shape[1]])
        for layer in self.model.encoder.layer:
            x = layer(x)
        vectors = mx.mean(x, axis=1).astype(mx.float32)
        vectors = vectors / mx.linalg.norm(vectors, axis=-1, keepdims=True)
        queries, documents = mx.split(vectors, 2)
        scores = queries @ documents.T * 20
        return nn.losses.cross_entropy(scores, mx.arange(len(scores)), reduction="mean")


class T5Layer(nn.Module):
    def __init__(self, c, first):
        super().__init__()
        wide, inner = c.d_model, c.num_heads * c.d_kv
        own = Part(**{name: Linear(wide, inner, False, RANK) for name in "qkv"})
        own.o = Linear(inner, wide, False, RANK)
        if first:
            own.relative_attention_bias = nn.Embedding(
                c.relative_attention_num_buckets, c.num_heads
            )
        eps = c.layer_norm_epsilon
        dense = Part(wi=Linear(wide, c.d_ff, False), wo=Linear(c.d_ff, wide, False))
        self.layer = [
            Part(SelfAttention=own, layer_norm=nn.RMSNorm(wide, eps)),
            Part(DenseReluDense=dense, layer_norm=nn.RMSNorm(wide, eps)),
        ]
        self.count = c.num_heads

    def __call__(self, x, bias):
        attention, feed = self.layer
        own, y = attention.SelfAttention, attention.layer_norm(x)
        q, k, v = (heads(each(y), self.count) for each in (own.q, own.k, own.v))
        attended = mx.fast.scaled_dot_product_attention(q, k, v, scale=1.0, mask=bias)
        x = x + own.o(merged(attended))
        dense = feed.DenseReluDense
        return x + dense.wo(nn.relu(dense.wi(feed.layer_norm(x))))


class T5(nn.Module):
    """MaxSim over the encoder of T5."""

    def __init__(self, c):
        super().__init__()
        self.model = Part(
            shared=nn.Embedding(c.vocab_size, c.d_model),
            encoder=Part(
                block=[T5Layer(c, i == 0) for i in range(c.num_layers)],
                final_layer_norm=nn.RMSNorm(c.d_model, c.layer_norm_epsilon),
            ),
        )
        self.projection = Linear(c.d_model, 128, False)
        self.buckets, self.distance = (
            c.relative_attention_num_buckets,
            c.relative_attention_max_distance,
        )

    def bias(self, length):
        """Return the bias of attention by distance (Raffel et al. 2020, section 2.1)."""
        near = self.buckets // 4
        offset = mx.arange(length)[None] - mx.arange(length)[:, None]
        size = mx.abs(offset)
        far = mx.log(size.astype(mx.float32) / near) / math.log(self.distance / near) * near
        far = mx.minimum(near + far.astype(mx.int32), self.buckets // 2 - 1)
        bucket = mx.where(offset > 0, self.buckets // 2, 0) + mx.where(size < near, size, far)
        table = self.model.encoder.block[0].layer[0].SelfAttention.relative_attention_bias
        return table(bucket).transpose(2, 0, 1)[None]

    def vectors(self, ids):
        x, bias = self.model.shared(ids), self.bias(ids.shape[1])
        for block in self.model.encoder.block:
            x = block(x, bias)
        y = self.projection(self.model.encoder.final_layer_norm(x))
        wide = y.astype(mx.float32)
        return (wide / mx.linalg.norm(wide, axis=-1, keepdims=True)).astype(y.dtype)

    def __call__(self, queries, documents):
        q, d = self.vectors(queries), self.vectors(documents)
        scores = (q.reshape(-1, 128) @ d.reshape(-1, 128).T).astype(mx.float32)
        scores = mx.max(scores.reshape(*q.shape[:2], *d.shape[:2]), axis=-1).sum(axis=1)
        return nn.losses.cross_entropy(scores, mx.arange(len(scores)), reduction="mean")


class LlamaLayer(nn.Module):
    def __init__(self, c):
        super().__init__()
        wide, width = c.hidden_size, c.hidden_size // c.num_attention_heads
        kv = width * c.num_key_value_heads
        self.self_attn = Part(
            q_proj=Linear(wide, wide, False, RANK),
            k_proj=Linear(wide, kv, False, RANK),
            v_proj=Linear(wide, kv, False, RANK),
            o_proj=Linear(wide, wide, False, RANK),
        )
        self.mlp = Part(
            gate_proj=Linear(wide, c.intermediate_size, False, RANK),
            up_proj=Linear(wide, c.intermediate_size, False, RANK),
            down_proj=Linear(c.intermediate_size, wide, False, RANK),
        )
        self.input_layernorm = nn.RMSNorm(wide, c.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(wide, c.rms_norm_eps)
        self.counts = c.num_attention_heads, c.num_key_value_heads
        self.rope = nn.RoPE(width, base=500000.0)
        self.scale = width**-0.5

    def __call__(self, x):
        own, y = self.self_attn, self.input_layernorm(x)
        q, k = (
            self.rope(heads(f(y), n))
            for f, n in zip((own.q_proj, own.k_proj), self.counts, strict=True)
        )
        v = heads(own.v_proj(y), self.counts[1])
        attended = mx.fast.scaled_dot_product_attention(q, k, v, scale=self.scale, mask="causal")
        x = x + own.o_proj(merged(attended))
        y, mlp = self.post_attention_layernorm(x), self.mlp
        return x + mlp.down_proj(nn.silu(mlp.gate_proj(y)) * mlp.up_proj(y))


class Llama(nn.Module):
    """The loss of a language model over Llama."""

    def __init__(self, c):
        super().__init__()
        self.model = Part(
            model=Part(
                embed_tokens=nn.Embedding(c.vocab_size, c.hidden_size),
                layers=[LlamaLayer(c) for _ in range(c.num_hidden_layers)],
                norm=nn.RMSNorm(c.hidden_size, c.rms_norm_eps),
            )
        )

    def __call__(self, input_ids):
        own = self.model.model
        x = own.embed_tokens(input_ids)
        for layer in own.layers:
            x = layer(x)
        logits = own.embed_tokens.as_linear(own.norm(x))[:, :-1].astype(mx.float32)
        return nn.losses.cross_entropy(logits, input_ids[:, 1:], reduction="mean")


class MiniLM(Bert):
    def __init__(self, c):
        super().__init__(c, ("query", "value"))


BY_HAND = {"bert": Bert, "minilm": MiniLM, "t5": T5, "llama": Llama}
