"""What a checkpoint is: which class of a family runs it, by what its files hold."""

from __future__ import annotations

import pytest

from weighbridge.converters.models import FAMILIES
from weighbridge.converters.models.families import Stage, known_family
from weighbridge.converters.models.signatures import HEADS, samples_for
from weighbridge.errors import BadInputError, UnsupportedError

BACKBONE = {"depths": [1, 2], "hidden_sizes": [12, 20]}
SIZES = {
    "hidden_size": 24,
    "dim": 24,
    "embed_dim": 12,
    "d_model": 24,
    "vocab_size": 61,
    "max_position_embeddings": 50,
    "max_source_positions": 9,
    "max_target_positions": 13,
    "num_mel_bins": 6,
    "projection_dim": 14,
    "proj_codevector_dim": 6,
    "conv_kernel": [9, 3],
    "conv_stride": [5, 2],
    "image_size": [12, 8],
    **BACKBONE,
}
HEADED = [(kind, suffix) for kind, row in FAMILIES.items() for suffix in row.heads]


def names(row, suffix):
    """Return names such as a checkpoint of ROW's class SUFFIX has, those that may be tied left out."""
    heads = (module for module in row.heads[suffix] if not module.endswith("?"))
    return [f"{row.prefix}encoder.weight", *(f"{module}.weight" for module in heads)]


@pytest.mark.parametrize(("kind", "suffix"), HEADED)
def test_what_the_files_hold_and_the_config_says_names_the_class(kind, suffix):
    row = FAMILIES[kind]
    config = SIZES | {"model_type": kind, "architectures": [row.stem + suffix]}
    for framework in ("torch", "mlx"):
        found = known_family(config, names(row, suffix), framework)
        assert found.torch_class == row.stem + suffix
        assert found.prefix == row.prefix
        signature = found.signature(config)
        assert signature.inputs[0] == row.signature(config).inputs[0]
        assert signature.outputs


@pytest.mark.parametrize("kind", [kind for kind, row in FAMILIES.items() if row.heads])
def test_the_prefix_is_what_transformers_puts_before_the_base(kind):
    row = FAMILIES[kind]
    headed, bare = (
        saved_names(row.stem + suffix if suffix else row.torch_class)
        for suffix in (next(iter(row.heads)), "")
    )
    assert f"{row.prefix}{bare[0]}" in headed


def saved_names(name):
    """Return the names of what transformers' class NAME saves."""
    import torch
    import transformers

    cls = getattr(transformers, name)
    with torch.device("meta"):
        return list(cls(cls.config_class()).state_dict())


@pytest.mark.parametrize("kind", [kind for kind, row in FAMILIES.items() if row.heads])
def test_the_bare_model_may_say_the_class_that_it_was_trained_with(kind):
    row = FAMILIES[kind]
    headed = (s for s, modules in row.heads.items() if not all(m.endswith("?") for m in modules))
    for suffix in headed:
        config = SIZES | {"model_type": kind, "architectures": [row.stem + suffix]}
        found = known_family(config, ["encoder.weight"])
        assert (found.torch_class, found.prefix) == (row.torch_class, "")
        assert found.native == row.native


def test_what_is_there_goes_before_what_the_config_says():
    config = {"model_type": "bert", "architectures": ["BertForMaskedLM"]}
    files = ["bert.pooler.dense.bias", "cls.predictions.bias", "cls.seq_relationship.bias"]
    assert known_family(config, files).torch_class == "BertForPreTraining"
    assert known_family(config, files[:2]).torch_class == "BertForMaskedLM"
    assert known_family({"model_type": "bert"}, files).torch_class == "BertForPreTraining"


def test_a_name_that_begins_like_a_head_is_of_none():
    row = FAMILIES["bert"]
    assert row.in_head("classifier")
    assert row.in_head("classifier.weight")
    assert not row.in_head("classifiers.weight")
    assert FAMILIES["whisper"].in_head("proj_out.weight")  # which may be missing


