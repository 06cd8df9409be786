"""What lies beside a tokenizer and says what to do with text: older files, settings of generation."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import xxhash

from ...converters.configs.special_tokens import GENERATION, KINDS, as_ids
from ...converters.documents import TOKENIZER, parse_json, read_optional
from ...converters.documents.fields import read_fields
from .tokenizers import TOKENIZER_FILES

FILES: Final = (
    *TOKENIZER_FILES,
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
)
# Files that some library reads and another does not: what both sides have must hold the same.
DOCUMENTS: Final = (
    "special_tokens_map.json",
    "added_tokens.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
)
IDS: Final = (*GENERATION, "decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id")
TEMPLATES: Final = "additional_chat_templates"
CHOOSES: Final = ("model_type", "tokenizer_class", "transformers_version", "auto_map")
NOTES: Final = frozenset(("transformers_version", "_from_model_config", "__version__"))
# What generation does where nothing is written; transformers 5 leaves these out as it saves.
DEFAULTS: Final[Mapping[str, Any]] = {
    "assistant_confidence_threshold": 0.4,
    "assistant_lookbehind": 10,
    "diversity_penalty": 0.0,
    "do_sample": False,
    "early_stopping": False,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "length_penalty": 1.0,
    "max_length": 20,
    "min_length": 0,
    "no_repeat_ngram_size": 0,
    "num_assistant_tokens": 20,
    "num_assistant_tokens_schedule": "constant",
    "num_beam_groups": 1,
    "num_beams": 1,
    "num_return_sequences": 1,
    "output_attentions": False,
    "output_hidden_states": False,
    "output_logits": False,
    "output_scores": False,
    "remove_invalid_values": False,
    "repetition_penalty": 1.0,
    "return_dict_in_generate": False,
    "target_lookbehind": 10,
    "temperature": 1.0,
    "top_k": 50,
    "top_p": 1.0,
    "typical_p": 1.0,
    "use_cache": True,
}


def _lines(content: bytes) -> list[str]:
    rows = content.decode(errors="replace").splitlines()
    return [row for row in rows if not row.startswith("#version")]


def _json(content: bytes) -> Any:
    return json.dumps(parse_json(content, "vocab.json", TOKENIZER), sort_keys=True)


VOCABULARIES: Final[Mapping[str, Callable[[bytes], Any]]] = {
    "vocab.txt": _lines,
    "merges.txt": _lines,
    "vocab.json": _json,
    "tokenizer.model": bytes,
    "spiece.model": bytes,
    "sentencepiece.bpe.model": bytes,
}


def file_hashes(folder: Path) -> dict[str, str]:
    """Return the xxh3 of every text-side file in FOLDER; of ``config.json``, what chooses a class."""
    files = sorted(folder.glob(f"{TEMPLATES}/*.jinja"))
    templates = (f"{it.parent.name}/{it.name}" for it in files)
    found = {
        name: f"xxh3:{xxhash.xxh3_128_hexdigest((folder / name).read_bytes())}"
        for name in (*FILES, *templates)
        if (folder / name).is_file()
    }
    config = read_optional(folder / "config.json")
    read = {key: config[key] for key in CHOOSES if key in config}
    text = json.dumps(read, sort_keys=True, default=repr)
    return found | {"config.json": f"xxh3:{xxhash.xxh3_128_hexdigest(text.encode())}"}


def vocabulary_hashes(folder: Path) -> dict[str, str]:
    """Return a hash of what each vocabulary file in FOLDER holds, however its lines end."""
    found = {}
    for name, content_of in VOCABULARIES.items():
        if (folder / name).is_file():
            content = content_of((folder / name).read_bytes())
            text = content if isinstance(content, bytes) else repr(content).encode()
            found[name] = xxhash.xxh3_64_hexdigest(text)
    return found


def documents(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the settings in those of ``DOCUMENTS`` that FOLDER has, tokens as their text."""
    return {
        name: {key: _content(value) for key, value in found.items() if key not in NOTES}
        for name in DOCUMENTS
        if (found := read_optional(folder / name))
    }


def _content(value: Any) -> Any:
    return value.get("content", value) if isinstance(value, dict) else value


def generation(folder: Path, special: Mapping[str, int]) -> dict[str, Any]:
    """Return settings of generation that are not those of no settings, ids that end it in order.

    Where ``generation_config.json`` of FOLDER lacks an id, ``config.json`` and the SPECIAL tokens of
    its tokenizer give it, as they do in the libraries.
    """
    read_fields(folder / "generation_config.json", GENERATION)
    own = read_optional(folder / "generation_config.json")
    config = read_optional(folder / "config.json")
    nested = config.get("text_config")
    layers = (own, config, nested if isinstance(nested, dict) else {})
    ids = {key: next((at[key] for at in layers if at.get(key) is not None), None) for key in IDS}
    for kind in KINDS:
        if ids[f"{kind}_token_id"] is None:
            ids[f"{kind}_token_id"] = special.get(kind)
    found = {key: value for key, value in {**own, **ids}.items() if key not in NOTES}
    found["eos_token_id"] = sorted(as_ids(found["eos_token_id"]))
    return {key: value for key, value in found.items() if value not in (None, DEFAULTS.get(key))}
