"""Tables of encoders and others: every class of transformers that they know goes there and back.

The oracle is transformers itself: what it saves, and what it computes from what comes home.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file

from tests.support.small_configs import (
    CLIP_TEXT,
    CLIP_VISION,
    CODES,
    CONVNEXT,
    RESNET,
    SWIN,
    T5,
    VIT,
    WAV2VEC2,
    WHISPER,
)
from weighbridge.converters.checkpoints.base import Header
from weighbridge.converters.common.arrays import to_torch
from weighbridge.converters.maps import apply
from weighbridge.converters.maps.notation.expressions import ConfigKey, Operation, Words
from weighbridge.converters.maps.notation.rules import Pairing
from weighbridge.converters.maps.sources.variants import table_of
from weighbridge.converters.models import FAMILIES
from weighbridge.converters.models.families import known_family
from weighbridge.converters.runtimes.torch import call
from weighbridge.converters.values import Dense
from weighbridge.errors import MismatchError
from weighbridge.parity.probes.probes import make_probes

# No two sizes of a model are equal, nor kernels square, where the architecture lets us choose.
TEXT = {
    "vocab_size": 61,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 50,
}
BERT = TEXT | {"type_vocab_size": 3}
DISTILBERT = {
    "vocab_size": 61,
    "dim": 24,
    "n_layers": 2,
    "n_heads": 3,
    "hidden_dim": 40,
    "max_position_embeddings": 50,
}
MODERN = (
    TEXT
    | {"local_attention": 6, "pad_token_id": 0}
    | dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 1)
)
BIASED = {"norm_bias": True, "attention_bias": True, "mlp_bias": True, "classifier_bias": True}
GATED = {"feed_forward_proj": "gated-gelu"}
LARGE = {"feat_extract_norm": "layer", "conv_bias": True, "do_stable_layer_norm": True}
ADAPTERS = {
    "add_adapter": True,
    "adapter_attn_dim": 4,
    "output_hidden_size": 18,
    "num_adapter_layers": 1,
}
LABELS = {"num_labels": 5}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "BertModel": ("BertConfig", BERT),
    "BertForPreTraining": ("BertConfig", BERT),
    "BertForMaskedLM": ("BertConfig", BERT),
    "RobertaModel": ("RobertaConfig", BERT),
    "RobertaForMaskedLM": ("RobertaConfig", BERT),
    "RobertaForSequenceClassification": ("RobertaConfig", BERT | LABELS),
    "RobertaForTokenClassification": ("RobertaConfig", BERT | LABELS),
    "RobertaForQuestionAnswering": ("RobertaConfig", BERT),
    "XLMRobertaModel": ("XLMRobertaConfig", BERT),
    "XLMRobertaForMaskedLM": ("XLMRobertaConfig", BERT),
    "DistilBertModel": ("DistilBertConfig", DISTILBERT),
    "DistilBertForMaskedLM": ("DistilBertConfig", DISTILBERT),
    "DistilBertForSequenceClassification": ("DistilBertConfig", DISTILBERT | LABELS),
    "MPNetModel": ("MPNetConfig", TEXT),
    "MPNetForMaskedLM": ("MPNetConfig", TEXT),
    "ModernBertModel": ("ModernBertConfig", MODERN | BIASED),
    "ModernBertForMaskedLM": ("ModernBertConfig", MODERN),
    "ModernBertForSequenceClassification": ("ModernBertConfig", MODERN | LABELS),
    "T5EncoderModel": ("T5Config", T5 | GATED),
    "T5Model": ("T5Config", T5),
    "T5ForConditionalGeneration": ("T5Config", T5),
    "T5ForConditionalGeneration-1.1": ("T5Config", T5 | GATED | {"tie_word_embeddings": False}),
    "CLIPModel": (
        "CLIPConfig",
        {"text_config": CLIP_TEXT, "vision_config": CLIP_VISION, "projection_dim": 14},
    ),
    "CLIPTextModel": ("CLIPTextConfig", CLIP_TEXT),
    "CLIPTextModelWithProjection": ("CLIPTextConfig", CLIP_TEXT | {"projection_dim": 14}),
    "CLIPVisionModel": ("CLIPVisionConfig", CLIP_VISION),
    "CLIPVisionModelWithProjection": ("CLIPVisionConfig", CLIP_VISION | {"projection_dim": 14}),
    "WhisperModel": ("WhisperConfig", WHISPER),
    "WhisperForConditionalGeneration": ("WhisperConfig", WHISPER),
    "ViTModel": ("ViTConfig", VIT),
    "ViTForImageClassification": ("ViTConfig", VIT | LABELS | {"qkv_bias": False}),
    "Wav2Vec2Model": ("Wav2Vec2Config", WAV2VEC2),
    "Wav2Vec2Model-adapters": ("Wav2Vec2Config", WAV2VEC2 | ADAPTERS),
    "Wav2Vec2ForCTC": ("Wav2Vec2Config", WAV2VEC2 | LARGE),
    "Wav2Vec2ForPreTraining": ("Wav2Vec2Config", WAV2VEC2 | CODES),
    "Wav2Vec2ForSequenceClassification": (
        "Wav2Vec2Config",
        WAV2VEC2 | LABELS | {"classifier_proj_size": 9, "use_weighted_layer_sum": True},
    ),
    "ResNetModel": ("ResNetConfig", RESNET | {"layer_type": "basic"}),
    "ResNetForImageClassification": ("ResNetConfig", RESNET | LABELS),
    "ConvNextModel": ("ConvNextConfig", CONVNEXT),
    "ConvNextForImageClassification": ("ConvNextConfig", CONVNEXT | LABELS),
    "SiglipVisionModel": ("SiglipVisionConfig", CLIP_VISION | {"num_channels": 5}),
    "SwinModel": ("SwinConfig", SWIN | {"use_absolute_embeddings": True}),
    "SwinForImageClassification": ("SwinConfig", SWIN | LABELS | {"qkv_bias": False}),
}
# Keys that a table reads and that these checkpoints have no tensor for.
FREE = {
    "T5EncoderModel": {"num_decoder_layers"},
    "CLIPTextModel": {"projection_dim"},
    "CLIPVisionModel": {"projection_dim"},
    "Wav2Vec2Model": {"vocab_size"},
    "Wav2Vec2Model-adapters": {"vocab_size"},
    "Wav2Vec2ForPreTraining": {"vocab_size"},
    "Wav2Vec2ForSequenceClassification": {"vocab_size"},
}
CODE = {"float32": "F32", "int64": "I64"}


@dataclass(frozen=True)
class Case:
    """A small checkpoint as ``save_pretrained`` wrote it, and its table."""

    name: str
    folder: Path
    model: Any

    @cached_property
    def arrays(self):
        return load_file(self.folder / "model.safetensors")

    @cached_property
    def config(self):
        return json.loads((self.folder / "config.json").read_text())

    @cached_property
    def headers(self):
        return {name: Header(CODE[a.dtype.name], a.shape) for name, a in self.arrays.items()}

    @cached_property
    def family(self):
        return known_family(self.config, self.arrays)

    @cached_property
    def table(self):
        return table_of(self.family)

    @cached_property
    def plan(self):
        return self.table.bind(self.headers, config=self.config)

    @cached_property
    def there(self):
        return values(apply(self.plan, dense(self.arrays)))

    def home(self, arrays):
        back = self.table.inverse().bind(
            self.plan.layout, config=self.config, sizes=self.plan.sizes
        )
        return values(apply(back, dense(arrays)))


def dense(arrays):
    return {name: Dense(array) for name, array in arrays.items()}


def values(found):
    return {name: value.array for name, value in found.items()}


def raw(arrays):
    return {name: (array.shape, array.tobytes()) for name, array in arrays.items()}


def build(name):
    """Return the model NAME with norms, biases and statistics that matter as its matrices do."""
    kind, sizes = CASES[name]
    torch.manual_seed(0)
    model = getattr(transformers, name.partition("-")[0])(getattr(transformers, kind)(**sizes))
    if name.endswith("-1.1"):  # transformers 5 ties the head unless a checkpoint has another one
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for key, tensor in sorted(model.state_dict(keep_vars=True).items()):
            if tensor.is_floating_point():
                noise = 0.2 * torch.randn(tensor.shape, generator=generator)
                positive = "norm" in key.lower() and key.endswith("weight")
                tensor.copy_(noise.abs() + 0.5 if "running_var" in key else noise + positive)
    return model.eval()


# One class of each family is enough for every run; its other heads and dialects are tried by CI in turn.
QUICK = {
    "BertForPreTraining",
    "RobertaForMaskedLM",
    "XLMRobertaModel",
    "DistilBertForMaskedLM",
    "MPNetModel",
    "ModernBertForMaskedLM",
    "T5ForConditionalGeneration",
    "CLIPModel",
    "CLIPTextModel",
    "CLIPVisionModelWithProjection",
    "WhisperForConditionalGeneration",
    "ViTForImageClassification",
    "Wav2Vec2ForCTC",
    "ResNetModel",
    "ConvNextForImageClassification",
}
PARAMS = [pytest.param(it, marks=() if it in QUICK else pytest.mark.heavy) for it in CASES]


@pytest.fixture(scope="module", params=PARAMS)
def case(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / request.param
    model = build(request.param)
    model.save_pretrained(folder)
    return Case(request.param, folder, model)


def test_files_say_which_class_they_are(case):
    assert case.name[-4:] != "-1.1" or "lm_head.weight" in case.arrays
    assert case.family.torch_class == case.name.partition("-")[0]


def test_a_checkpoint_comes_home_bit_for_bit(case):
    dropped = {item.name for item in case.plan.dropped}
    assert all("num_batches_tracked" in name for name in dropped)
    kept = {name: array for name, array in case.arrays.items() if name not in dropped}
    assert raw(case.home(case.there)) == raw(kept)


def test_trained_mlx_weights_come_home_and_return(case):
    random = np.random.default_rng(2)
    trained = {
        name: (array + random.normal(size=array.shape)).astype(np.float32)
        for name, array in case.there.items()
    }
    home = case.home(trained)
    counters = {name: array for name, array in case.arrays.items() if name not in home}
    assert raw(values(apply(case.plan, dense(home | counters)))) == raw(trained)


def test_what_comes_home_loads_and_computes_the_same(case, tmp_path):
    save_file(case.home(case.there), tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text((case.folder / "config.json").read_text())
    back, info = type(case.model).from_pretrained(tmp_path, output_loading_info=True)
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    assert all("num_batches_tracked" in name for name in info["missing_keys"])
    probe = make_probes(case.family.signature(case.config), tokenizer=None, quick=True)[0]
    wanted, found = (outputs(model, case, probe) for model in (case.model, back.eval()))
    assert raw(found) == raw(wanted)


def outputs(model, case, probe):
    """Return what MODEL makes of PROBE, after a look at the shapes that its signature promises."""
    signature = case.family.signature(case.config)
    names = tuple(port.name for port in signature.outputs)
    inputs = {name: to_torch(array) for name, array in probe.inputs.items()}
    with torch.no_grad():
        made = {name: tensor.numpy() for name, tensor in call(model, inputs, names).items()}
    sizes = {}
    for port in (*signature.inputs, *signature.outputs):
        array = probe.inputs.get(port.name, made.get(port.name))
        assert len(port.shape) == array.ndim
        for size, expected in zip(array.shape, port.shape, strict=True):
            assert size == (
                sizes.setdefault(expected, size) if isinstance(expected, str) else expected
            )
    return made


def test_the_last_tensor_of_every_rule_is_missed(case):
    last = {step.rule: step for step in case.plan.steps if not step.rule.marker}
    gone = {name for step in last.values() for name in step.source_names}
    lacking = {name: head for name, head in case.headers.items() if name not in gone}
    with pytest.raises(MismatchError) as caught:
        case.table.bind(lacking, config=case.config)
    missed = {problem.partition(" ")[0] for problem in caught.value.problems}
    for step in last.values():
        patterns = [str(term.name) for term in step.rule.left]
        assert missed & {*step.source_names, *patterns}


def keys_of(value):
    """Yield the configuration keys in an expression."""
    if isinstance(value, ConfigKey):
        yield value.name
    elif isinstance(value, Operation):
        yield from (*keys_of(value.left), *keys_of(value.right))


def changed(config, key, by=1):
    """Return CONFIG with the number at KEY, dotted where it is nested, another one."""
    head, _, rest = key.partition(".")
    value = config[head]
    if rest:
        return config | {head: changed(value, rest)}
    return config | {head: [it + by for it in value] if isinstance(value, list) else value + by}


def test_another_configuration_is_refused(case):
    definitions = [d for rule in case.table.rules if isinstance(rule, Pairing) for d in rule.where]
    found = {
        key
        for definition in (*case.table.where, *definitions)
        if not isinstance(definition.value, Words)
        for key in keys_of(definition.value)
    }
    found |= {"depths", "hidden_sizes"} & case.config.keys() if case.family.staged else set()
    found -= FREE.get(case.name, set())
    numbers = {key for key in found if "patch_size" not in key or case.name[:3] != "ViT"}
    assert len(numbers) >= 3
    for key in numbers:
        config = changed(case.config, key)
        with pytest.raises(MismatchError):
            table_of(known_family(config, case.arrays)).bind(case.headers, config=config)


def test_other_tensors_are_refused_by_name(tmp_path):
    config = transformers.ViTConfig(**VIT | {"encoder_stride": 4})
    transformers.ViTForMaskedImageModeling(config).save_pretrained(tmp_path)
    case = Case("ViTForMaskedImageModeling", tmp_path, None)
    with pytest.raises(MismatchError, match=r"decoder\.0\.weight .* is in no rule"):
        case.plan  # noqa: B018


OLD = {
    "BertForPreTraining": (
        ("LayerNorm.weight", "LayerNorm.gamma"),
        ("LayerNorm.bias", "LayerNorm.beta"),
    ),
    "Wav2Vec2ForPreTraining": (
        ("parametrizations.weight.original0", "weight_g"),
        ("parametrizations.weight.original1", "weight_v"),
    ),
}


def respelled(name, pairs):
    for now, once in pairs:
        name = name.replace(now, once)
    return name


@pytest.mark.parametrize("name", OLD)
def test_an_older_spelling_leads_to_the_same_mlx_names_and_back(name, tmp_path):
    build(name).save_pretrained(tmp_path)
    arrays = load_file(tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    old = {respelled(key, OLD[name]): array for key, array in arrays.items()}
    assert old.keys() != arrays.keys()
    plans = {}
    for label, given in (("new", arrays), ("old", old)):
        heads = {key: Header("F32", array.shape) for key, array in given.items()}
        table = table_of(known_family(config, given))
        plans[label] = table, table.bind(heads, config=config), given
    made = {label: values(apply(plan, dense(given))) for label, (_, plan, given) in plans.items()}
    assert raw(made["new"]) == raw(made["old"])
    table, plan, _ = plans["old"]
    back = table.inverse().bind(plan.layout, config=config, sizes=plan.sizes)
    assert raw(values(apply(back, dense(made["old"])))) == raw(old)


TIED = {
    "RobertaForMaskedLM": {
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    "T5ForConditionalGeneration": {
        "encoder.embed_tokens.weight": "shared.weight",
        "decoder.embed_tokens.weight": "shared.weight",
    },
    "WhisperForConditionalGeneration": {"proj_out.weight": "model.decoder.embed_tokens.weight"},
}


def test_aliases_and_buffers_of_older_checkpoints_are_known(case):
    extra = {alias: case.arrays[name] for alias, name in TIED.get(case.name, {}).items()}
    if "position_embeddings.weight" in "".join(case.arrays):
        prefix = case.family.prefix
        extra[f"{prefix}embeddings.position_ids"] = np.arange(50)[None]
    heads = case.headers | {n: Header(CODE[a.dtype.name], a.shape) for n, a in extra.items()}
    plan = case.table.bind(heads, config=case.config)
    assert plan.layout == case.plan.layout
    assert {item.name for item in plan.dropped} >= set(extra)


def test_every_row_with_a_table_is_tried():
    tried = set()
    for kind, sizes in CASES.values():
        tried.add(getattr(transformers, kind)(**sizes).model_type)
    assert tried == set(FAMILIES)


def mlx_names(case):
    """Return the MLX name of each torch name."""
    pairs = ((step.source_names, step.target_names) for step in case.plan.steps)
    return {name: other for left, right in pairs for name, other in zip(left, right, strict=True)}


def mlx_layer(module):
    """Return the layer of mlx.nn that does what the torch MODULE does; ``None`` for other ones."""
    from mlx import nn

    if isinstance(module, torch.nn.BatchNorm2d):
        return nn.BatchNorm(module.num_features, eps=module.eps)
    plain = {torch.nn.Conv1d: nn.Conv1d, torch.nn.Conv2d: nn.Conv2d}.get(type(module))
    if plain is None:
        return None
    one = plain is nn.Conv1d
    sizes = {
        key: getattr(module, key)[0] if one else getattr(module, key)
        for key in ("kernel_size", "stride", "padding", "dilation")
    }
    sizes["padding"] = 0 if sizes["padding"] == "valid" else sizes["padding"]
    return plain(
        module.in_channels,
        module.out_channels,
        groups=module.groups,
        bias=module.bias is not None,
        **sizes,
    )


def weight_norm(arrays, path):
    """Return the kernel that mlx-audio computes of a magnitude and a direction at PATH."""
    import mlx.core as mx

    v, g = (mx.array(arrays[f"{path}.weight_{it}"]) for it in "vg")
    return g * v / mx.linalg.norm(v, axis=(0, 2), keepdims=True)


def test_layers_of_mlx_take_the_kernels_as_they_lie(case):
    """Shapes agree, strictly, and outputs: through kernels that are not square, strides and groups."""
    import mlx.core as mx

    names, seen = mlx_names(case), 0
    generator = torch.Generator().manual_seed(3)
    for path, module in case.model.named_modules():
        layer = mlx_layer(module)
        if layer is None:
            continue
        seen += 1
        home = {k: names.get(f"{path}.{k}") for k in module.state_dict()}
        weights = [(k, mx.array(case.there[v])) for k, v in home.items() if v]
        if "weight" not in dict(weights):
            weights.append(
                ("weight", weight_norm(case.there, names[f"{path}.bias"][: -len(".bias")]))
            )
        layer.load_weights(weights, strict=True)
        layer.eval()
        channels = getattr(module, "in_channels", None) or module.num_features
        spatial = (31,) if isinstance(module, torch.nn.Conv1d) else (17, 19)
        given = torch.randn((2, channels, *spatial), generator=generator)
        with torch.no_grad():
            wanted = module(given).movedim(1, -1).numpy()
        found = layer(mx.array(given.movedim(1, -1).contiguous().numpy()))
        np.testing.assert_allclose(found, wanted, atol=2e-5)
    kernels = [
        array
        for array in case.arrays.values()
        if min(array.shape[:2], default=1) > 1 < array.ndim - 1
    ]
    assert bool(seen) == bool(kernels)


NATIVE = [name for name in CASES if name.startswith(("Bert", "XLMRoberta", "ModernBert"))]
NATIVE_BARE = [
    name for name in NATIVE if not CASES[name][0].startswith("Bert") and "For" not in name
]


@pytest.mark.parametrize("case", NATIVE, indirect=True)
def test_a_table_maps_as_the_librarys_own_sanitize_does(case):
    """Byte for byte; what is tied the library writes a second time, and tables do not."""
    import mlx.core as mx

    from weighbridge.converters.libraries import find

    target = find(case.config, "mlx-embeddings")
    given = {name: mx.array(array) for name, array in case.arrays.items()}
    theirs = {n: np.array(a) for n, a in target.sanitize(case.config, given).items()}
    tied = theirs.keys() - case.there.keys()
    assert tied <= {"decoder.weight"}
    assert raw(case.there) == raw({n: a for n, a in theirs.items() if n not in tied})
    if case.family.native:
        own = {name: head.shape for name, head in target.parameters(case.config).items()}
        assert own == {name: array.shape for name, array in theirs.items()}


@pytest.mark.parametrize("case", NATIVE_BARE, indirect=True)
def test_a_mapped_encoder_computes_the_same_in_its_mlx_library(case):
    import mlx.core as mx

    from weighbridge.converters.libraries import find

    target = find(case.config, "mlx-embeddings")
    model = target.build(case.config)
    given = {name: mx.array(array) for name, array in case.there.items()}
    model.load_weights(list(target.sanitize(case.config, given).items()), strict=True)
    model.eval()
    ids = np.random.default_rng(5).integers(5, 60, size=(2, 11))
    mask = np.ones((2, 11), np.int64)
    mask[1, 7:] = 0
    with torch.no_grad():
        wanted = case.model(torch.tensor(ids), attention_mask=torch.tensor(mask)).last_hidden_state
    found = np.array(encoded(model, mx.array(ids), mx.array(mask.astype(np.float32))))
    kept = mask.astype(bool)
    # mlx-embeddings 0.1 computes ModernBERT's GELU by its tanh formula, which is off by 1e-3.
    near = 2e-3 if case.config["model_type"] == "modernbert" else 1e-5
    np.testing.assert_allclose(found[kept], wanted.numpy()[kept], atol=near)


def encoded(model, ids, mask):
    """Return the hidden states of MODEL; ModernBERT's own class pools them first."""
    if hasattr(model, "encoder"):
        return model(ids, attention_mask=mask).last_hidden_state
    return model.model(ids, attention_mask=mask)["last_hidden_state"]
