"""Causal language models whose keys and values are states of the package, so that it goes on with a text.

The package reads some tokens of one text and its ``position``, how many it has read before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from ...errors import UnsupportedError
from ..captures.keeping import PARTS, Layer, sizes_of
from ..captures.mlprogram.toolkit import quiet
from ..captures.positional import Positional
from ..models.signature import Signature
from .form import POSITION

with quiet():
    from coremltools.converters.mil import Builder
    from coremltools.converters.mil.frontend.torch.ops import _get_inputs
    from coremltools.converters.mil.frontend.torch.torch_op_registry import register_torch_op

OTHERS: Final = (True, True, False, True)  # the axes that are written whole


@register_torch_op(torch_alias=["weighbridge::write_tokens"])  # type: ignore[untyped-decorator]
def _write_tokens(context: Any, node: Any) -> None:
    kept, new, position = _get_inputs(context, node, expected=3)
    count = Builder.slice_by_index(x=Builder.shape(x=new), begin=[2], end=[3])
    end = Builder.add(x=position, y=count)
    begin, end = (Builder.concat(values=[[0, 0], at, [0]], axis=0) for at in (position, end))
    masks = {"begin_mask": OTHERS, "end_mask": OTHERS}
    context.add(
        Builder.slice_update(x=kept, update=new, begin=begin, end=end, **masks, name=node.name)
    )


class Stateful(Positional):
    """A causal language model with buffers for its keys and values; see ``Positional``."""

    def __init__(self, module: torch.nn.Module, signature: Signature, tokens: int) -> None:
        super().__init__(module, signature)
        try:
            self.sizes = sizes_of(module, self.names[0])
        except UnsupportedError as error:
            raise UnsupportedError(f"{error}; export it without --stateful") from error
        for name, (heads, width) in self.sizes.items():
            self.register_buffer(name, torch.zeros(1, heads, tokens, width))

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
