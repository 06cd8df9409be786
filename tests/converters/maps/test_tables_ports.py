"""Names of mlx-examples mean what the tables say: ports that read by those names compute the same.

The ports are small and independent of ours: what mlx-examples calls ``cross_attention`` attends to the
encoder, its ``ln2`` stands before that, and so on. Its packages on the registry are asked too where
they are installed.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import sys
import types

import mlx.core as mx
import numpy as np
import pytest
import torch
import transformers
from mlx import nn

from tests.support import small_configs
from weighbridge.converters.checkpoints.base import Header
from weighbridge.converters.maps import apply
from weighbridge.converters.maps.sources.variants import table_of
from weighbridge.converters.models.families import known_family
from weighbridge.converters.values import Dense

T5 = small_configs.T5 | {"relative_attention_num_buckets": 32}
WHISPER = small_configs.WHISPER | {"decoder_layers": 2}


class Weights(dict):
    """Arrays by name, and layers by their path."""

    def at(self, path):
        """Return the weights below PATH."""
        start = f"{path}."
        return Weights({n[len(start) :]: a for n, a in self.items() if n.startswith(start)})

    def linear(self, path, x):
        """Multiply X by the weight at PATH and add its bias, if there is one."""
        made = x @ self[f"{path}.weight"].T
        return made + self[f"{path}.bias"] if f"{path}.bias" in self else made

    def norm(self, path, x):
        """Normalise X, with a mean where there is a bias and without where there is none."""
        if f"{path}.bias" not in self:
            return mx.fast.rms_norm(x, self[f"{path}.weight"], 1e-6)
        return mx.fast.layer_norm(x, self[f"{path}.weight"], self[f"{path}.bias"], 1e-5)

    def attend(self, names, x, memory, bias, heads, scale):
        """Let X attend to MEMORY by the layers NAMES: query, key, value and out."""
        query, key, value, out = names
        given = ((query, x), (key, memory), (value, memory))
        q, k, v = (
            self.linear(name, it).reshape(*it.shape[:2], heads, -1).swapaxes(1, 2)
            for name, it in given
        )
        scores = mx.softmax(scale(q.shape[-1]) * q @ k.swapaxes(-1, -2) + bias, axis=-1)
        return self.linear(out, (scores @ v).swapaxes(1, 2).reshape(*x.shape[:2], -1))


def mapped(model, folder):
    """Return MODEL's weights under their MLX names, and its configuration."""
    config = model.config.to_dict() | {"architectures": [type(model).__name__]}
    model.save_pretrained(folder)
    arrays = {name: np.array(it) for name, it in mx.load(str(folder / "model.safetensors")).items()}
    heads = {name: Header("F32", it.shape) for name, it in arrays.items()}
    plan = table_of(known_family(config, arrays)).bind(heads, config=config)
    made = apply(plan, {name: Dense(array) for name, array in arrays.items()})
    return Weights({name: mx.array(value.array) for name, value in made.items()}), arrays, config


