"""wav2vec 2.0: hidden states of a waveform, with a head or without. Names are those of mlx-audio."""

from __future__ import annotations

from dataclasses import dataclass, field

import mlx.core as mx
from mlx import nn

from .layers import Args, Outputs, Weights, activation, attention, head_of, labels_of, without


@dataclass
class ModelArgs(Args):
    """The configuration; see transformers' ``Wav2Vec2Config``."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    vocab_size: int = 32
    hidden_act: str = "gelu"
    layer_norm_eps: float = 1e-5
    feat_extract_norm: str = "group"
    feat_extract_activation: str = "gelu"
    conv_dim: list[int] = field(default_factory=lambda: [512] * 7)
    conv_stride: list[int] = field(default_factory=lambda: [5, 2, 2, 2, 2, 2, 2])
    conv_kernel: list[int] = field(default_factory=lambda: [10, 3, 3, 3, 3, 2, 2])
    conv_bias: bool = False
    num_conv_pos_embeddings: int = 128
    num_conv_pos_embedding_groups: int = 16
    do_stable_layer_norm: bool = False
    add_adapter: bool = False
    adapter_kernel_size: int = 3
    adapter_stride: int = 2
    num_adapter_layers: int = 3
    adapter_attn_dim: int | None = None
    output_hidden_size: int | None = None
    proj_codevector_dim: int = 256
    classifier_proj_size: int = 256
    use_weighted_layer_sum: bool = False
    id2label: dict[str, str] | None = None
    num_labels: int | None = None
    architectures: list[str] | None = None

    def __post_init__(self) -> None:
        if self.use_weighted_layer_sum:
            raise ValueError("use_weighted_layer_sum is not supported here")
        if self.feat_extract_norm not in ("group", "layer"):
            raise ValueError(f"feat_extract_norm {self.feat_extract_norm!r} is not supported here")
        self.output_hidden_size = self.output_hidden_size or self.hidden_size

    @property
    def width(self) -> int:
        """The size of the hidden states that a head gets."""
        return (self.output_hidden_size if self.add_adapter else None) or self.hidden_size


class ConvLayer(nn.Module):
    """A convolution over time, normalised where the configuration says so."""

    def __init__(self, args: ModelArgs, number: int) -> None:
        super().__init__()
        inputs, outputs = [1, *args.conv_dim][number], args.conv_dim[number]
        kernel, stride = args.conv_kernel[number], args.conv_stride[number]
        self.conv = nn.Conv1d(inputs, outputs, kernel, stride, bias=args.conv_bias)
        self.layer_norm: nn.Module
        if args.feat_extract_norm == "layer":
            self.layer_norm = nn.LayerNorm(outputs)
        elif number == 0:  # each channel by itself, over time
            self.layer_norm = nn.GroupNorm(outputs, outputs, pytorch_compatible=True)
        self.act = activation(args.feat_extract_activation)

    def __call__(self, x: mx.array) -> mx.array:
        x = self.conv(x)
        return self.act(self.layer_norm(x) if "layer_norm" in self else x)


class FeatureExtractor(nn.Module):
    """A waveform to features, one for every few hundred samples."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.conv_layers = [ConvLayer(args, number) for number in range(len(args.conv_dim))]

    def __call__(self, input_values: mx.array) -> mx.array:
        x = input_values[..., None]
        for layer in self.conv_layers:
            x = layer(x)
        return x


