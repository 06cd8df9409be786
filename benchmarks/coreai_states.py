"""A causal language model as a Core AI asset whose keys and values are states: 64 greedy tokens.

    python benchmarks/coreai_states.py

The asset reads the prompt, then token after token; transformers does the same with its own cache. Written
to ``results/coreai_states.json`` is how many tokens are the same.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from weighbridge.converters.captures.program_options import ProgramOptions
from weighbridge.converters.checkpoints.formats.coreai.asset import Asset
from weighbridge.converters.coreai_export import export_coreai
from weighbridge.converters.models import open as open_model
from weighbridge.jobs.export import merged_in_memory
from weighbridge.tests.support.coreml.models import make

RESULTS: Final = Path(__file__).with_name("results") / "coreai_states.json"
PROMPT, COUNT, ROOM = [5, 7, 9], 64, 80


def continued(process: Any) -> list[int]:
    """Return the tokens that the asset of PROCESS chooses after the prompt."""
    chosen, new, read = [], PROMPT, 0
    for step in range(COUNT):
        inputs = {"input_ids": np.array([new]), "position": np.array([read])}
        found = process.ask("run", inputs, on=step > 0)
        read += len(new)
        new = [int(found["logits"][0, -1].argmax())]
        chosen += new
    return chosen


def main() -> None:
    """Compare both, and write what was found."""
    with tempfile.TemporaryDirectory() as folder:
        model = open_model(str(make("Llama", Path(folder) / "source")))
        module = merged_in_memory(model)
        target = Path(folder) / "m.aimodel"
        ways = ProgramOptions(stateful=True, upper={"sequence": ROOM})
        export_coreai(module, model.signature, target, ways)
        found = continued(Asset(target).process)
    with torch.no_grad():
        ours = module.generate(
            torch.tensor([PROMPT]), max_new_tokens=COUNT, do_sample=False, eos_token_id=None
        )
    wanted = ours[0, len(PROMPT) :].tolist()
    same = sum(a == b for a, b in zip(found, wanted, strict=True))
    print(f"{same} of {COUNT} tokens are the same; {len(set(wanted))} different ones among them")
    RESULTS.write_text(json.dumps({"tokens": COUNT, "same": same}, indent=1) + "\n")


if __name__ == "__main__":
    main()
