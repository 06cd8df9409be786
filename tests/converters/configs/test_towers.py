"""Configurations of models with towers, as the classes of mlx-vlm and mlx-embeddings read them."""

from __future__ import annotations

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from weighbridge.converters.configs import to_mlx, to_torch
from weighbridge.converters.libraries import find


def translated(kind, library, **changes):
    own = CONFIG_MAPPING[kind](**changes).to_dict()
    return own, to_mlx(own, find(own, library))


def test_what_transformers_has_beside_the_text_part_is_put_into_it():
    _, found = translated("gemma3", "mlx-vlm", mm_tokens_per_image=4)
    assert found.config["text_config"]["mm_tokens_per_image"] == 4


def test_the_id_of_a_picture_has_the_name_that_the_class_reads():
    _, found = translated("cohere2_vision", "mlx-vlm", image_token_id=77)
    assert found.config["image_token_index"] == 77


def test_logits_that_transformers_does_not_scale_are_not_scaled():
    own, found = translated("aya_vision", "mlx-vlm")
    assert own["text_config"]["logit_scale"] != 1
    assert found.config["text_config"]["logit_scale"] == 1


def test_pictures_are_scaled_by_the_size_of_the_text_part():
    own, found = translated("paligemma", "mlx-vlm", text_config={"hidden_size": 48})
    assert own["hidden_size"] != 48
    assert found.config["hidden_size"] == 48


def test_the_frame_of_a_picture_has_the_names_that_the_class_reads():
    _, found = translated("glm4v", "mlx-vlm", image_start_token_id=5, image_end_token_id=6)
    assert (found.config["vision_start_token_id"], found.config["vision_end_token_id"]) == (5, 6)


def test_rotary_parameters_of_layers_that_are_alike_are_written_once():
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 2, 2]}
    kinds = ["sliding_attention", "full_attention"] * 2
    text = {"num_hidden_layers": 4, "layer_types": kinds}
    text["rope_parameters"] = dict.fromkeys(kinds[:2], rope)
    _, found = translated("cohere_compass", "mlx-vlm", text_config=text)
    assert found.config["text_config"]["rope_parameters"] == rope


def test_layers_that_see_all_of_the_text_turn_nothing_in_flint():
    kinds = ["full_attention", "sliding_attention"] * 2
    _, found = translated("flint", "mlx-vlm", num_hidden_layers=4, layer_types=kinds)
    assert found.config["no_rope_layer_indices"] == [0, 2]


def test_layers_of_deepseek_v4_join_as_many_tokens_as_transformers_says():
    own, found = translated("deepseek_v4", "mlx-vlm")
    rates = found.config["compress_ratios"]
    wanted = [own["compress_rates"].get(kind, 0) for kind in own["layer_types"]]
    assert rates == wanted
    assert {4, 128} <= set(rates)


def test_layers_of_inkling_have_the_sizes_of_its_own_code():
    _, found = translated("inkling_mm_model", "mlx-vlm")
    theirs = CONFIG_MAPPING["inkling_mm_model"]().text_config
    text = found.config["text_config"]
    assert text["intermediate_size"] == theirs.moe_intermediate_size
    assert text["dense_intermediate_size"] == theirs.intermediate_size


def test_molmo_s_tower_is_written_in_the_two_parts_that_its_class_reads():
    own, found = translated("molmo2", "mlx-vlm")
    target = find(found.config, "mlx-vlm")
    tower = target.code().VisionConfig.from_dict(found.config["vision_config"])
    vision, adapter = own["vision_config"], own["adapter_config"]
    assert tower.vit_config.image_num_pos == vision["num_position_embeddings"]
    assert tower.vit_config.hidden_size == vision["hidden_size"]
    assert tower.adapter_config.vit_layers == list(adapter["vision_feature_layer"])


