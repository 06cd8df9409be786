"""Greedy texts of a program with states, against those of transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

PROMPT, NEW = 8, 64
NEAR = 0.02  # of the scores' standard deviation: a tie in half precision


def require_same_text(
    kind: Any, source: Any, call: Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]
) -> None:
    """Let CALL, a program with its states, go on with a prompt, and hold it to the class KIND of SOURCE."""
    ids = np.random.default_rng(0).integers(3, 60, (1, PROMPT))
    found = kind.from_pretrained(source).generate(
        torch.from_numpy(ids), max_new_tokens=NEW, do_sample=False, eos_token_id=None,
        pad_token_id=0, output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    wanted = found.sequences[0, PROMPT:].tolist()
    tokens, part, begun = [], ids, 0
    for _ in range(NEW):
        outputs = call({"input_ids": part, "position": np.array([begun])})
        tokens.append(int(outputs["logits"][0, -1].argmax()))
        begun, part = begun + part.shape[1], np.array([tokens[-1:]])
    parted = next((i for i in range(NEW) if tokens[i] != wanted[i]), None)
    if parted is not None:  # behind a tie the texts are two
        scores = found.logits[parted][0]
        first, second = scores.topk(2).values.tolist()
        assert first - second < NEAR * scores.std()
