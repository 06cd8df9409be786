"""A causal language model as a Core AI asset whose keys and values are states: 64 greedy tokens.

    python benchmarks/coreai_states.py

The asset reads the prompt, then token after token; transformers does the same with its own cache. Written
to ``results/coreai_states.json`` is how many tokens are the same. No verb exports such assets yet: this shows
that Core AI can run them.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from weighbridge.converters.captures.positional import bounds, quiet, record
from weighbridge.converters.coreml.form import one_text
from weighbridge.converters.coreml.stateful import Stateful
from weighbridge.converters.models import open as open_model
from weighbridge.jobs.export import merged_in_memory

RESULTS: Final = Path(__file__).with_name("results") / "coreai_states.json"
MODEL: Final = Path(__file__).parents[1] / "fixtures" / "llama" / "model"
PROMPT, COUNT, ROOM = [5, 7, 9], 64, 80


def written(values: Any, node: Any, _: Any) -> Any:
    """Write tokens into what is kept, as ``weighbridge::write_tokens`` does."""
    from coreai._compiler.dialects import coreai
    from coreai_torch._aten_to_core import _get_operands

    kept, new, position = _get_operands(values, node, [0, 1, 2])
    sizes = coreai.cast(coreai.get_shape(new), position.type.element_type)
    end = coreai.broadcasting_add(position, coreai.slice_(sizes, [2], [3], [1]))
    whole = [2**31 - 1]
    first, last = (coreai.concat(0, [a, a, at, a]) for a, at in (([0], position), (whole, end)))
    return coreai.slice_update(kept, first, last, [1, 1, 1, 1], new)


def exported(module: Any, signature: Any, folder: Path) -> Any:
    """Return an asset of MODULE with states."""
    with quiet():
        from coreai_torch import TorchConverter, get_decomp_table

        wrapper = partial(Stateful, tokens=ROOM)
        graph = record(module, signature, bounds(signature, {}), torch.int32, wrapper)
        graph = graph.run_decompositions(get_decomp_table())
        converter = TorchConverter(mode=TorchConverter.Mode.RELEASE)
        converter.register_torch_lowering("weighbridge::write_tokens.default")(written)
        converter.add_exported_program(
            graph,
            input_names=[port.name for port in signature.inputs],
            output_names=[port.name for port in signature.outputs],
            state_names=[*graph.graph_signature.buffers_to_mutate.values()],
        )
        return converter.to_coreai().save_asset(folder / "stateful.aimodel")


async def continued(asset: Any) -> list[int]:
    """Return the tokens that ASSET chooses after the prompt."""
    from coreai.runtime import NDArray

    async with asset.executable() as model:
        function = model.load_function("main")
        states = {
            name: NDArray(np.zeros(function.desc.state_descriptor(name).shape, np.float32))
            for name in function.desc.state_names
        }
        chosen, new, read = [], PROMPT, 0
        for _ in range(COUNT):
            arrays = {
                "input_ids": np.array([new], np.int32),
                "position": np.array([read], np.int32),
            }
            found = await function({name: NDArray(it) for name, it in arrays.items()}, states)
            read += len(new)
            new = [int(found["logits"].numpy()[0, -1].argmax())]
            chosen += new
        return chosen


def main() -> None:
    """Compare both, and write what was found."""
    module = merged_in_memory(model := open_model(str(MODEL)))
    with tempfile.TemporaryDirectory() as folder:
        asset = exported(module, one_text(model.signature), Path(folder))
        found = asyncio.run(continued(asset))
    with torch.no_grad():
        ours = module.generate(
            torch.tensor([PROMPT]), max_new_tokens=COUNT, do_sample=False, eos_token_id=None
        )
    wanted = ours[0, len(PROMPT) :].tolist()
    same = sum(a == b for a, b in zip(found, wanted, strict=True))
    print(f"{same} of {COUNT} tokens are the same; {len(set(wanted))} different ones among them")
    RESULTS.write_text(json.dumps({"tokens": COUNT, "same": same}, indent=1) + "\n")
    os._exit(0)  # the runtime's threads would be waited for, and it may end the process


if __name__ == "__main__":
    main()
