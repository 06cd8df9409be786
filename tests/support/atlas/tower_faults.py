"""Where mlx-vlm disagrees with transformers without us; see ``faults.py``."""

from __future__ import annotations

from weighbridge.tests.support.atlas.faults import FAULTS, Fault

INNER = (
    "save_pretrained of transformers 5 leaves vision_model out of the names of the tower's weights;"
    " the published files, which the class reads, have it"
)


def refused(kind: str, why: str, said: str, side: str = "mlx-vlm") -> Fault:
    """Return the fault that mlx-vlm refuses or cannot run what transformers saves of KIND, and SAID what."""
    return Fault(kind, side, why, raises=said, layouts=("saved",), library="mlx-vlm")


TOWERLESS = "parameters not in model: vision_tower.embeddings."
OTHERS = (
    refused("aya_vision", INNER, TOWERLESS, "transformers"),
    refused("cohere2_vision", INNER, TOWERLESS, "transformers"),
    refused(
        "gemma3",
        f"mm_tokens_per_image is read from text_config, where no checkpoint has it; {INNER}",
        "'kernel_size' must be positive",
    ),
    refused("llava", INNER, TOWERLESS, "transformers"),
    refused("llava_next", INNER, TOWERLESS, "transformers"),
    refused("paligemma", INNER, TOWERLESS, "transformers"),
    refused(
        "lfm2_vl",
        "the class has no room for vision_tower.head, which no language model reads",
        "parameters not in model: vision_tower.head.",
    ),
    refused(
        "muse_spark",
        "the class calls a Metal kernel that has no other version, so it runs on a Mac alone",
        "[metal_kernel] No Metal back-end.",
    ),
    refused(
        "florence2",
        "the class reads the files of Microsoft's own code, not those of transformers, which has"
        " other names for settings and weights: it looks for dim_embed, not embed_dim",
        "AssertionError",
    ),
    refused(
        "gemma3n",
        "sanitize takes weights of the tower of pictures for granted, so a text alone does not load;"
        " that tower transformers builds with timm only, at one size of 300 M parameters, so that a"
        " whole checkpoint was not measured",
        "KeyError: 'vision_tower.timm_model.blocks.0.0.conv_exp.weight'",
    ),
    refused(
        "unlimited_ocr",
        "save_pretrained of transformers 5 leaves out projector_config, which the published"
        " config.json has and the class reads",
        "KeyError: 'projector_config'",
        "transformers",
    ),
    Fault(
        "sam3_video",
        "mlx-vlm",
        "its tracker is another one: a click is placed by the parts of a picture, not by its pixels;"
        " a first frame lacks no_memory_embedding; what is kept of frames has neither their places"
        " and times nor the object's pointers; and only pictures of 1008 pixels are followed at all",
        raises="and (1,72,72,256) cannot be broadcast",
        layouts=("saved", "hub"),
        library="mlx-vlm",
        here="the tensors are written as the class reads them, and it finds things in a picture as"
        " transformers does; it does not follow them so",
    ),
)
ALL = (*FAULTS, *OTHERS)