def test_a_head_that_is_not_known_is_refused_by_name():
    config = {"model_type": "roberta", "architectures": ["RobertaForMultipleChoice"]}
    with pytest.raises(UnsupportedError, match=r"RobertaForMultipleChoice.*holds classifier"):
        known_family(config, ["roberta.pooler.dense.bias", "classifier.weight"])
    config = {"model_type": "bert", "architectures": ["BertForMaskedLM"]}
    with pytest.raises(UnsupportedError, match=r"holds classifier, qa_outputs"):
        known_family(config, ["classifier.weight", "qa_outputs.weight"])


def test_a_model_type_without_a_row_is_none_of_ours():
    assert known_family({"model_type": "llama"}) is None
    assert known_family({}) is None


def test_only_spellings_that_are_there_are_looked_for():
    config = {"model_type": "bert"}
    old = ["embeddings.LayerNorm.gamma", "embeddings.LayerNorm.beta"]
    assert known_family(config, old).spellings == FAMILIES["bert"].spellings
    assert known_family(config, ["embeddings.LayerNorm.weight"]).spellings == ()
    assert known_family(config, old, "mlx").spellings == ()


def test_weight_norms_of_older_checkpoints_are_those_of_torch():
    from torch import nn
    from torch.nn.utils import parametrizations

    new = list(parametrizations.weight_norm(nn.Linear(2, 2, bias=False)).state_dict())
    old = ["weight_g", "weight_v"]  # of torch.nn.utils.weight_norm, which torch took back
    files = [f"encoder.pos_conv_embed.conv.{name}" for name in old]
    found = known_family({"model_type": "wav2vec2"}, files)
    assert list(found.spellings) == list(zip(new, old, strict=True))


def test_a_library_vouches_for_those_heads_only_that_it_loads():
    config = {"model_type": "modernbert", "architectures": ["ModernBertForMaskedLM"]}
    assert known_family(config, ["head.dense.weight", "decoder.bias"]).native == "mlx-embeddings"
    config = {"model_type": "bert", "architectures": ["BertForMaskedLM"]}
    assert known_family(config, ["bert.a.weight", "cls.predictions.bias"]).native == ""
    assert known_family(config, ["bert.embeddings.word_embeddings.weight"]).native == ""


@pytest.mark.parametrize("kind", ["basic", "bottleneck"])
def test_a_layer_of_a_resnet_has_as_many_convolutions_as_transformers_builds(kind):
    from transformers import ResNetConfig, ResNetModel

    config = ResNetConfig(**BACKBONE, embedding_size=12, layer_type=kind)
    layer = ResNetModel(config).encoder.stages[0].layers[0].layer
    found = known_family(config.to_dict(), ["encoder.weight"])
    assert {stage.parts for stage in found.stages} == {len(layer)}


def test_a_backbone_knows_its_stages():
    config = {"model_type": "resnet", "layer_type": "basic", **BACKBONE}
    assert known_family(config).stages == (Stage(1, 12, 2), Stage(2, 20, 2))
    for wrong in ({"depths": [1]}, {"depths": None}, {"hidden_sizes": ["a", "b"]}):
        with pytest.raises(BadInputError, match="depths and hidden_sizes"):
            known_family(config | wrong)


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_config_that_says_nothing_is_bad_input(kind):
    with pytest.raises(BadInputError, match=r"config\.json: .*should be"):
        FAMILIES[kind].signature({"model_type": kind})


def test_every_head_of_a_row_has_a_signature():
    assert {suffix for _, suffix in HEADED} <= HEADS.keys()


def test_a_waveform_is_as_long_as_its_frames_need():
    base = {"conv_kernel": [10, 3, 3, 3, 3, 2, 2], "conv_stride": [5, 2, 2, 2, 2, 2, 2]}
    assert samples_for(base, 1) == 400
    assert samples_for(base, 2) == 720