def shaken(model):
    """Return MODEL with all its parameters at random."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, tensor in sorted(model.named_parameters()):
            noise = 0.3 * torch.randn(tensor.shape, generator=generator)
            tensor.copy_(noise + ("norm" in name and name.endswith("weight")))
    return model.eval()


def buckets(model, decoder, length):
    """Return which bias serves each pair of places, as transformers counts."""
    block = (model.decoder if decoder else model.encoder).block[0].layer[0].SelfAttention
    places = torch.arange(length)
    found = block._relative_position_bucket(
        places[None] - places[:, None],
        bidirectional=not decoder,
        num_buckets=block.relative_attention_num_buckets,
        max_distance=block.relative_attention_max_distance,
    )
    return mx.array(found.numpy())


def causal(length):
    return mx.triu(mx.full((length, length), -1e9), k=1)


PROJECTIONS = tuple(f"{it}_proj" for it in ("query", "key", "value", "out"))


def t5_feed(w, x):
    d = w.at("dense")
    if "wi.weight" in d:
        return d.linear("wo", mx.maximum(d.linear("wi", x), 0))
    return d.linear("wo", nn.gelu_approx(d.linear("wi_0", x)) * d.linear("wi_1", x))


def t5(w, model, ids, targets):
    """Compute T5 by the names of mlx-examples; return logits and the encoder's hidden states."""

    def plain(_):
        return 1.0

    x = w["wte.weight"][ids]
    biases = w["encoder.relative_attention_bias.embeddings.weight"]
    bias = biases[buckets(model, False, ids.shape[1])].transpose(2, 0, 1)
    for n in range(model.config.num_layers):
        layer = w.at(f"encoder.layers.{n}")
        y = layer.norm("ln1", x)
        x = x + layer.at("attention").attend(PROJECTIONS, y, y, bias, 3, plain)
        x = x + t5_feed(layer, layer.norm("ln2", x))
    memory = w.norm("encoder.ln", x)
    x = w["wte.weight"][targets]
    length = targets.shape[1]
    biases = w["decoder.relative_attention_bias.embeddings.weight"]
    bias = biases[buckets(model, True, length)].transpose(2, 0, 1) + causal(length)
    for n in range(model.config.num_decoder_layers):
        layer = w.at(f"decoder.layers.{n}")
        y = layer.norm("ln1", x)
        x = x + layer.at("self_attention").attend(PROJECTIONS, y, y, bias, 3, plain)
        y = layer.norm("ln2", x)
        x = x + layer.at("cross_attention").attend(PROJECTIONS, y, memory, 0, 3, plain)
        x = x + t5_feed(layer, layer.norm("ln3", x))
    x = w.norm("decoder.ln", x)
    if model.config.scale_decoder_outputs:
        x = x * model.config.d_model**-0.5
    return w.linear("lm_head.linear" if "lm_head.linear.weight" in w else "wte", x), memory


@pytest.mark.parametrize(
    "dialect", [{}, {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}]
)
def test_a_port_of_t5_reads_the_names_of_mlx_examples(dialect, tmp_path):
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**T5, **dialect))
    if dialect:
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    shaken(model)
    weights, _, _ = mapped(model, tmp_path)
    random = np.random.default_rng(4)
    ids, targets = random.integers(3, 61, (2, 9)), random.integers(3, 61, (2, 5))
    with torch.no_grad():
        wanted = model(input_ids=torch.tensor(ids), decoder_input_ids=torch.tensor(targets))
    assert ("lm_head.linear.weight" in weights) == bool(dialect)
    logits, memory = t5(weights, model, mx.array(ids), mx.array(targets))
    np.testing.assert_allclose(memory, wanted.encoder_last_hidden_state, atol=1e-4)
    np.testing.assert_allclose(logits, wanted.logits, atol=1e-4)


ATTENTION = ("query", "key", "value", "out")


def whisper(w, features, targets, config):
    """Compute Whisper by the names of mlx-whisper; return the logits."""

    def scale(width):
        return width**-0.5

    def feed(layer, x):
        y = layer.norm("mlp_ln", x)
        return x + layer.linear("mlp2", nn.gelu(layer.linear("mlp1", y)))

    x = features.swapaxes(1, 2)
    for name, stride in (("conv1", 1), ("conv2", 2)):
        kernel, bias = w[f"encoder.{name}.weight"], w[f"encoder.{name}.bias"]
        x = nn.gelu(mx.conv1d(x, kernel, stride=stride, padding=1) + bias)
    x = x + w["encoder._positional_embedding"]
    for n in range(config["encoder_layers"]):
        layer = w.at(f"encoder.blocks.{n}")
        y = layer.norm("attn_ln", x)
        x = feed(layer, x + layer.at("attn").attend(ATTENTION, y, y, 0, 3, scale))
    memory = w.norm("encoder.ln_post", x)
    length = targets.shape[1]
    x = w["decoder.token_embedding.weight"][targets] + w["decoder.positional_embedding"][:length]
    for n in range(config["decoder_layers"]):
        layer = w.at(f"decoder.blocks.{n}")
        y = layer.norm("attn_ln", x)
        x = x + layer.at("attn").attend(ATTENTION, y, y, causal(length), 2, scale)
        y = layer.norm("cross_attn_ln", x)
        x = feed(layer, x + layer.at("cross_attn").attend(ATTENTION, y, memory, 0, 2, scale))
    return w.linear("decoder.token_embedding", w.norm("decoder.ln", x))


