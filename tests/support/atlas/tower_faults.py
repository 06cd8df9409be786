"""Where mlx-vlm and mlx-embeddings disagree with transformers without us; see ``faults.py``."""

from __future__ import annotations

from typing import Any

from weighbridge.tests.support.atlas.faults import FAULTS, Fault

Keys = dict[str, Any]

TANH = 'takes nn.GELU(approx="precise"), which is the tanh approximation, for the exact gelu of config.json'
INNER = (
    "save_pretrained of transformers 5 leaves vision_model out of the names of the tower's weights;"
    " the published files, which the class reads, have it"
)


def refused(
    kind: str, why: str, said: str, side: str = "mlx-vlm", library: str = "mlx-vlm"
) -> Fault:
    """Return the fault that LIBRARY refuses or cannot run what transformers saves of KIND, and SAID what."""
    return Fault(kind, side, why, raises=said, layouts=("saved",), library=library)


def wrong(
    library: str, kind: str, why: str, agree: Keys, mlx: Keys | None = None, here: str = "nothing"
) -> Fault:
    """Return the fault that the class of LIBRARY for KIND computes otherwise, but not where both AGREE."""
    how = {"layouts": ("saved",), "library": library, "here": here}
    return Fault(kind, library, why, mlx=mlx or {}, agree=agree, **how)


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
    wrong(
        "mlx-embeddings",
        "modernbert",
        f"the MLP {TANH}",
        {"hidden_activation": "gelu_pytorch_tanh"},
    ),
    refused(
        "qwen3",
        "a text that is padded on the left gives NaN: the row of a padding token allows no token at all",
        "numbers are NaN",
        "mlx-embeddings",
        "mlx-embeddings",
    ),
    wrong(
        "mlx-embeddings",
        "gemma3_text",
        "a token attends to all others, past the sliding window too",
        {"sliding_window": 4096},
        {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window_pattern": 2},
    ),
)
ALL = (*FAULTS, *OTHERS)
