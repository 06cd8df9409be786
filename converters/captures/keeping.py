"""What a causal language model of transformers keeps of a text, in tensors that have room for all of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer, DynamicSlidingWindowLayer

from ...errors import UnsupportedError
from ..common.memory import pass_on_shortage
from ..common.users_code import first_line
from ..models.signature import Signature
from .continuing import POSITION
from .positional import Positional

PARTS: Final = ("keys", "values")
KNOWN: Final = (DynamicLayer, DynamicSlidingWindowLayer)  # these keep keys and values alone


class Size(NamedTuple):
    """Sizes of what one layer keeps of one token."""

    heads: int
    width: int


@torch.library.custom_op("weighbridge::write_tokens", mutates_args=())
def write_tokens(kept: Tensor, new: Tensor, position: Tensor) -> Tensor:
    """Return KEPT (1, heads, tokens, width) with NEW in place of its tokens from POSITION on."""
    begin = int(position)
    result = kept.clone()
    result[:, :, begin : begin + new.shape[2]] = new
    return result


@write_tokens.register_fake
def _(kept: Tensor, new: Tensor, position: Tensor) -> Tensor:  # noqa: ARG001  # of the operation
    return torch.empty_like(kept)


class Layer(CacheLayerMixin):  # type: ignore[no-untyped-call]  # of transformers
    """What transformers keeps of a text in one layer, in tensors of one size; windows are masks here."""

    is_compileable = True
    is_sliding = False

    def __init__(self, keys: Tensor, values: Tensor, position: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.keys: Tensor = keys
        self.values: Tensor = values
        self.position = position
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing: there is a tensor for all tokens from the beginning."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the new tokens, and return all."""
        self.keys = write_tokens(self.keys, key_states, self.position)
        self.values = write_tokens(self.values, value_states, self.position)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:  # noqa: ARG002  # transformers' name
        """Return how many tokens there is room for, and that they begin at the first."""
        return self.get_max_length(), 0

    def get_seq_length(self) -> Tensor:  # type: ignore[override]
        """Return how many tokens were read before, a tensor of one number."""
        return self.position

    def get_max_length(self) -> int:
        """Return how many tokens there is room for."""
        return int(self.keys.shape[2])


def sizes_of(module: torch.nn.Module, ids: str) -> dict[str, Size]:
    """Return the sizes of what MODULE keeps of a text that it takes as IDS, by the name of the state.

    Raises:
        UnsupportedError: it keeps nothing, or something other than keys and values.
    """
    try:
        with torch.no_grad():
            result = module(**{ids: torch.ones(1, 1, dtype=torch.long)}, use_cache=True)
        kept = getattr(result, "past_key_values", None)
    except Exception as error:
        pass_on_shortage(error)
        raise UnsupportedError(
            f"keeping keys and values needs a module of transformers' kind: {first_line(error)}"
        ) from error
    layers = getattr(kept, "layers", None) or []
    if strange := sorted({type(layer).__name__ for layer in layers if type(layer) not in KNOWN}):
        raise UnsupportedError(f"it keeps more than keys and values ({', '.join(strange)})")
    if not layers:
        raise UnsupportedError("it returns no past_key_values to keep")
    shapes = {
        f"{part}_{index}": getattr(layer, part).shape
        for index, layer in enumerate(layers)
        for part in PARTS
    }
    return {name: Size(heads, width) for name, (_, heads, _, width) in shapes.items()}


class Stateful(Positional):
    """A causal language model with buffers for its keys and values; see ``Positional``.

    It reads some tokens of one text and its ``position``, how many it has read before.
    """

    def __init__(self, module: torch.nn.Module, signature: Signature, tokens: int) -> None:
        super().__init__(module, signature)
        try:
            self.sizes = sizes_of(module, self.names[0])
        except UnsupportedError as error:
            raise UnsupportedError(f"{error}; export it without --stateful") from error
        dtype = next((it.dtype for it in module.parameters()), torch.float32)
        for name, (heads, width) in self.sizes.items():
            self.register_buffer(name, torch.zeros(1, heads, tokens, width, dtype=dtype))

    def call(self, named: Mapping[str, Tensor]) -> Any:
        """Call the module with what the buffers hold, and write them."""
        own = {name: value for name, value in named.items() if name != POSITION}
        layers = [Layer(keys, values, named[POSITION]) for keys, values in self.kept()]
        result = self.module(**own, past_key_values=Cache(layers=[*layers]), use_cache=True)
        for layer, buffers in zip(layers, self.kept(), strict=True):
            for buffer, value in zip(buffers, (layer.keys, layer.values), strict=True):
                buffer.copy_(value)
        return result

    def kept(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the buffers of every layer."""
        for index in range(len(self.sizes) // len(PARTS)):
            keys, values = (getattr(self, f"{part}_{index}") for part in PARTS)
            yield keys, values