class FeatureProjection(nn.Module):
    """Features to hidden states."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.layer_norm = nn.LayerNorm(args.conv_dim[-1], args.layer_norm_eps)
        self.projection = nn.Linear(args.conv_dim[-1], args.hidden_size)

    def __call__(self, x: mx.array) -> mx.array:
        return self.projection(self.layer_norm(x))


class NormedConv(nn.Module):
    """A convolution whose kernel is ``weight_v``, brought to the length ``weight_g`` at each step."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        width, kernel = args.hidden_size, args.num_conv_pos_embeddings
        self.padding, self.groups = kernel // 2, args.num_conv_pos_embedding_groups
        self.weight_g = mx.ones((1, kernel, 1))
        self.weight_v = mx.zeros((width, kernel, width // self.groups))
        self.bias = mx.zeros(width)

    def __call__(self, x: mx.array) -> mx.array:
        length = mx.sqrt(mx.square(self.weight_v).sum((0, 2), keepdims=True))
        weight = self.weight_v * (self.weight_g / length)
        return mx.conv1d(x, weight, padding=self.padding, groups=self.groups) + self.bias


class PositionalConvEmbedding(nn.Module):
    """Where a frame stands, from its neighbours."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.conv = NormedConv(args)
        self.act = activation(args.feat_extract_activation)

    def __call__(self, x: mx.array) -> mx.array:
        return self.act(self.conv(x)[:, : x.shape[1]])  # an even kernel makes one frame too many


class Attention(nn.Module):
    """Attention of the frames to each other."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.heads = args.num_attention_heads
        self.scale = (args.hidden_size // self.heads) ** -0.5
        self.q_proj = nn.Linear(args.hidden_size, args.hidden_size)
        self.k_proj = nn.Linear(args.hidden_size, args.hidden_size)
        self.v_proj = nn.Linear(args.hidden_size, args.hidden_size)
        self.out_proj = nn.Linear(args.hidden_size, args.hidden_size)

    def __call__(self, x: mx.array) -> mx.array:
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        return self.out_proj(attention(q, k, v, self.heads, self.scale))


class FeedForward(nn.Module):
    """The feed-forward part."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.intermediate_dense = nn.Linear(args.hidden_size, args.intermediate_size)
        self.output_dense = nn.Linear(args.intermediate_size, args.hidden_size)
        self.act = activation(args.hidden_act)

    def __call__(self, x: mx.array) -> mx.array:
        return self.output_dense(self.act(self.intermediate_dense(x)))


class AdapterLayer(nn.Module):
    """What a layer adds for one language."""

    def __init__(self, args: ModelArgs, inner: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(args.hidden_size)
        self.linear_1 = nn.Linear(args.hidden_size, inner)
        self.linear_2 = nn.Linear(inner, args.hidden_size)

    def __call__(self, x: mx.array) -> mx.array:
        return self.linear_2(nn.relu(self.linear_1(self.norm(x))))


class EncoderLayer(nn.Module):
    """Attention and feed-forward; each before its norm, or, where that is called stable, behind it."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.stable = args.do_stable_layer_norm
        self.attention = Attention(args)
        self.layer_norm = nn.LayerNorm(args.hidden_size, args.layer_norm_eps)
        self.feed_forward = FeedForward(args)
        self.final_layer_norm = nn.LayerNorm(args.hidden_size, args.layer_norm_eps)
        if self.stable and args.adapter_attn_dim is not None:
            self.adapter_layer = AdapterLayer(args, args.adapter_attn_dim)

    def __call__(self, x: mx.array) -> mx.array:
        if not self.stable:
            x = self.layer_norm(x + self.attention(x))
            return self.final_layer_norm(x + self.feed_forward(x))
        x = x + self.attention(self.layer_norm(x))
        x = x + self.feed_forward(self.final_layer_norm(x))
        return x + self.adapter_layer(x) if "adapter_layer" in self else x


class Encoder(nn.Module):
    """The layers, behind the positions."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.stable = args.do_stable_layer_norm
        self.pos_conv_embed = PositionalConvEmbedding(args)
        self.layer_norm = nn.LayerNorm(args.hidden_size, args.layer_norm_eps)
        self.layers = [EncoderLayer(args) for _ in range(args.num_hidden_layers)]

    def __call__(self, x: mx.array) -> mx.array:
        x = x + self.pos_conv_embed(x)
        x = x if self.stable else self.layer_norm(x)
        for layer in self.layers:
            x = layer(x)
        return self.layer_norm(x) if self.stable else x


class Shorter(nn.Module):
    """A convolution over time with a gate, for fewer frames."""

    def __init__(self, args: ModelArgs, width: int) -> None:
        super().__init__()
        kernel, stride = args.adapter_kernel_size, args.adapter_stride
        self.conv = nn.Conv1d(width, 2 * width, kernel, stride, padding=1)

    def __call__(self, x: mx.array) -> mx.array:
        return nn.glu(self.conv(x), axis=-1)


class Adapter(nn.Module):
    """Hidden states of another width, and of fewer frames."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        if args.width != args.hidden_size:
            self.proj = nn.Linear(args.hidden_size, args.width)
            self.proj_layer_norm = nn.LayerNorm(args.width)
        self.layers = [Shorter(args, args.width) for _ in range(args.num_adapter_layers)]

    def __call__(self, x: mx.array) -> mx.array:
        x = self.proj_layer_norm(self.proj(x)) if "proj" in self else x
        for layer in self.layers:
            x = layer(x)
        return x


class Model(nn.Module):
    """wav2vec 2.0, with the head that its configuration names."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.feature_extractor = FeatureExtractor(args)
        self.feature_projection = FeatureProjection(args)
        self.encoder = Encoder(args)
        if args.add_adapter:
            self.adapter = Adapter(args)
        head, inner = head_of(args.architectures), args.classifier_proj_size
        if head == "ForCTC":
            self.lm_head = nn.Linear(args.width, args.vocab_size)
        elif head == "ForPreTraining":
            self.project_hid = nn.Linear(args.hidden_size, args.proj_codevector_dim)
        elif head == "ForSequenceClassification":
            self.projector = nn.Linear(args.hidden_size, inner)
            self.classifier = nn.Linear(inner, labels_of(args.id2label, args.num_labels))

    def sanitize(self, weights: Weights) -> Weights:
        """Return WEIGHTS without those that only training needs."""
        return without(weights, "masked_spec_embed", "quantizer.", "project_q.")

    def __call__(self, input_values: mx.array) -> Outputs:
        x = self.encoder(self.feature_projection(self.feature_extractor(input_values)))
        x = self.adapter(x) if "adapter" in self else x
        if "lm_head" in self:
            return {"logits": self.lm_head(x)}
        if "project_hid" in self:
            return {"projected_states": self.project_hid(x)}
        if "classifier" in self:
            return {"logits": self.classifier(self.projector(x).mean(1))}
        return {"last_hidden_state": x}