@pytest.fixture(scope="module")
def small_whisper(tmp_path_factory):
    config = transformers.WhisperConfig(**WHISPER)
    model = shaken(transformers.WhisperForConditionalGeneration(config))
    return model, *mapped(model, tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def spoken(small_whisper):
    """Return features, tokens, and what transformers makes of them."""
    random = np.random.default_rng(6)
    features = random.normal(size=(2, 6, 18)).astype(np.float32)
    ids = random.integers(2, 61, (2, 7))
    with torch.no_grad():
        wanted = small_whisper[0](torch.tensor(features), decoder_input_ids=torch.tensor(ids))
    return mx.array(features), mx.array(ids), wanted.logits.numpy()


def test_a_port_of_whisper_reads_the_names_of_mlx_examples(small_whisper, spoken):
    features, ids, wanted = spoken
    _, weights, _, config = small_whisper
    np.testing.assert_allclose(whisper(weights, features, ids, config), wanted, atol=1e-4)


@dataclasses.dataclass
class Absent:
    """Stands for everything in a module that a test does without."""


def without_package(name, *absent):
    """Import the module NAME and not the packages around it; those named ABSENT are stubs."""
    package = name.partition(".")[0]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    with pytest.MonkeyPatch.context() as patch:
        parts = name.split(".")[:-1]
        for end in range(1, len(parts) + 1):
            path = ".".join(parts[:end])
            stub = types.ModuleType(path)
            origin = importlib.util.find_spec(path)
            stub.__path__ = list(origin.submodule_search_locations)
            patch.setitem(sys.modules, path, stub)
        for path in absent:
            stub = types.ModuleType(path)
            stub.__getattr__ = lambda _: Absent
            patch.setitem(sys.modules, path, stub)
        return importlib.import_module(name)


def test_whisper_of_mlx_examples_itself_reads_what_the_table_makes(small_whisper, spoken):
    library = without_package("mlx_whisper.whisper", "mlx_whisper.decoding")
    features, ids, wanted = spoken
    _, weights, _, c = small_whisper
    sizes = (c["num_mel_bins"], c["max_source_positions"], c["d_model"], 3, c["encoder_layers"])
    text = (c["vocab_size"], c["max_target_positions"], c["d_model"], 2, c["decoder_layers"])
    model = library.Whisper(library.ModelDimensions(*sizes, *text), mx.float32)
    own = {n for n, _ in nn.utils.tree_flatten(model.parameters())}
    assert weights.keys() - own == {"encoder._positional_embedding"}
    assert own - weights.keys() == {"alignment_heads"}
    model.update(nn.utils.tree_unflatten(list(weights.items())))  # as its load_model does
    found = model(features.swapaxes(1, 2), ids)
    np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_whisper_maps_as_mlx_audio_does(small_whisper):
    names = ("audio", "decoding", "timing", "tokenizer")
    base = "mlx_audio.stt.models.whisper"
    library = without_package(f"{base}.whisper", *(f"{base}.{name}" for name in names))
    _, weights, arrays, _ = small_whisper
    model = types.SimpleNamespace(dtype=mx.float32)
    theirs = library.Model.sanitize(model, {n: mx.array(a) for n, a in arrays.items()})
    assert weights.keys() - theirs.keys() == {"encoder._positional_embedding"}  # it computes them
    assert all(mx.array_equal(weights[name], array) for name, array in theirs.items())


def test_wav2vec2_maps_as_mlx_audio_does(tmp_path):
    library = without_package("mlx_audio.stt.models.wav2vec.wav2vec")
    model = shaken(
        transformers.Wav2Vec2ForCTC(transformers.Wav2Vec2Config(**small_configs.WAV2VEC2))
    )
    weights, arrays, config = mapped(model, tmp_path)
    kept = {field.name for field in dataclasses.fields(library.ModelConfig)}
    made = library.ModelConfig(**{k: v for k, v in config.items() if k in kept})
    theirs = library.Wav2Vec2Model.sanitize(None, {n: mx.array(a) for n, a in arrays.items()})
    left_out = weights.keys() - theirs.keys()  # by one version the head, by another not
    assert left_out - {"lm_head.weight", "lm_head.bias"} == {"masked_spec_embed"}
    assert all(mx.array_equal(weights[name], array) for name, array in theirs.items())
    library.Wav2Vec2Model(made).load_weights(list(theirs.items()), strict=True)