def test_layers_of_step_have_heads_rotation_and_experts_of_their_own():
    ropes = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {
            "rope_type": "linear",
            "rope_theta": 5e6,
            "partial_rotary_factor": 0.5,
            "factor": 2.0,
        },
    }
    kinds, experts = [*ropes], ["dense", "sparse"]
    text = {"layer_types": kinds, "mlp_layer_types": experts, "rope_parameters": ropes}
    text |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    _, found = translated(
        "step3p7", "mlx-vlm", text_config=text | {"num_sliding_attention_heads": 6}
    )
    code = find(found.config, "mlx-vlm").code()
    model = code.LanguageModel(code.TextConfig.from_dict(found.config["text_config"]))
    windowed, full = (it.self_attn for it in model.layers)
    assert (windowed.n_heads, full.n_heads, windowed.n_kv_heads, full.n_kv_heads) == (6, 4, 2, 2)
    assert (windowed.rope.dims, windowed.rope.base, windowed.rope.scale) == (128, 1e4, 1)
    assert (full.rope.dims, full.rope.base, full.rope.scale) == (64, 5e6, 0.5)
    assert [it.is_moe_layer for it in model.layers] == [False, True]


def test_parts_whose_class_takes_no_other_key_have_no_other():
    _, found = translated("siglip", "mlx-embeddings")
    target = find(found.config, "mlx-embeddings")
    assert next(target.parts(found.config)).text_model
    assert "num_labels" not in found.config


@pytest.mark.parametrize(
    ("kind", "library"),
    [
        ("siglip", "mlx-embeddings"),
        *(
            (kind, "mlx-vlm")
            for kind in (
                "cohere_compass",
                "gemma3",
                "glm4v",
                "glm_ocr",
                "kimi_k25",
                "molmo2",
                "paligemma",
                "step3p7",
            )
        ),
    ],
)
def test_the_way_back_is_exact(kind, library):
    own, found = translated(kind, library)
    assert to_torch(found.config, found.recorded()).config == own


def test_indexed_layers_and_the_gate_of_linear_ones_have_the_names_that_the_class_reads():
    rope = {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25}
    text = {"num_hidden_layers": 4, "rope_parameters": rope | {"mrope_section": [11, 11, 10]}}
    own, found = translated("qwen4_exp", "mlx-vlm", text_config=text)
    assert own["text_config"]["layer_types"][-1] == "indexed_attention"
    assert found.config["text_config"]["layer_types"][-1] == "full_attention"
    assert own["text_config"]["output_gate_type"] is None
    assert found.config["text_config"]["output_gate_type"] == "silu"


def test_a_part_inside_a_part_is_read_as_well_and_comes_home():
    own, found = translated("qwen3_omni_moe", "mlx-vlm")
    thinker = own["thinker_config"]["text_config"]
    assert "rope_theta" not in thinker
    theta = found.config["thinker_config"]["text_config"]["rope_theta"]
    assert theta == thinker["rope_parameters"]["rope_theta"]
    assert "thinker_config.text_config.rope_theta" in found.added
    assert to_torch(found.config, found.recorded()).config == own


def test_the_towers_of_unlimited_ocr_have_the_names_of_the_published_configuration():
    behind = {"hidden_size": 36, "num_attention_heads": 2, "num_hidden_layers": 3}
    vision = {"encoder_config": behind, "sam_config": {"downsample_channels": [28, 40]}}
    own, found = translated("unlimited_ocr", "mlx-vlm", vision_config=vision)
    tower = found.config["vision_config"]
    assert (tower["layers"], tower["hidden_size"]) == (3, 36)
    assert tower["params"] == own["vision_config"]["sam_config"]
    joined = found.config["projector_config"]
    assert (joined["input_dim"], joined["n_embed"]) == (76, own["text_config"]["hidden_size"])


def test_the_tower_of_florence_has_the_names_of_microsoft_s_own_code():
    vision = {"embed_dim": [8, 16, 24, 32], "max_position_embeddings": 20}
    _, found = translated("florence2", "mlx-vlm", vision_config=vision)
    tower = found.config["vision_config"]
    assert (tower["model_type"], tower["dim_embed"]) == ("davit", [8, 16, 24, 32])
    assert found.config["image_pos_embed"]["max_pos_embeddings"] == 20
    assert found.config["image_feature_source"][0] == "spatial_avg_pool"
