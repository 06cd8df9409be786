"""Small modules that MLX alone has, with factories that say what they take: ``MODULES`` names them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import mlx.core as mx
from mlx import nn

from weighbridge.converters.models import Port, Signature

VOCABULARY: Final = 50
LLAMA: Final = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCABULARY,
}
QWEN: Final = {"head_dim": 16, "rope_theta": 1e4, "max_position_embeddings": 64}
GEMMA: Final = {"sliding_window": 4, "sliding_window_pattern": 2, "query_pre_attn_scalar": 16}
EXPERTS: Final = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
}
GPT2: Final = {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_ctx": 64, "n_positions": 64}
MAMBA: Final = {"state_size": 4, "conv_kernel": 4, "use_bias": False, "use_conv_bias": True}


class Encoder(nn.Module):
    """Quantized layers, a norm, a convolution and a GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(6, 64, 3, padding=1)
        self.norm = nn.RMSNorm(64)
        self.layer = nn.Linear(64, 64)
        self.gru = nn.GRU(64, 32)

    def __call__(self, series: mx.array) -> mx.array:
        """Return the last state."""
        hidden = nn.gelu(self.norm(self.conv(series)))
        return self.gru(hidden + self.layer(hidden))[:, -1]


class Transformer(nn.Module):
    """``nn.TransformerEncoder`` with padding, and a mean of what is none."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 64)
        self.encoder = nn.TransformerEncoder(2, 64, 4, 128, norm_first=True)
        self.head = nn.Linear(64, 16)

    def __call__(self, ids: mx.array, mask: mx.array) -> mx.array:
        """Return one embedding per row."""
        seen = mask[:, None, None, :] > 0
        hidden = self.encoder(self.embed(ids), mx.where(seen, 0.0, -1e9))
        weights = mask[..., None].astype(hidden.dtype)
        return self.head((hidden * weights).sum(1) / weights.sum(1))


class Convolutions(nn.Module):
    """Convolutions, batch and group norms, pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.pool = (
            nn.Conv2d(3, 16, 3, padding=1),
            nn.BatchNorm(16),
            nn.MaxPool2d(2),
        )
        self.body = nn.Conv2d(16, 16, 3, stride=2, padding=1, bias=False)
        self.groups = nn.GroupNorm(4, 16, pytorch_compatible=True)
        self.head = nn.Linear(16, 16)

    def __call__(self, image: mx.array) -> mx.array:
        """Return a vector per image, channels last."""
        hidden = self.pool(nn.relu(self.norm(self.stem(image))))
        return self.head(nn.silu(self.groups(self.body(hidden))).mean((1, 2)))


class UNet(nn.Module):
    """Down, up by a transposed convolution and by nearest neighbours, and a connection across."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.middle = (
            nn.Conv2d(3, 16, 3, stride=2, padding=1),
            nn.Conv2d(16, 16, 3, padding=1),
        )
        self.up, self.nearest = nn.ConvTranspose2d(16, 16, 2, stride=2), nn.Upsample(2)
        self.head = nn.Conv2d(19, 3, 3, padding=1)

    def __call__(self, image: mx.array) -> mx.array:
        """Return an image of the same size."""
        hidden = nn.gelu(self.middle(nn.gelu(self.down(image))))
        wide = self.up(hidden) + self.nearest(hidden)
        return self.head(mx.concatenate([wide, image], -1))


class Recurrent(nn.Module):
    """A recurrent layer of one KIND below another."""

    def __init__(self, kind: type[nn.Module], above: type[nn.Module]) -> None:
        super().__init__()
        self.first, self.second, self.head = kind(6, 32), above(32, 32), nn.Linear(32, 16)

    def __call__(self, series: mx.array) -> mx.array:
        """Return a vector per series."""
        for layer in (self.first, self.second):
            made = layer(series)
            series = made[0] if isinstance(made, tuple) else made
        return self.head(series[:, -1])


def language_model(kind: str, quantize: dict[str, Any] | None = None, **settings: Any) -> nn.Module:
    """Return mlx-lm's class of KIND, small, its weights random."""
    home = importlib.import_module(f"mlx_lm.models.{kind}")
    module = home.Model(home.ModelArgs.from_dict({"model_type": kind, **LLAMA, **settings}))
    if quantize:
        nn.quantize(module, **quantize)
    return module


