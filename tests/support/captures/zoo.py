"""Sixty tiny models of many kinds, with random weights of realistic gain, and inputs for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
from torch import nn

from weighbridge.tests.support.atlas import sizes
from weighbridge.tests.support.atlas.tiny import amplify, configuration, filled, perturb
from weighbridge.tests.support.captures import networks

BATCH, LENGTH, VOCABULARY = 2, 12, 60
Inputs = dict[str, Any]


class Entry(NamedTuple):
    """A model of the zoo: how it is built, and its inputs."""

    build: Callable[[], nn.Module]
    inputs: Callable[[], Inputs]


def ids(*names: str) -> Callable[[], Inputs]:
    """Return the maker of token ids under NAMES."""
    return lambda: {name: torch.randint(3, VOCABULARY, (BATCH, LENGTH)) for name in names}


def masked_ids() -> Inputs:
    """Return token ids with a mask: the second row is padded behind."""
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    mask[1, 8:] = 0
    return {**ids("input_ids")(), "attention_mask": mask}


def floats(**shapes: tuple[int, ...]) -> Callable[[], Inputs]:
    """Return the maker of normal values of SHAPES, by name."""
    return lambda: {name: torch.randn(BATCH, *shape) for name, shape in shapes.items()}


TABLES: Final = {
    "text": {**sizes.TEXT, "num_hidden_layers": 2, "num_layers": 2},
    "image": sizes.VISION,
    "none": {},
}


def _config(model_type: str, table: str, own: Inputs) -> Any:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if table == "atlas":
        return configuration(model_type, own)
    return filled(CONFIG_MAPPING[model_type], TABLES[table], own)


def pretrained(
    model_type: str, name: str, inputs: Callable[[], Inputs], table: str = "text", **own: Any
) -> Entry:
    """Return the class NAME of transformers with the sizes of TABLE, and OWN on top."""

    def build() -> nn.Module:
        import transformers

        config = _config(model_type, table, own)
        for part in (config, getattr(config, "text_config", None)):
            if part is not None:
                part.use_cache = False
        return lively(getattr(transformers, name)(config))

    return Entry(build, inputs)


def lively(model: nn.Module) -> nn.Module:
    """Return MODEL in evaluation mode with weights as large as trained ones."""
    perturb(model)
    amplify(model, 1.5)
    with (
        torch.no_grad()
    ):  # T5 does not divide scores by the root of their width: its queries are small
        for attention in model.modules():
            if type(attention).__name__ == "T5Attention":
                attention.q.weight.mul_(attention.key_value_proj_dim**-0.5)
    return model.eval()


def network(cls: type[nn.Module], **shapes: tuple[int, ...]) -> Entry:
    """Return a network of our own, as it was made."""
    return Entry(lambda: cls().eval(), floats(**shapes))


ENCODER = ids("input_ids")
BOTH = ids("input_ids", "decoder_input_ids")
IMAGE = {"image_size": 32, "patch_size": 8}
PIXELS = floats(pixel_values=(3, 32, 32))
SERIES = {"prediction_length": 6, "context_length": 12, "lags_sequence": [1, 2, 3], "d_model": 16,
          "num_time_features": 2, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 20,
          "decoder_ffn_dim": 20}  # fmt: skip
WAVES = {"conv_dim": [16, 16], "conv_stride": [5, 2], "conv_kernel": [10, 3], "num_conv_pos_embeddings": 6,
         "num_conv_pos_embedding_groups": 2, "num_feat_extract_layers": 2}  # fmt: skip
TOWERS = {"text_config": {**sizes.TEXT, "num_hidden_layers": 2, "hidden_size": 48, "max_position_embeddings": 32},
          "vision_config": {**sizes.VISION, **IMAGE}, "projection_dim": 20}  # fmt: skip


MATCHED = {**TOWERS, "text_config": {**TOWERS["text_config"], "projection_size": 32}}


def past_series() -> Inputs:
    """Return a past of fifteen steps with its time features, and the features of what follows."""
    return {
        "past_values": torch.randn(BATCH, 15).abs() + 1,
        "past_time_features": torch.randn(BATCH, 15, 2),
        "past_observed_mask": torch.ones(BATCH, 15),
        "future_values": torch.randn(BATCH, 6).abs() + 1,
        "future_time_features": torch.randn(BATCH, 6, 2),
    }


def text_and_image() -> Inputs:
    """Return as many texts as images."""
    return {**masked_ids(), **PIXELS()}


def spoken() -> Inputs:
    """Return log-mel features and the ids that continue."""
    return {"input_features": torch.randn(BATCH, 16, 40), **ids("decoder_input_ids")()}


ZOO: Final[dict[str, Entry]] = {
    # text, read both ways
    "BERT": pretrained("bert", "BertForMaskedLM", masked_ids),
    "RoBERTa": pretrained("roberta", "RobertaModel", masked_ids),
    "DistilBERT": pretrained("distilbert", "DistilBertModel", masked_ids, dim=48, hidden_dim=80),
    "ALBERT": pretrained("albert", "AlbertModel", masked_ids, embedding_size=20),
    "ELECTRA": pretrained("electra", "ElectraModel", masked_ids, embedding_size=20),
    "DeBERTa-v2": pretrained("deberta-v2", "DebertaV2Model", masked_ids, relative_attention=True,
                             position_buckets=8, pos_att_type=["p2c", "c2p"]),
    "ModernBERT": pretrained("modernbert", "ModernBertModel", masked_ids),
    "Longformer": pretrained("longformer", "LongformerModel", masked_ids, attention_window=4),
    "MPNet": pretrained("mpnet", "MPNetModel", masked_ids),
    "XLNet": pretrained("xlnet", "XLNetModel", ENCODER, d_inner=80),
    "FNet": pretrained("fnet", "FNetModel", ENCODER),
    # text, continued
    "GPT-2": pretrained("gpt2", "GPT2LMHeadModel", masked_ids),
    "GPT-NeoX": pretrained("gpt_neox", "GPTNeoXForCausalLM", ENCODER, "atlas"),
    "OPT": pretrained("opt", "OPTModel", masked_ids, ffn_dim=80, word_embed_proj_dim=48),
    "BLOOM": pretrained("bloom", "BloomModel", masked_ids),
    "Llama": pretrained("llama", "LlamaForCausalLM", masked_ids, "atlas"),
    "Mistral": pretrained("mistral", "MistralForCausalLM", ENCODER, "atlas"),
    "Qwen2": pretrained("qwen2", "Qwen2ForCausalLM", ENCODER, "atlas"),
    "Qwen3": pretrained("qwen3", "Qwen3ForCausalLM", masked_ids, "atlas"),
    "Gemma 2": pretrained("gemma2", "Gemma2ForCausalLM", masked_ids, "atlas"),
    "Gemma 3": pretrained("gemma3_text", "Gemma3ForCausalLM", ENCODER, "atlas"),
    "Phi-3": pretrained("phi3", "Phi3ForCausalLM", ENCODER, "atlas"),
    "Cohere": pretrained("cohere", "CohereForCausalLM", ENCODER, "atlas"),
    "GPT-OSS": pretrained("gpt_oss", "GptOssForCausalLM", ENCODER, "atlas"),
    # mixtures of experts, state spaces and other recurrences
    "Qwen3-MoE": pretrained("qwen3_moe", "Qwen3MoeForCausalLM", masked_ids, "atlas"),
    "Mixtral": pretrained("mixtral", "MixtralForCausalLM", masked_ids, "atlas"),
    "DeepSeek-V3": pretrained("deepseek_v3", "DeepseekV3ForCausalLM", masked_ids, "atlas"),
    "Qwen3-Next": pretrained("qwen3_next", "Qwen3NextForCausalLM", masked_ids, "atlas"),
    "Mamba": pretrained("mamba", "MambaForCausalLM", ENCODER, "atlas"),
    "Mamba 2": pretrained("mamba2", "Mamba2ForCausalLM", ENCODER, "atlas"),
    "RWKV": pretrained("rwkv", "RwkvModel", ENCODER, attention_hidden_size=48),
    "RecurrentGemma": pretrained("recurrent_gemma", "RecurrentGemmaForCausalLM", ENCODER, "atlas"),
    "Falcon-H1": pretrained("falcon_h1", "FalconH1ForCausalLM", ENCODER, "atlas"),
    # text to text, speech to text
    "T5": pretrained("t5", "T5ForConditionalGeneration", BOTH, d_kv=12, d_ff=80, num_heads=4),
    "BART": pretrained("bart", "BartModel", BOTH, encoder_layers=2, decoder_layers=2,
                       encoder_attention_heads=4, decoder_attention_heads=4),
    "Marian": pretrained("marian", "MarianModel", BOTH, encoder_layers=2, decoder_layers=2,
                         encoder_attention_heads=4, decoder_attention_heads=4),
    "Whisper": pretrained("whisper", "WhisperForConditionalGeneration", spoken, num_mel_bins=16,
                          max_source_positions=20, encoder_layers=2, decoder_layers=2,
                          encoder_attention_heads=4, decoder_attention_heads=4),
    # images
    "ViT": pretrained("vit", "ViTForImageClassification", PIXELS, "image", **IMAGE),
    "DINOv2 at another size": pretrained("dinov2", "Dinov2Model", floats(pixel_values=(3, 48, 40)), "image", **IMAGE),
    "BEiT": pretrained("beit", "BeitModel", PIXELS, "image", use_relative_position_bias=True, **IMAGE),
    "Swin": pretrained("swin", "SwinModel", PIXELS, "none", embed_dim=12, depths=[2, 2], num_heads=[2, 4],
                       window_size=4, image_size=32, patch_size=2),
    "ConvNeXt": pretrained("convnext", "ConvNextModel", PIXELS, "image", depths=[1, 2], hidden_sizes=[12, 20],
                           num_stages=2),
    "ResNet": pretrained("resnet", "ResNetModel", PIXELS, "image", depths=[1, 2], hidden_sizes=[12, 20],
                         embedding_size=8),
    "MobileNetV2": pretrained("mobilenet_v2", "MobileNetV2Model", PIXELS, "image", image_size=32,
                              depth_multiplier=0.35),
    "SegFormer": pretrained("segformer", "SegformerForSemanticSegmentation", PIXELS, depths=[1, 1, 1, 1],
                            hidden_sizes=[8, 12, 16, 20], num_attention_heads=[1, 2, 2, 4],
                            decoder_hidden_size=16),
    "MobileViT": pretrained("mobilevit", "MobileViTModel", floats(pixel_values=(3, 64, 64)), image_size=64,
                            hidden_sizes=[24, 28, 32], neck_hidden_sizes=[8, 8, 12, 12, 16, 16, 20],
                            num_attention_heads=4),
    "CLIP": pretrained("clip", "CLIPModel", text_and_image, **TOWERS),
    "SigLIP": pretrained("siglip", "SiglipModel", text_and_image, **MATCHED),
    # sound
    "wav2vec 2.0 with CTC": pretrained("wav2vec2", "Wav2Vec2ForCTC", floats(input_values=(400,)), **WAVES),
    "HuBERT": pretrained("hubert", "HubertModel", floats(input_values=(400,)), **WAVES),
    "Audio spectrogram transformer": pretrained(
        "audio-spectrogram-transformer", "ASTModel", floats(input_values=(40, 16)), max_length=40,
        num_mel_bins=16, patch_size=8, frequency_stride=4, time_stride=4),
    # series
    "Informer": pretrained("informer", "InformerModel", past_series, **SERIES),
    "TimeSeriesTransformer": pretrained(
        "time_series_transformer", "TimeSeriesTransformerModel", past_series, **SERIES),
    "Autoformer": pretrained("autoformer", "AutoformerModel", past_series, **SERIES),
    "PatchTST": pretrained("patchtst", "PatchTSTForPrediction", floats(past_values=(32, 3)), context_length=32,
                           num_input_channels=3, patch_length=8, patch_stride=8, prediction_length=6,
                           d_model=16, ffn_dim=20),
    # networks of our own
    "diffusion UNet": network(networks.DiffusionUNet, sample=(3, 16, 16), time=()),
    "LSTM classifier of packed sequences": network(networks.packed(nn.LSTM), series=(9, 5)),
    "GRU classifier of packed sequences": network(networks.packed(nn.GRU), series=(9, 5)),
    "nn.Transformer": network(networks.Translator, source=(7, 16), target=(5, 16)),
    "spatial transformer": network(networks.SpatialTransformer, images=(3, 20, 16)),
}  # fmt: skip
