"""Small random models of the families that have a class here, as transformers saves them."""

from __future__ import annotations

import pytest

from tests.support import small_configs
from tests.support.small_configs import CODES, RESNET, VIT, WAV2VEC2

T5 = small_configs.T5 | {"relative_attention_max_distance": 29}
CLIP_TEXT = small_configs.CLIP_TEXT | {"eos_token_id": 7, "projection_dim": 14}
CLIP_VISION = small_configs.CLIP_VISION | {"num_hidden_layers": 2, "projection_dim": 14}
CLIP = {"text_config": CLIP_TEXT, "vision_config": CLIP_VISION, "projection_dim": 14}
WHISPER = small_configs.WHISPER | {"decoder_layers": 3, "decoder_ffn_dim": 80}
CONVNEXT = small_configs.CONVNEXT | {"image_size": 24}
DEEP = {"num_stages": 3, "hidden_sizes": [12, 16, 20], "depths": [1, 2, 1]}
STABLE = {"feat_extract_norm": "layer", "conv_bias": True, "do_stable_layer_norm": True}
SHORTER = {"add_adapter": True, "output_hidden_size": 18, "num_adapter_layers": 1}
LABELS = {"num_labels": 5}
SWIN = small_configs.SWIN
PLACED = {"use_absolute_embeddings": True, "qkv_bias": False, "layer_norm_eps": 1e-3}
SIGLIP = small_configs.CLIP_VISION | {"num_hidden_layers": 2}

# A name that begins with the class -> its configuration's class, and its values.
CASES = {
    "T5EncoderModel": ("T5Config", T5 | {"feed_forward_proj": "gated-gelu"}),
    "T5Model": ("T5Config", T5 | {"feed_forward_proj": "gated-silu", "layer_norm_epsilon": 1e-3}),
    "T5ForConditionalGeneration": ("T5Config", T5),
    "T5ForConditionalGeneration-untied": (
        "T5Config",
        T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
    "T5ForConditionalGeneration-32-buckets": (
        "T5Config",
        T5 | {"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128},
    ),
    "CLIPModel": ("CLIPConfig", CLIP),
    "CLIPTextModel": ("CLIPTextConfig", CLIP_TEXT | {"hidden_act": "gelu"}),
    "CLIPTextModel-first": ("CLIPTextConfig", CLIP_TEXT | {"eos_token_id": 2}),
    "CLIPTextModelWithProjection": ("CLIPTextConfig", CLIP_TEXT | {"layer_norm_eps": 1e-3}),
    "CLIPVisionModel": ("CLIPVisionConfig", CLIP_VISION),
    "CLIPVisionModelWithProjection": ("CLIPVisionConfig", CLIP_VISION),
    "ViTModel": ("ViTConfig", VIT | {"hidden_act": "gelu_new", "layer_norm_eps": 1e-3}),
    "ViTForImageClassification": ("ViTConfig", VIT | LABELS | {"qkv_bias": False}),
    "WhisperModel": ("WhisperConfig", WHISPER | {"activation_function": "relu"}),
    "WhisperForConditionalGeneration": ("WhisperConfig", WHISPER),
    "Wav2Vec2Model": ("Wav2Vec2Config", WAV2VEC2 | {"num_conv_pos_embeddings": 7}),
    "Wav2Vec2Model-stable": ("Wav2Vec2Config", WAV2VEC2 | STABLE),
    "Wav2Vec2Model-shorter": ("Wav2Vec2Config", WAV2VEC2 | SHORTER),
    "Wav2Vec2ForCTC-languages": ("Wav2Vec2Config", WAV2VEC2 | STABLE | {"adapter_attn_dim": 4}),
    "Wav2Vec2ForPreTraining": ("Wav2Vec2Config", WAV2VEC2 | CODES),
    "Wav2Vec2ForSequenceClassification": (
        "Wav2Vec2Config",
        WAV2VEC2 | LABELS | {"classifier_proj_size": 9},
    ),
    "ResNetModel": ("ResNetConfig", RESNET | {"layer_type": "basic"}),
    "ResNetModel-smaller-first": ("ResNetConfig", RESNET | {"downsample_in_first_stage": True}),
    "ResNetModel-smaller-inside": (
        "ResNetConfig",
        RESNET | {"downsample_in_bottleneck": True, "hidden_act": "gelu"},
    ),
    "ResNetForImageClassification": (
        "ResNetConfig",
        RESNET | LABELS | {"hidden_sizes": [12, 16, 20], "depths": [2, 1, 2]},
    ),
    "SiglipVisionModel": ("SiglipVisionConfig", SIGLIP | {"layer_norm_eps": 1e-3}),
    "SiglipVisionModel-unpooled": ("SiglipVisionConfig", SIGLIP | {"vision_use_head": False}),
    "SwinModel": ("SwinConfig", SWIN | PLACED),
    "SwinModel-padded": ("SwinConfig", SWIN | {"image_size": 54, "mlp_ratio": 1.5}),
    "SwinForImageClassification": ("SwinConfig", SWIN | LABELS),
    "ConvNextModel": ("ConvNextConfig", CONVNEXT | {"layer_norm_eps": 1e-3}),
    "ConvNextModel-deep": ("ConvNextConfig", CONVNEXT | DEEP | {"layer_scale_init_value": 0.0}),
    "ConvNextForImageClassification": ("ConvNextConfig", CONVNEXT | LABELS),
}


def make(name, folder, **own):
    """Write the random model of case NAME, with OWN values, to FOLDER, weights as large as trained."""
    import torch
    import transformers

    config, values = CASES[name]
    torch.manual_seed(5)
    config = getattr(transformers, config)(**values | own)
    model = getattr(transformers, name.partition("-")[0])(config).eval()
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for key, value in model.state_dict(keep_vars=True).items():
            if not value.is_floating_point():
                continue
            drawn = torch.randn(value.shape, generator=noise)
            if value.ndim > 1 and "embed" not in key and "original0" not in key:
                value.copy_(1.5 * drawn / value[0].numel() ** 0.5)
            elif "running_var" in key:
                value.copy_(drawn.square() + 0.5)
            else:
                value.add_(0.2 * drawn)
    model.save_pretrained(folder)


@pytest.fixture(scope="session")
def directories(tmp_path_factory):
    """Return a function: the name of a case -> its directory for torch, and its directory for MLX."""
    from weighbridge import jobs

    root, made = tmp_path_factory.mktemp("classes"), {}

    def both(name):
        if name not in made:
            made[name] = root / name, root / f"{name}-mlx"
            make(name, made[name][0])
            options = jobs.Options(check="none")
            jobs.convert(str(made[name][0]), made[name][1], "mlx", options=options)
        return made[name]

    return both
