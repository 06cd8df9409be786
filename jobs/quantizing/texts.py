"""Texts for a model: cut into rows of tokens, and what it makes of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ...converters.common.arrays import to_mlx
from ...converters.models import Model
from ...converters.values import Array
from ...errors import BadInputError, UnsupportedError
from ...parity.text.tokenizers import load_tokenizer

if TYPE_CHECKING:
    import mlx.core as mx
    from mlx import nn

LENGTH: Final = 512  # tokens of a row, where the model takes as many
LIMITS: Final = ("max_position_embeddings", "n_positions", "max_sequence_length")
MOST: Final = 1 << 14  # tokens read of a text
BATCH: Final = 2048  # tokens run at once


def rows_of(path: Path, model: Model, option: str) -> Array:
    """Return the text in PATH as ids, int32 ``(rows, length)``; what does not fill a row is left.

    Args:
        path: a file in UTF-8.
        model: whose tokenizer is used.
        option: which one named the file, for messages.

    Raises:
        BadInputError: there is no such text, it is too short, or its tokens are not the model's.
        UnsupportedError: the model has no tokenizer.
    """
    tokenizer = load_tokenizer(model.path)
    if tokenizer is None:
        raise UnsupportedError(f"{option}: {model.spec} has no tokenizer, so no text is read")
    ids = tokenizer.encode(_text(path, option))[:MOST]
    length = min([LENGTH, *(limit for limit in _limits(model) if limit > 0)])
    if len(ids) < 2 * length:
        raise BadInputError(
            f"{option}: {path} has {len(ids)} tokens, which is too short; take {2 * length} or more"
        )
    vocabulary = model.config.get("vocab_size")
    if isinstance(vocabulary, int) and max(ids) >= vocabulary:
        raise BadInputError(
            f"{option}: {path} has token {max(ids)}, and {model.spec} knows {vocabulary}: its"
            " tokenizer is not that of the model"
        )
    return np.array(ids[: len(ids) // length * length], np.int32).reshape(-1, length)


def _limits(model: Model) -> Iterator[int]:
    """Yield the lengths that the config of MODEL names."""
    for config in (model.config, model.config.get("text_config") or {}):
        yield from (config[key] for key in LIMITS if isinstance(config.get(key), int))


def _text(path: Path, option: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "no text in UTF-8"
        raise BadInputError(f"{option}: {path} cannot be read: {why}") from error


def batches(rows: Array) -> Iterator[Array]:
    """Yield ROWS, a few at a time."""
    count = max(1, BATCH // rows.shape[1])
    yield from (rows[at : at + count] for at in range(0, len(rows), count))


def output(module: nn.Module, ids: Array) -> mx.array:
    """Return what MODULE, a class of an MLX library, makes of IDS: its first output, not evaluated.

    Raises:
        UnsupportedError: it does not take tokens, or returns no array.
    """
    from ...converters.runtimes.native.classes import call_native, sixteen_bit_experts

    given = {"tokens": ids, "attention_mask": np.ones_like(ids), "token_type_ids": ids * 0}
    try:
        with sixteen_bit_experts():
            result = call_native(module, {name: to_mlx(array) for name, array in given.items()})
    except (TypeError, ValueError, AttributeError, IndexError) as error:
        raise UnsupportedError(
            f"{type(module).__module__} takes more than a text ({error}); its outputs are not measured"
        ) from error
    return first_array(result)


def first_array(result: Any) -> mx.array:
    """Return the first floating-point array of RESULT, what a model returned.

    Raises:
        UnsupportedError: there is none.
    """
    import mlx.core as mx

    named = (
        result.values() if isinstance(result, dict) else getattr(result, "__dict__", {}).values()
    )
    several = result if isinstance(result, tuple | list) else list(named)
    for array in [result, getattr(result, "logits", None), *several]:
        if isinstance(array, mx.array) and mx.issubdtype(array.dtype, mx.floating):
            return array
    raise UnsupportedError(f"the model returned a {type(result).__name__} without arrays")
