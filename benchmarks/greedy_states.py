"""Causal language models that keep keys and values in states: 64 greedy tokens against transformers'.

    python benchmarks/greedy_states.py [coreml|coreai] [NAME ...]

A package runs in our evaluator, its states in half precision, an asset in Apple's runtime; transformers computes in
float32. Written to ``results/greedy_states.json`` is how many tokens are the same up to the first that is not, and of
that one: by how much transformers' score of its own choice is the larger, the error of ours there, and the
error of transformers itself in half precision. Random models have ties; a real fault errs by more than the latter.
Of each text of a package it also says how long transformers in float32 stays the same with weights rounded to float16:
where that parts as early, no wider arithmetic helps a package whose weights have 16 bits.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import transformers
from click.testing import CliRunner

from weighbridge.cli import main as weighbridge
from weighbridge.converters.captures.mlprogram import load_program
from weighbridge.converters.checkpoints.formats.coreai.asset import Asset
from weighbridge.tests.support.coreml.models import MODELS, make

RESULTS: Final = Path(__file__).with_name("results") / "greedy_states.json"
FAMILIES: Final = ("GPT-2", "Llama", "Qwen3", "Gemma", "Gemma 2", "Gemma 3")
FILES: Final = {"coreml": "m.mlpackage", "coreai": "m.aimodel"}
PROMPTS, LENGTH, NEW = 4, 8, 64
Call = Callable[[dict[str, Any]], dict[str, Any]]


def opened(form: str, path: Path) -> Callable[[], Call]:
    """Return what begins a text with the program of FORM at PATH."""
    if form == "coreml":
        program = load_program(path)
        return lambda: partial(program.run, state=program.new_state())

    def begin() -> Call:
        process, calls = Asset(path).process, count()
        return lambda part: process.ask("run", part, on=next(calls) > 0)

    return begin


def text(call: Call, ids: np.ndarray) -> tuple[list[int], list[np.ndarray]]:
    """Return the tokens with which CALL goes on, and the scores of each."""
    tokens, scores, part, read = [], [], ids, 0
    for _ in range(NEW):
        scores.append(call({"input_ids": part, "position": np.array([read])})["logits"][0, -1])
        tokens.append(int(scores[-1].argmax()))
        read, part = read + part.shape[1], np.array([tokens[-1:]])
    return tokens, scores


def generated(model: Any, ids: np.ndarray) -> Any:
    """Return how MODEL of transformers goes on after IDS, with its scores."""
    return model.generate(
        torch.from_numpy(ids), max_new_tokens=NEW, do_sample=False, eos_token_id=None,
        pad_token_id=0, output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip


def parting(one: list[int], other: list[int]) -> int:
    """Return how many tokens are the same up to the first that is not."""
    return next((at for at in range(NEW) if one[at] != other[at]), NEW)


def of_rounded(source: Path, kind: Any, ids: np.ndarray, wanted: list[int]) -> int:
    """Return how many tokens after IDS are those WANTED where only the weights of SOURCE are rounded to float16."""
    rounded = kind.from_pretrained(source, dtype=torch.float16).float()
    return parting(generated(rounded, ids).sequences[0, LENGTH:].tolist(), wanted)


def compared(source: Path, kind: Any, begin: Callable[[], Call], ids: np.ndarray) -> dict[str, Any]:
    """Return how far the text after IDS is the one of SOURCE, a directory of KIND, and the errors where it parts."""
    exact = kind.from_pretrained(source)
    found = generated(exact, ids)
    wanted = found.sequences[0, LENGTH:].tolist()
    tokens, scores = text(begin(), ids)
    at = parting(tokens, wanted)
    about = {"same": at, "same with rounded weights": of_rounded(source, kind, ids, wanted)}
    if at == NEW:
        return about
    own = found.logits[at][0].float().numpy()
    half = kind.from_pretrained(source, dtype=torch.float16)
    with torch.no_grad():
        rounded = half(found.sequences[:, : LENGTH + at]).logits[0, -1].float().numpy()
    return about | {
        "chosen by": float(own[wanted[at]] - own[tokens[at]]),
        "error": float(np.abs(scores[at] - own).max()),
        "error of transformers in half precision": float(np.abs(rounded - own).max()),
    }


def measured(form: str, name: str, folder: Path) -> list[dict[str, Any]]:
    """Return what becomes of texts of the family NAME as FORM."""
    source, target = make(name, folder / "source"), folder / FILES[form]
    words = ["export", form, str(source), str(target), "--stateful", "--check", "none"]
    made = CliRunner().invoke(weighbridge, words)
    if made.exit_code:
        raise SystemExit(made.output)
    begin, kind = opened(form, target), getattr(transformers, MODELS[name].model)
    prompts = np.random.default_rng(0).integers(3, 60, (PROMPTS, 1, LENGTH))
    return [compared(source, kind, begin, ids) for ids in prompts]


def main() -> None:
    """Compare the families named on the command line, or all, in one form or both."""
    forms = [it for it in sys.argv[1:] if it in FILES] or FILES
    names = [it for it in sys.argv[1:] if it not in FILES] or FAMILIES
    rows = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    for form in forms:
        for name in names:
            with tempfile.TemporaryDirectory() as folder:
                found = measured(form, name, Path(folder))
            rows.setdefault(form, {})[name] = found
            for row in found:
                print(form, name, *(f"{what}: {it:.3g}" for what, it in row.items()), flush=True)
            RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
