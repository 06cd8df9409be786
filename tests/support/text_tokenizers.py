"""Small tokenizers of four kinds, built by the library ``tokenizers``, as directories of a model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from weighbridge.parity.text.phrases import TEXTS

CORPUS = [*TEXTS, *(text.replace("'", " ") for text in TEXTS)] * 3
CHAT_TEMPLATE = (
    "{{ bos_token }}{% if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _write(folder: Path, name: str, content: Any) -> None:
    (folder / name).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def word_piece(folder: Path) -> None:
    """Write a tokenizer like BERT's: lower case, no accents, ``##`` inside of words."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(
        vocab_size=1500, special_tokens=special, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.save(str(folder / "tokenizer.json"))
    rows = sorted(tokenizer.get_vocab().items(), key=lambda row: row[1])
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token, _ in rows))
    named = dict(zip(("pad", "unk", "cls", "sep", "mask"), special, strict=True))
    tokens = {f"{name}_token": text for name, text in named.items()}
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 512}
    _write(folder, "tokenizer_config.json", {**settings, **tokens, "padding_side": "right"})
    _write(folder, "special_tokens_map.json", tokens)
    _write(folder, "config.json", {"model_type": "bert", "pad_token_id": 0})


def byte_level(folder: Path) -> None:
    """Write a tokenizer like those of chat models: bytes, digits in threes, many added tokens."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.normalizer = normalizers.NFC()
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    from tokenizers import Regex

    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=2400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    special = ["<|begin|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer.add_special_tokens([AddedToken(it, special=True, normalized=False) for it in special])
    tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("</tool_call>")])
    content = json.loads(tokenizer.to_str())
    unreached = {"weighbridges": len(content["model"]["vocab"])}  # a word that no merge makes
    added = [{**it, "id": it["id"] + 1} for it in content["added_tokens"]]
    content["model"]["vocab"] |= unreached
    tokenizer = Tokenizer.from_str(json.dumps(content | {"added_tokens": added}))
    begin = tokenizer.token_to_id("<|begin|>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A",
        pair="<|begin|> $A <|begin|> $B:1",
        special_tokens=[("<|begin|>", begin)],
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|begin|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": 4096,
        "padding_side": "left",
        "truncation_side": "left",
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    _write(folder, "tokenizer_config.json", settings)
    stop = [tokenizer.token_to_id(token) for token in ("<|im_end|>", "<|endoftext|>")]
    sampling = {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "repetition_penalty": 1.05}
    _write(folder, "generation_config.json", {"eos_token_id": stop, **sampling})
    _write(folder, "config.json", {"model_type": "llama", "eos_token_id": stop[0]})


def unigram(folder: Path) -> None:
    """Write a tokenizer like those of SentencePiece's unigrams: scores, NFKC, ``▁`` for a space."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace("  ", " "), normalizers.Strip(False, True)]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<pad>", "</s>", "<unk>", "<extra_0>", "<extra_1>"]
    trainer = trainers.UnigramTrainer(
        vocab_size=700, special_tokens=special, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
        "extra_special_tokens": ["<extra_0>", "<extra_1>"],
        "model_max_length": 512,
    }
    _write(folder, "tokenizer_config.json", settings)
    _write(folder, "config.json", {"model_type": "t5", "eos_token_id": 1, "pad_token_id": 0})


def byte_fallback(folder: Path) -> None:
    """Write a tokenizer like Llama 2's: merges over ``▁``, bytes where a character is unknown."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=2000, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator((text.replace(" ", "▁") for text in CORPUS), trainer)
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = content["added_tokens"][:3]  # the bytes are entries, not tokens
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B:1", special_tokens=[("<s>", 1)]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    tokens = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 4096, **tokens}
    _write(folder, "tokenizer_config.json", settings)
    _write(folder, "special_tokens_map.json", tokens)
    _write(folder, "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2})
    _write(folder, "config.json", {"model_type": "llama", "eos_token_id": 2})


KINDS: dict[str, Callable[[Path], None]] = {
    "WordPiece": word_piece,
    "byte-level": byte_level,
    "Unigram": unigram,
    "byte fallback": byte_fallback,
}


def make(folder: Path) -> dict[str, Path]:
    """Write one directory of each kind below FOLDER; return them by kind."""
    places = {kind: folder / kind.replace(" ", "-") for kind in KINDS}
    for kind, place in places.items():
        place.mkdir(parents=True)
        KINDS[kind](place)
    return places
