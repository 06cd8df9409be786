"""What a model takes and gives: names, dtypes, symbolic shapes and roles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ...errors import BadInputError

Dimension = int | str
# What configurations call the longest sequence; the first that is there counts.
WIDTHS: Final = ("hidden_size", "n_embd", "d_model", "dim")  # keys of the width of hidden states
LENGTHS: Final = (
    "max_position_embeddings",
    "n_positions",
    "max_sequence_length",
    "max_seq_len",
    "seq_length",
    "n_ctx",
)


@dataclass(frozen=True)
class Port:
    """One input or output of a model.

    Attributes:
        name: the name callers use.
        dtype: a numpy name, such as ``int64`` or ``float32``.
        shape: sizes; a string names a size that may vary (``("batch", "sequence")``).
        role: what the numbers mean: ``token_ids``, ``attention_mask``, ``series``, ``hidden`` ...
        upper: the largest size of each named dimension, and for ``token_ids`` the vocabulary size
            under the key ``vocabulary``.
    """

    name: str
    dtype: str
    shape: tuple[Dimension, ...]
    role: str
    upper: tuple[tuple[str, int], ...] = ()

    def limit(self, dimension: str, default: int) -> int:
        """Return the largest size of DIMENSION, or DEFAULT where the model sets none."""
        return dict(self.upper).get(dimension, default)


@dataclass(frozen=True)
class Signature:
    """The inputs and outputs of a model, in call order."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]

    @property
    def dynamic(self) -> dict[str, dict[int, str]]:
        """Return ``{input: {axis: dimension}}`` for every size that may vary.

        >>> port = Port("ids", "int64", ("batch", "sequence"), "token_ids")
        >>> Signature((port,), ()).dynamic
        {'ids': {0: 'batch', 1: 'sequence'}}
        """
        return {
            port.name: {axis: size for axis, size in enumerate(port.shape) if isinstance(size, str)}
            for port in self.inputs
        }


def causal_signature(config: Mapping[str, Any]) -> Signature:
    """Return the signature of a language model: token ids in, logits of the next token out.

    >>> causal_signature({"vocab_size": 7}).outputs[0].shape
    ('batch', 'sequence', 7)

    Raises:
        BadInputError: the configuration lacks the vocabulary's size.
    """
    vocabulary = size_of(config, "vocab_size")
    upper = (("sequence", longest(config)), ("vocabulary", vocabulary))
    shape = ("batch", "sequence")
    return Signature(
        inputs=(Port("input_ids", "int64", shape, "token_ids", upper),),
        outputs=(Port("logits", "float32", (*shape, vocabulary), "logits"),),
    )


def headless(config: Mapping[str, Any]) -> Signature:
    """Return the signature of a language model without a head: token ids in, hidden states out.

    >>> headless({"vocab_size": 7, "hidden_size": 4}).outputs[0].shape
    ('batch', 'sequence', 4)

    Raises:
        BadInputError: the configuration lacks the vocabulary's size or the width.
    """
    width = next((key for key in WIDTHS if key in config), WIDTHS[0])
    shape = ("batch", "sequence", size_of(config, width))
    hidden = Port("last_hidden_state", "float32", shape, "hidden")
    return Signature(causal_signature(config).inputs, (hidden,))


def longest(config: Mapping[str, Any], default: int = 2048) -> int:
    """Return the longest sequence that CONFIG allows, DEFAULT where it names none.

    >>> longest({"n_positions": 64}), longest({})
    (64, 2048)
    """
    found = (config[key] for key in LENGTHS if isinstance(config.get(key), int))
    return max(1, next(found, default))


def size_of(config: Mapping[str, Any], key: str) -> int:
    """Return the size KEY of CONFIG.

    Raises:
        BadInputError: it is not there, or no positive integer.
    """
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        found = f"found {value!r}" if key in config else "it is missing"
        raise BadInputError(f"config.json: {key} should be a positive integer, {found}")
    return value
