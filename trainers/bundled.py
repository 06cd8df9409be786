"""What the bundled recipes name: a small encoder that knows nothing yet, and real text to teach it.

A value such as ``bundled:train.jsonl`` in a recipe is a file here. Nothing is downloaded: the texts
are docstrings of the running Python's standard library, the tokenizer's vocabulary is counted in
them, and the encoder is a small BERT with random weights. They are made when first needed and kept
in the cache, so that a run can be resumed on the same bytes.
"""

from __future__ import annotations

import itertools
import json
import platform
import shutil
from collections import Counter
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
SPECIAL: Final = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ENCODER: Final[dict[str, Any]] = {
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
    """Return where the model and the texts are, or will be: in the cache.

    Raises:
        BadInputError: nothing is to be kept in a cache.
    """
    kept = cache.folder()
    if kept is None:
        raise BadInputError(
            f"the bundled model and texts are kept in the cache, which {cache.VARIABLE} turns off: "
            f"let it name a folder, or give a recipe of your own (--recipe FILE)"
        )
    return kept.absolute() / f"docstrings-{EDITION}-python-{platform.python_version()}"


def provide(paths: Iterable[str | Path | None]) -> None:
    """Make the model and the texts if one of PATHS is theirs and they are not there yet.

    Raises:
        WeighbridgeError: the disk is full or refuses.
    """
    if cache.folder() is None:
        return  # nothing of theirs was located
    target = folder()
    if not target.is_dir() and any(path and Path(path).is_relative_to(target) for path in paths):
        with writing(target):
            _make(target)


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

    plain: Any = BertWordPieceTokenizer(lowercase=True)
    words: Counter[str] = Counter()
    for text in texts:
        normal = plain.normalizer.normalize_str(text)
        words.update(word for word, _ in plain.pre_tokenizer.pre_tokenize_str(normal))
    tokens = _vocabulary(words, ENCODER["vocab_size"])
    numbers = {token: number for number, token in enumerate(tokens)}
    target.mkdir()
    BertWordPieceTokenizer(vocab=numbers, lowercase=True).save(str(target / "tokenizer.json"))
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True}
    (target / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def _vocabulary(words: Counter[str], size: int) -> list[str]:
    """Return at most SIZE tokens: characters, then the commonest WORDS and, a third, endings.

    The trainers of the tokenizers library break ties at random; a run is resumed on the same ids.

    >>> _vocabulary(Counter({"reads": 3, "read": 2, "a": 1}), 16)[5:]
    ['##a', '##d', '##e', '##r', '##s', 'a', 'd', 'e', 'r', 's', 'reads']
    """
    characters = {character for word in words for character in word if character.isascii()}
    endings: Counter[str] = Counter()
    for word, count in words.items():
        for cut in range(2, len(word) - 1):
            endings[f"##{word[cut:]}"] += count
    tokens = [*SPECIAL, *sorted({f"##{character}" for character in characters} | characters)]
    room = max(0, size - len(tokens))
    common = [_commonest(words, room - room // 3), _commonest(endings, room // 3)]
    return [*dict.fromkeys(itertools.chain(tokens, *common))]


def _commonest(counts: Counter[str], most: int) -> list[str]:
    """Return the keys of the MOST largest COUNTS, equal ones in alphabetical order."""
    return sorted(counts, key=lambda key: (-counts[key], key))[:most]


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
