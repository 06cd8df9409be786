"""The operation by which causal language models write their keys and values, as Core ML's."""

from __future__ import annotations

from typing import Any, Final

from ..captures.mlprogram.toolkit import quiet

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
