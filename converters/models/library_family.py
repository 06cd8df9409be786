"""A Family for every model type that an MLX library and transformers implement, or of texts transformers alone.

Nothing is imported but the sources of the libraries' tables: opening a model must stay quick.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from ...errors import BadInputError, UnsupportedError
from ..libraries import Target, find
from ..libraries.packages import assigned
from .families import Family, encoder_signature, known_family
from .signature import WIDTHS, Port, Signature, causal_signature, headless
from .signatures import (
    HEADS,
    TOKENS,
    Headed,
    Maker,
    described_signature,
    detector_signature,
    drafting,
    siglip_signature,
    text_signature,
    vit_signature,
)

Config = Mapping[str, Any]
MAPPING: Final = "models/auto/auto_mappings.py"  # model_type -> class, in transformers' sources
BARE: Final = "models/auto/modeling_auto.py"  # model_type -> class without a head
# Types whose texts begin with a prompt that is seen whole, and the input that is 0 for its tokens.
PROMPTED: Final = {"paligemma": "token_type_ids"}
# Types that are given a draft of what they generate, at once or as the answer of a decoder.
DRAFTING: Final = frozenset({"diffusion_gemma", "florence2"})
# Types that are given pictures, not texts that may have some in them.
PICTURES: Final[Mapping[str, Callable[[Config], Signature]]] = {
    **dict.fromkeys(("dinov2", "dinov2_with_registers", "sapiens2"), vit_signature),
    **dict.fromkeys(("pp_doclayout_v3", "rt_detr_v2"), detector_signature),
    "sam3": described_signature,
}
# Types of which transformers wants a session, not arrays.
FOLLOWING: Final = frozenset({"sam3_video"})
# Transformers' tables of classes that read texts, in the order in which a class is looked up, and what
# each has to the signature of an encoder.
HEADED: Final[Mapping[str, Headed]] = {
    "SEQ_TO_SEQ_CAUSAL_LM": HEADS["ForConditionalGeneration"],
    "CAUSAL_LM": lambda config, _: causal_signature(config),
    "MASKED_LM": HEADS["ForMaskedLM"],
    "SEQUENCE_CLASSIFICATION": HEADS["ForSequenceClassification"],
    "TOKEN_CLASSIFICATION": HEADS["ForTokenClassification"],
    "QUESTION_ANSWERING": HEADS["ForQuestionAnswering"],
    "TEXT_ENCODING": lambda _, base: base,
}
# Encoders whose positions begin behind the padding id, as RoBERTa's do.
RESERVED: Final = frozenset(
    {"camembert", "data2vec-text", "esm", "ibert", "longformer", "roberta-prelayernorm", "xmod"}
)
INNER: Final = ("text_config", "llm_config", "thinker_config")  # where wrappers keep the text model


def library_of(config: Config, library: str | None = None) -> Target | None:
    """Return the MLX class, of LIBRARY if given, that reads CONFIG's ``model_type``; ``None`` if none does.

    Raises:
        UntrustedError: the configuration asks to run code of its own directory.
    """
    return find(config, library) if config.get("model_type") else None


def family_of(config: Config, library: str | None = None) -> Family | None:
    """Return the Family of a type that LIBRARY, or any, and transformers know; its map is learned.

    Without a LIBRARY a type of texts that transformers alone knows has one too, and no map.

    >>> family_of({"model_type": "llama"}).map
    ''

    Raises:
        UntrustedError: the configuration asks to run code of its own directory.
    """
    target = library_of(config, library)
    if target is None:
        made = None if library else signature_of_texts(config)
        return Family("", "", made) if made else None
    if not in_transformers(str(config["model_type"])):
        return None
    return Family("", "", partial(signature_in, target))


def signature_of_texts(config: Config) -> Maker | None:
    """Return what makes the signature of the class of transformers that CONFIG names, if it reads texts alone.

    >>> bart = {"model_type": "bart", "architectures": ["BartForConditionalGeneration"], "vocab_size": 9}
    >>> bart["d_model"] = 4
    >>> [port.name for port in signature_of_texts(bart)(bart).inputs]
    ['input_ids', 'attention_mask', 'decoder_input_ids']
    """
    kind, named = str(config.get("model_type")), [*(config.get("architectures") or ()), ""][0]
    parts = {key for key, it in config.items() if key.endswith("_config") and isinstance(it, dict)}
    if "vocab_size" not in config or parts - {"quantization_config"}:
        return None
    width = next((key for key in WIDTHS if key in config), WIDTHS[0])
    base = text_signature(width, 2 if kind in RESERVED else 0)
    tables = {it: classes(BARE, f"MODEL_FOR_{it}_MAPPING_NAMES").get(kind) for it in HEADED}
    head = next((HEADED[it] for it, cls in tables.items() if cls == named), None)
    if head is None and is_bare(config):
        if tables["CAUSAL_LM"] and not tables["MASKED_LM"] and not tables["SEQ_TO_SEQ_CAUSAL_LM"]:
            return headless
        head = HEADS["Model"] if tables["SEQ_TO_SEQ_CAUSAL_LM"] else HEADED["TEXT_ENCODING"]
    return (lambda it: head(it, base(it))) if head else None


def signature_of_class(module: Any) -> Signature | None:
    """Return what MODULE takes and gives, if its class is one of transformers that a directory would name; else ``None``.

    Raises:
        UnsupportedError: it has a head that is not known here.
    """
    if not type(module).__module__.startswith("transformers.models."):
        return None
    config: Config = module.config.to_dict() | {"architectures": [type(module).__name__]}
    row = known_family(config, [*module.state_dict()])
    made = row.signature if row else signature_of_texts(config)
    fits = row is None or row.torch_class == type(module).__name__
    return made(config) if made and fits else None


def signature_in(target: Target, config: Config) -> Signature:
    """Return what the MLX class TARGET takes and gives.

    A class of mlx-embeddings ends with hidden states, those of the other libraries with logits.

    Raises:
        UnsupportedError: the type is given no arrays that both sides take.
    """
    if target.model_type in FOLLOWING:
        raise UnsupportedError(
            f"{target.model_type} follows things from frame to frame in a session of transformers, which"
            f" no check runs here: nothing compares what {target} does. Convert its weights with --check none"
        )
    if target.model_type in PICTURES:
        return PICTURES[target.model_type](config)
    if target.model_type == "siglip":
        made = siglip_signature(config)
        whole = target.library == "mlx-embeddings" or "picture_tower" in target.repaired
        return made if whole else embedding(made, "text_embeds")  # mlx-vlm's class is half of it
    usual = headless if is_bare(config) else causal_signature
    makes = encoder_signature if target.library == "mlx-embeddings" else usual
    made = makes(text_config(config))  # a wrapper's sizes are those of its inner model
    if target.model_type in DRAFTING:
        made = drafting(text_config(config), made)
    name = PROMPTED.get(target.model_type)
    return with_prompt(made, name) if name else made


def embedding(made: Signature, name: str) -> Signature:
    """Return MADE with the output NAME alone; inputs stay, for transformers wants all of them."""
    return replace(made, outputs=tuple(it for it in made.outputs if it.name == name))


def with_prompt(made: Signature, name: str) -> Signature:
    """Return MADE with the input NAME, which says of each token that it belongs to a prompt.

    >>> with_prompt(causal_signature({"vocab_size": 7}), "kinds").inputs[1].role
    'prompt'
    """
    port = Port(name, "int64", TOKENS, "prompt", made.inputs[0].upper)
    return replace(made, inputs=(*made.inputs, port))


def is_bare(config: Config) -> bool:
    """Say whether CONFIG names transformers' class of its type without a head.

    >>> is_bare({"model_type": "qwen3", "architectures": ["Qwen3Model"]})
    True
    """
    named = list(config.get("architectures") or ())[:1]
    bare = classes(BARE, "MODEL_MAPPING_NAMES").get(str(config.get("model_type")))
    # Some wholes with a head are listed among the bare models, where there is nothing below them.
    headed = any("For" in name for name in named)
    listed = named == [bare] or (isinstance(bare, tuple) and named and named[0] in bare)
    return bool(listed) and not headed


def text_config(config: Config) -> Config:
    """Return CONFIG with the keys of the language model inside it on top.

    >>> text_config({"vocab_size": 1, "text_config": {"vocab_size": 7}})["vocab_size"]
    7
    >>> text_config({"thinker_config": {"text_config": {"vocab_size": 7}}})["vocab_size"]
    7

    Raises:
        BadInputError: the inner configuration is not an object.
    """
    inner: Any = next((config[key] for key in INNER if config.get(key)), {})
    if not isinstance(inner, Mapping):
        raise BadInputError(f"config.json: text_config is {type(inner).__name__}, not an object")
    return {**config, **(text_config(inner) if inner else {})}


def in_transformers(kind: str) -> bool:
    """Say whether transformers implements model type KIND; also where it is not installed to ask.

    >>> in_transformers("llama"), in_transformers("unheard-of")
    (True, False)
    """
    known = transformers_types()
    return known is None or kind in known


@cache
def transformers_types() -> frozenset[str] | None:
    """Return the model types of the installed transformers, read from its source; not imported."""
    return frozenset(classes(MAPPING, "CONFIG_MAPPING_NAMES")) or None


@cache
def classes(file: str, name: str) -> Mapping[str, Any]:
    """Return transformers' table NAME in its source FILE, by model type; empty where there is none."""
    spec = importlib.util.find_spec("transformers")
    source = Path(spec.origin).parent / file if spec and spec.origin else None
    table = assigned(source, name) if source else None
    return dict(ast.literal_eval(table.args[0])) if isinstance(table, ast.Call) else {}