def quantized_encoder() -> nn.Module:
    """Return an :class:`Encoder`, its layer quantized."""
    module = Encoder()
    nn.quantize(module, group_size=32, bits=4, class_predicate=lambda path, _: path == "layer")
    return module


def tokens(*names: str, out: tuple[Any, ...]) -> Signature:
    """Return the signature of a model of token ids, and perhaps of a mask."""
    roles = ("token_ids", "attention_mask")  # the second where it is there
    upper = (("batch", 4), ("sequence", 16), ("vocabulary", VOCABULARY))
    ports = [
        Port(name, "int64", ("batch", "sequence"), role, upper)
        for name, role in zip(names, roles, strict=False)
    ]
    return Signature(tuple(ports), (Port("logits", "float32", out, "logits"),))


def floats(name: str, role: str, sizes: tuple[int, ...], out: tuple[int, ...]) -> Signature:
    """Return the signature of a model of numbers, of any batch."""
    port = Port(name, "float32", ("batch", *sizes), role, (("batch", 4),))
    return Signature((port,), (Port("last", "float32", ("batch", *out), "hidden"),))


CAUSAL: Final = tokens("inputs", out=("batch", "sequence", VOCABULARY))
TOKENS_OF_MAMBA: Final = Signature(
    (
        Port(
            "inputs", "int64", ("batch", 6), "token_ids", (("batch", 4), ("vocabulary", VOCABULARY))
        ),
    ),
    (Port("logits", "float32", ("batch", 6, VOCABULARY), "logits"),),
)
SERIES: Final = floats("series", "series", (5, 6), (16,))
FOUR_BITS: Final = {"group_size": 32, "bits": 4}
MXFP4: Final = {"mode": "mxfp4", "group_size": 32, "bits": 4}
MODULES: Final[dict[str, tuple[Callable[[], nn.Module], Signature]]] = {
    "llama": (partial(language_model, "llama"), CAUSAL),
    "qwen3": (partial(language_model, "qwen3", **QWEN, tie_word_embeddings=True), CAUSAL),
    "gemma3": (
        partial(language_model, "gemma3_text", head_dim=16, num_hidden_layers=4, **GEMMA),
        CAUSAL,
    ),
    "gpt2": (partial(language_model, "gpt2", **GPT2, layer_norm_epsilon=1e-5), CAUSAL),
    "qwen3_moe": (
        partial(language_model, "qwen3_moe", **QWEN, **EXPERTS, tie_word_embeddings=False),
        CAUSAL,
    ),
    "mamba": (
        partial(language_model, "mamba", time_step_rank=4, expand=2, **MAMBA),
        TOKENS_OF_MAMBA,
    ),
    "llama_4bit": (partial(language_model, "llama", FOUR_BITS), CAUSAL),
    "qwen3_mxfp4": (
        partial(language_model, "qwen3", MXFP4, **QWEN, tie_word_embeddings=True),
        CAUSAL,
    ),
    "transformer": (Transformer, tokens("ids", "mask", out=("batch", 16))),
    "convolutions": (Convolutions, floats("image", "pixels", (16, 16, 3), (16,))),
    "unet": (UNet, floats("image", "pixels", (16, 16, 3), (16, 16, 3))),
    "lstm": (partial(Recurrent, nn.LSTM, nn.LSTM), SERIES),
    "gru_rnn": (partial(Recurrent, nn.GRU, nn.RNN), SERIES),
    "encoder_4bit": (quantized_encoder, floats("series", "series", (5, 6), (32,))),
}


def built(name: str) -> tuple[nn.Module, Signature]:
    """Return the module NAME, its weights random and the same each time, and what it takes."""
    make, signature = MODULES[name]
    mx.random.seed(0)
    module = make().eval()
    mx.eval(module.parameters())
    return module, signature


def __getattr__(name: str) -> Any:
    """Return the factory of a module, for ``MODULE:NAME`` on the command line."""
    if name not in MODULES:
        raise AttributeError(name)
    return partial(built, name)
