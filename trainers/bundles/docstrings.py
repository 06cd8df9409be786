"""A small encoder that knows nothing yet, and docstrings of Python's standard library to teach it.

The tokenizer's vocabulary is counted in the texts, and the encoder is a small BERT with random weights.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from ...converters.checkpoints import save_tensors
from ...converters.common.steps import step
from ..data.stdlib_pairs import Pair, extract_pairs, write_pairs

MODEL: Final = "model"
PACKAGES: Final = 8  # those with the most docstrings are told apart
SPECIAL: Final = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ENCODER: Final[dict[str, Any]] = {
    "vocab_size": 4096,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}


LATE: Final[dict[str, Any]] = {
    "vocab_size": 4096,
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 128,
    "num_layers": 6,
    "num_heads": 4,
    "dropout_rate": 0.0,
    "pad_token_id": 0,
}


def write_docstrings(target: Path) -> None:
    """Write to TARGET train, validation and test pairs, and ``model``, a BERT."""
    from transformers import BertConfig, BertModel

    _write_texts(target)
    _save_encoder(target / MODEL, BertModel, BertConfig(**ENCODER, architectures=["BertModel"]))


def write_late(target: Path) -> None:
    """Write to TARGET the same pairs, and ``model``, the encoder of a T5."""
    from transformers import T5Config, T5EncoderModel

    _write_texts(target)
    config = T5Config(**LATE, architectures=["T5EncoderModel"])
    _save_encoder(target / MODEL, T5EncoderModel, config)


def write_packages(target: Path) -> None:
    """Write to TARGET docstrings with the package that they are of, and ``model``, a BERT that has no idea."""
    from transformers import BertConfig, BertForSequenceClassification

    pairs = [pair for pair in extract_pairs() if "/" in pair.module]
    counts = Counter(_package(pair) for pair in pairs)
    names = sorted(_commonest(counts, PACKAGES))
    splits: dict[str, list[Pair]] = {"train": [], "validation": [], "test": []}
    for pair in (pair for pair in pairs if _package(pair) in names):
        splits[_split(pair.module)].append(pair)
    for split, kept in splits.items():
        rows = [json.dumps({"text": pair.query, "label": _package(pair)}) for pair in kept]
        (target / f"{split}.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    _save_tokenizer([pair.query for pair in splits["train"]], target / MODEL)
    kind: dict[str, Any] = {
        "num_labels": len(names),
        "architectures": ["BertForSequenceClassification"],
    }
    config = BertConfig(**ENCODER, **kind)
    _save_encoder(target / MODEL, BertForSequenceClassification, config)


def _package(pair: Pair) -> str:
    return pair.module.partition("/")[0]


def _split(module: str) -> str:
    """Return the split of all texts of MODULE: a fifth is for the test, a tenth for validation."""
    drawn = hashlib.md5(module.encode()).digest()[0] % 10  # noqa: S324 - an order, not a secret
    return "test" if drawn < 2 else "validation" if drawn < 3 else "train"


def _write_texts(target: Path) -> None:
    """Write to TARGET the pairs, and in ``model`` a tokenizer for them."""
    step("gathering docstrings of Python's standard library")
    write_pairs(target)
    rows = map(json.loads, (target / "train.jsonl").read_text(encoding="utf-8").splitlines())
    texts = [row[name] for row in rows for name in ("query", "document")]
    _save_tokenizer(texts, target / MODEL)


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


def _save_encoder(target: Path, kind: Any, config: Any) -> None:
    """Write to TARGET a model of KIND with random weights, the same on every machine."""
    import torch

    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        model = kind(config)
    config.save_pretrained(target)
    saved = {name: value.numpy() for name, value in model.state_dict().items()}
    tied = set(getattr(model, "_tied_weights_keys", None) or ())
    arrays = {name: array for name, array in saved.items() if name not in tied}
    save_tensors(target / "model.safetensors", arrays, {"format": "pt"})
