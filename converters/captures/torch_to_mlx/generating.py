"""Greedy texts of causal language models in MLX, their keys and values in tensors of one size."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from operator import index
from typing import Any, cast

import mlx.core as mx
import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from ....errors import BadInputError, UnsupportedError
from ..keeping import PARTS, Layer, sizes_of
from ..modes import in_mode
from .captured import Captured
from .capturing import capture_torch
from .dtypes import to_mlx
from .operations.registry import operation

IDS = "input_ids"


@operation("weighbridge.write_tokens.default")
def _write_tokens(kept: mx.array, new: mx.array, position: mx.array) -> mx.array:
    return mx.slice_update(kept, new, position.reshape(1), [2])


class _Reader(nn.Module):
    """Reads some tokens after POSITION others, and returns what is kept of all of them."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, input_ids: Tensor, position: Tensor, **kept: Tensor) -> dict[str, Tensor]:
        pairs = [[kept[f"{part}_{n}"] for part in PARTS] for n in range(len(kept) // len(PARTS))]
        layers = [Layer(keys, values, position) for keys, values in pairs]
        cache = Cache(layers=[*layers])
        result = self.module(input_ids=input_ids, past_key_values=cache, use_cache=True)
        after = {f"{part}_{n}": getattr(it, part) for n, it in enumerate(layers) for part in PARTS}
        return {"logits": result.logits[:, -1], **after}


def _likeliest(logits: mx.array, read: int) -> int:
    """Return the token of the largest of LOGITS, after READ tokens; none is where they are NaN."""
    if mx.isnan(logits).any():
        raise UnsupportedError(
            f"the logits after {read} tokens are NaN: the model's weights make them, or it decides by masks "
            "otherwise than for the first token, which was recorded; use model.generate"
        )
    return cast(int, mx.argmax(logits).item())


class Generator:
    """A causal language model of transformers that goes on with texts in MLX.

    Each step is one compiled function over tensors of one size, as in transformers' static cache.

    Attributes:
        captured: the step, as a captured module; its parameters are those of the model.
        tokens: how long a text may become.
    """

    def __init__(self, module: Any, *, tokens: int = 512) -> None:
        """Record MODULE, in evaluation mode, with room for TOKENS tokens.

        Raises:
            BadInputError: no room, or more than MODULE has positions for.
            UnsupportedError: it keeps nothing of a text, or more than keys and values, or decides by how
                far a text is; or as
                ``capture`` does.
        """
        most = getattr(module.config, "max_position_embeddings", None) or tokens
        if not 0 < tokens <= most:
            raise BadInputError(f"tokens={tokens}: this model reads texts of 1 to {most} tokens")
        self.tokens, self._words = tokens, module.get_input_embeddings().num_embeddings
        sizes = sizes_of(module, IDS)
        dtype = next(module.parameters()).dtype
        kept = {
            name: torch.zeros(1, it.heads, tokens, it.width, dtype=dtype)
            for name, it in sizes.items()
        }
        inputs = {IDS: torch.ones(1, 1, dtype=torch.long), "position": torch.tensor(0), **kept}
        self._kept = {name: to_mlx(tensor) for name, tensor in kept.items()}
        with in_mode(module, False):
            reader = _Reader(module).eval()
            self.captured: Captured = capture_torch(reader, inputs=inputs, modes="one")
        if any(port.held is not None for port in self.captured.recording.ports):
            raise UnsupportedError(
                "the model decides by how far a text is, as rope of type 'dynamic' does: one recorded step "
                "cannot make its texts; use model.generate"
            )
        self._step = mx.compile(self.captured.__call__, inputs=self.captured.state)

    def generate(self, ids: Sequence[int], count: int, *, stop: Collection[int] = ()) -> list[int]:
        """Return the likeliest next tokens of a text, each given all before it.

        Args:
            ids: the text's tokens, at least one.
            count: how many to add at most.
            stop: tokens that end the text; the one that does is returned too.

        Raises:
            BadInputError: no text, no tokens of the model, or no room for it and COUNT more.
            UnsupportedError: logits are NaN.
        """
        ids = self._checked(ids)
        if not ids or len(ids) + count > self.tokens:
            raise BadInputError(
                f"a text of {len(ids)} tokens and {count} more needs 1 to {self.tokens} tokens; "
                "make the Generator with more"
            )
        found: list[int] = []
        kept = dict(self._kept)
        for position in range(len(ids) + count - 1):
            known = position < len(ids)
            result = self._read(ids[position] if known else found[-1], position, kept)
            if position < len(ids) - 1:
                continue
            found.append(_likeliest(result, position + 1))
            if found[-1] in stop:
                break
        return found

    def _checked(self, ids: Sequence[int]) -> list[int]:
        """Return IDS as whole numbers."""
        try:
            found = [index(it) for it in ids]
        except TypeError as error:
            raise BadInputError(f"ids are whole numbers, one text: {error}") from error
        if strange := [it for it in found if not 0 <= it < self._words]:
            raise BadInputError(f"id {strange[0]} is none of the model's 0 to {self._words - 1}")
        return found

    def _read(self, token: int, position: int, kept: dict[str, mx.array]) -> mx.array:
        """Read one TOKEN; change what is KEPT, and return the logits of the next."""
        result = self._step(input_ids=mx.array([[token]]), position=mx.array(position), **kept)
        logits: mx.array = result.pop("logits")
        kept.update(result)
        mx.async_eval(logits, kept)
        return logits[0]
