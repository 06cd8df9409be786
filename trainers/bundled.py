"""What the bundled recipes name: a small encoder that knows nothing yet, and real text to teach it.

A value such as ``bundled:train.jsonl`` in a recipe is a file here. Nothing is downloaded: the texts
are docstrings of the running Python's standard library, the tokenizer's vocabulary is counted in
them, and the encoder is a small BERT with random weights. They are made when first needed and kept
in the cache, so that a run can be resumed on the same bytes.
"""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Iterable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final

from ..converters.checkpoints import save_tensors
from ..converters.common import cache
from ..converters.common.steps import step
from ..converters.common.system import writing
from ..errors import BadInputError

PREFIX: Final = "bundled:"
EDITION: Final = 1  # of what is made here
MODEL: Final = "model"
SPECIAL: Final = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
ENCODER: Final = {
    "vocab_size": 4096,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}


def located(value: str) -> str:
    """Return the path that VALUE names if it begins with ``bundled:``, else VALUE itself."""
    return str(folder() / value.removeprefix(PREFIX)) if value.startswith(PREFIX) else value


def folder() -> Path:
    """Return where the model and the texts are, or will be.

    Raises:
        BadInputError: nothing is to be kept on this machine.
    """
    kept = cache.folder()
    if kept is None:
        raise BadInputError(
            f"bundled recipes need a folder to keep their model and texts in: {cache.VARIABLE} is empty"
        )
    return kept.absolute() / f"docstrings-{EDITION}-python-{platform.python_version()}"


def provide(paths: Iterable[str | Path | None]) -> None:
    """Make the model and the texts if one of PATHS is theirs and they are not there yet.

    Raises:
        WeighbridgeError: the disk is full or refuses.
    """
    if cache.folder() is None or folder().is_dir():
        return
    if any(path and Path(path).is_relative_to(folder()) for path in paths):
        with writing(folder()):
            _make(folder())


def _make(target: Path) -> None:
    """Make everything beside TARGET, and rename it when it is whole."""
    from .data.stdlib_pairs import write_pairs

    step("gathering docstrings of Python's standard library")
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(mkdtemp(prefix=f"{target.name}-", dir=target.parent))
    try:
        write_pairs(draft)
        rows = map(json.loads, (draft / "train.jsonl").read_text(encoding="utf-8").splitlines())
        texts = [row[name] for row in rows for name in ("query", "document")]
        _save_tokenizer(texts, draft / MODEL)
        _save_encoder(draft / MODEL)
        draft.replace(target)
    except OSError:
        if not target.is_dir():  # another process may have made the same
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _save_tokenizer(texts: Iterable[str], target: Path) -> None:
    """Write to TARGET a WordPiece tokenizer with the vocabulary of TEXTS."""
    from tokenizers import BertWordPieceTokenizer

    tokenizer: Any = BertWordPieceTokenizer(lowercase=True)
    tokenizer.train_from_iterator(
        texts,
        vocab_size=ENCODER["vocab_size"],
        special_tokens=[*SPECIAL, "[MASK]"],
        show_progress=False,
    )
    target.mkdir()
    tokenizer.save(str(target / "tokenizer.json"))
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True}
    (target / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def _save_encoder(target: Path) -> None:
    """Write to TARGET a BERT with random weights, the same on every machine."""
    import torch
    from transformers import BertConfig, BertModel

    config = BertConfig(**ENCODER, architectures=["BertModel"])
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        weights = BertModel(config).state_dict()
    config.save_pretrained(target)
    arrays = {name: tensor.numpy() for name, tensor in weights.items()}
    save_tensors(target / "model.safetensors", arrays, {"format": "pt"})
