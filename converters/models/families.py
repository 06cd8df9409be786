"""Architectures known by ``model_type``: one row of data each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from ...errors import BadInputError
from .signature import Port, Signature

Config = Mapping[str, Any]


class Family(NamedTuple):
    """What Weighbridge knows of an architecture.

    Attributes:
        map: name of the table map, torch names on its left side, MLX names on its right.
        torch_class: class in transformers that runs it.
        signature: makes the Signature from the config.
        optional: submodules that a checkpoint may lack.
        native: the MLX library whose own loader and ``sanitize`` the table is tested against.
    """

    map: str
    torch_class: str
    signature: Callable[[Config], Signature]
    optional: tuple[str, ...] = ()
    native: str = ""


def encoder_signature(config: Config) -> Signature:
    """Return the signature of a text encoder: token ids and mask in, hidden states out.

    Raises:
        BadInputError: the configuration lacks a size.
    """
    missing = [key for key in ("vocab_size", "hidden_size") if not isinstance(config.get(key), int)]
    if missing:
        raise BadInputError(f"config.json: {' and '.join(missing)} should be there, as integers")
    upper = (
        ("sequence", int(config.get("max_position_embeddings", 512))),
        ("vocabulary", int(config["vocab_size"])),
    )
    shape = ("batch", "sequence")
    return Signature(
        inputs=(
            Port("input_ids", "int64", shape, "token_ids", upper),
            Port("attention_mask", "int64", shape, "attention_mask", upper),
        ),
        outputs=(
            Port("last_hidden_state", "float32", (*shape, int(config["hidden_size"])), "hidden"),
        ),
    )


FAMILIES: Final[Mapping[str, Family]] = {
    "bert": Family("bert", "BertModel", encoder_signature, ("pooler",), "mlx-embeddings"),
}
