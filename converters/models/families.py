"""Architectures known by ``model_type``: one row of data each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from ...errors import BadInputError, UnsupportedError
from .signature import Signature
from .signatures import (
    HEADS,
    clip_signature,
    clip_text_signature,
    clip_vision_signature,
    convolutional_signature,
    doubled_widths,
    siglip_vision_signature,
    swin_signature,
    t5_signature,
    text_signature,
    vit_signature,
    wav2vec2_signature,
    whisper_signature,
)

Config = Mapping[str, Any]
Heads = Mapping[str, tuple[str, ...]]
Spelling = tuple[str, str]
PARTS: Final = {"basic": 2, "bottleneck": 3}  # convolutions of a layer, by its type
NO_HEADS: Final[Heads] = MappingProxyType({})


class Stage(NamedTuple):
    """Some layers of one width.

    Attributes:
        layers: how many.
        width: channels that each one gives.
        parts: convolutions of each, 0 where the table need not ask.
    """

    layers: int
    width: int
    parts: int = 0


class Family(NamedTuple):
    """What Weighbridge knows of an architecture.

    A row of ``FAMILIES`` speaks of the bare model. ``known_family`` makes of it what one checkpoint
    is: with a head, with the base's names behind a prefix, in an older spelling.

    Attributes:
        map: name of the table map, torch names on its left side, MLX names on its right, both of
            the bare model.
        torch_class: class in transformers that runs it.
        signature: makes the Signature from the config.
        optional: submodules and parameters that a checkpoint may lack.
        native: the MLX library whose own loader and ``sanitize`` the table is tested against.
        prefix: what torch puts before the base's names once there is a head on it.
        keeps_prefix: whether MLX does too.
        heads: the submodules of each class with a head, by what its name ends in; one marked with
            ``?`` may be missing, as where it is tied to the embeddings.
        spellings: parts of torch names, and how older checkpoints spell them.
        native_heads: those heads that the native library loads too.
        staged: whether its layers stand in stages, each with a number and a width of its own.
        stages: these, in the order of the stages, once a configuration is known.
    """

    map: str
    torch_class: str
    signature: Callable[[Config], Signature]
    optional: tuple[str, ...] = ()
    native: str = ""
    prefix: str = ""
    keeps_prefix: bool = True
    heads: Heads = NO_HEADS
    spellings: tuple[Spelling, ...] = ()
    native_heads: tuple[str, ...] = ()
    staged: bool = False
    stages: tuple[Stage, ...] = ()

    @property
    def stem(self) -> str:
        """What the classes of this family begin with.

        >>> FAMILIES["bert"].stem, FAMILIES["t5"].stem
        ('Bert', 'T5')
        """
        return self.torch_class.removesuffix("Model").removesuffix("Encoder")

    @property
    def modules(self) -> frozenset[str]:
        """The submodules that belong to a head and not to the bare model."""
        return frozenset(name.rstrip("?") for row in self.heads.values() for name in row)

    def in_head(self, name: str) -> bool:
        """Say whether the tensor or pattern NAME belongs to a head.

        >>> FAMILIES["bert"].in_head("cls.predictions.bias")
        True
        """
        return any(name == module or name.startswith(f"{module}.") for module in self.modules)


encoder_signature: Final = text_signature()  # token ids and mask in, hidden states out


def known_family(
    config: Config, names: Collection[str] = (), framework: str = "torch"
) -> Family | None:
    """Return what a checkpoint of a tabled architecture is; ``None`` where its type has no row.

    What the files hold decides, because ``architectures`` often names the class that a model was
    trained with, head and all, while the files hold the bare model.

    Args:
        config: ``config.json``.
        names: of its tensors.
        framework: whose names they are.

    Raises:
        UnsupportedError: there is a head on it that is not known here.

    >>> row = known_family({"model_type": "bert"}, ["bert.pooler.dense.bias", "qa_outputs.bias"])
    >>> row.torch_class, row.prefix
    ('BertForQuestionAnswering', 'bert.')
    """
    row = FAMILIES.get(str(config.get("model_type")))
    if row is None:
        return None
    suffix = head_of(row, config, names)
    ahead = has_prefix(row, names, framework, headed=suffix is not None)
    used = row.spellings if framework == "torch" else ()
    found = row._replace(
        prefix=row.prefix if ahead else "",
        spellings=tuple(pair for pair in used if any(pair[1] in name for name in names)),
        stages=stages_of(config) if row.staged else (),
    )
    if suffix is None:
        return found if not ahead else found._replace(native="")
    return found._replace(
        torch_class=row.stem + suffix,
        signature=partial(headed_signature, row, suffix),
        native=row.native if suffix in row.native_heads else "",
    )


def stages_of(config: Config) -> tuple[Stage, ...]:
    """Return the stages of a backbone; where one width alone is said, that of the first, each has twice as many.

    >>> stages_of({"depths": [3, 4], "hidden_sizes": [256, 512]})[1]
    Stage(layers=4, width=512, parts=0)
    >>> stages_of({"depths": [3, 4], "embed_dim": 96})[1]
    Stage(layers=4, width=192, parts=0)

    Raises:
        BadInputError: CONFIG does not say how deep and how wide each one is.
    """
    depths, first = config.get("depths"), config.get("embed_dim")
    doubled = isinstance(depths, list) and isinstance(first, int)
    lists = [depths, doubled_widths(config) if doubled else config.get("hidden_sizes")]
    whole = [x for x in lists if isinstance(x, list) and all(isinstance(i, int) for i in x)]
    if len(whole) < 2 or len(whole[0]) != len(whole[1]):
        raise BadInputError(
            "config.json: depths and hidden_sizes should be there, lists of as many integers each"
        )
    parts = PARTS.get(str(config.get("layer_type")), 0)
    return tuple(Stage(*pair, parts) for pair in zip(whole[0], whole[1], strict=True))


def headed_signature(row: Family, suffix: str, config: Config) -> Signature:
    """Return the signature of ROW's class whose name ends in SUFFIX."""
    return HEADS[suffix](config, row.signature(config))


def head_of(row: Family, config: Config, names: Collection[str]) -> str | None:
    """Return what the name of the class that runs a checkpoint ends in; ``None`` for the bare model.

    Raises:
        UnsupportedError: no known head has the submodules that are there.
    """
    declared = next(iter(config.get("architectures") or ()), "")
    there = {module for module in row.modules if any(begins(name, module) for name in names)}
    fitting = [suffix for suffix, modules in row.heads.items() if fits(modules, there)]
    bare = not there
    if declared.removeprefix(row.stem) in fitting:
        return str(declared.removeprefix(row.stem))
    if bare:
        return None if declared or not fitting else fitting[0]
    known = declared in ("", row.torch_class, *(row.stem + suffix for suffix in row.heads))
    if fitting and known:
        return fitting[0]
    raise UnsupportedError(
        f"config.json says {declared or 'nothing of the class'}, and the checkpoint holds"
        f" {', '.join(sorted(there))}; known for {config['model_type']} are {', '.join(classes(row))}"
    )


def begins(name: str, module: str) -> bool:
    """Say whether the tensor NAME belongs to MODULE."""
    return name == module or name.startswith(f"{module}.")


def fits(modules: tuple[str, ...], there: Collection[str]) -> bool:
    """Say whether a head of MODULES may be what is THERE.

    >>> fits(("decoder", "lm_head?"), {"decoder"}), fits(("decoder",), {"decoder", "lm_head"})
    (True, False)
    """
    needed = {module for module in modules if not module.endswith("?")}
    return needed <= set(there) <= {module.rstrip("?") for module in modules}


def classes(row: Family) -> Iterator[str]:
    """Yield the classes that ROW knows."""
    yield row.torch_class
    yield from (row.stem + suffix for suffix in row.heads)


def has_prefix(row: Family, names: Collection[str], framework: str, *, headed: bool) -> bool:
    """Say whether the torch names of a checkpoint stand behind the prefix of ROW."""
    if not row.prefix:
        return False
    if framework == "torch" or row.keeps_prefix:
        return any(name.startswith(row.prefix) for name in names)
    return headed  # MLX names do not tell; transformers writes it before the base of a head


LABELS: Final[Heads] = {
    "ForSequenceClassification": ("classifier",),
    "ForTokenClassification": ("classifier",),
}
ANSWERS: Final[Heads] = {"ForQuestionAnswering": ("qa_outputs",)}
ROBERTA_HEADS: Final[Heads] = {"ForMaskedLM": ("lm_head",), **LABELS, **ANSWERS}
IMAGES: Final[Heads] = {"ForImageClassification": ("classifier",)}
BERT_HEADS: Final[Heads] = {
    "ForMaskedLM": ("cls.predictions",),
    "ForPreTraining": ("cls.predictions", "cls.seq_relationship"),
    **LABELS,
    **ANSWERS,
}
DISTILBERT_HEADS: Final[Heads] = {
    "ForMaskedLM": ("vocab_transform", "vocab_layer_norm", "vocab_projector"),
    "ForSequenceClassification": ("pre_classifier", "classifier"),
    "ForTokenClassification": ("classifier",),
    **ANSWERS,
}
MODERNBERT_HEADS: Final[Heads] = {
    "ForMaskedLM": ("head", "decoder"),
    "ForSequenceClassification": ("head", "classifier"),
    "ForTokenClassification": ("head", "classifier"),
}
T5_HEADS: Final[Heads] = {
    "ForConditionalGeneration": ("decoder", "lm_head?"),
    "Model": ("decoder",),
}
WAV2VEC2_HEADS: Final[Heads] = {
    "ForCTC": ("lm_head",),
    "ForPreTraining": ("quantizer", "project_hid", "project_q"),
    "ForSequenceClassification": ("projector", "classifier", "layer_weights?"),
}
OLD_NORMS: Final = (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"))
OLD_WEIGHT_NORM: Final = (
    ("parametrizations.weight.original0", "weight_g"),
    ("parametrizations.weight.original1", "weight_v"),
)
ROBERTA: Final = Family(
    "roberta",
    "RobertaModel",
    text_signature(reserved=2),
    ("pooler",),
    prefix="roberta.",
    heads=ROBERTA_HEADS,
)

FAMILIES: Final[Mapping[str, Family]] = {
    "bert": Family(
        "bert",
        "BertModel",
        encoder_signature,
        ("pooler",),
        "mlx-embeddings",
        prefix="bert.",
        heads=BERT_HEADS,
        spellings=OLD_NORMS,
    ),
    "clip": Family("clip", "CLIPModel", clip_signature),
    "clip_text_model": Family(
        "clip_text",
        "CLIPTextModel",
        clip_text_signature,
        prefix="text_model.",
        heads={"ModelWithProjection": ("text_projection",)},
    ),
    "clip_vision_model": Family(
        "clip_vision",
        "CLIPVisionModel",
        clip_vision_signature,
        prefix="vision_model.",
        heads={"ModelWithProjection": ("visual_projection",)},
    ),
    "convnext": Family(
        "convnext",
        "ConvNextModel",
        convolutional_signature,
        prefix="convnext.",
        heads=IMAGES,
        staged=True,
    ),
    "distilbert": Family(
        "distilbert",
        "DistilBertModel",
        text_signature("dim"),
        prefix="distilbert.",
        heads=DISTILBERT_HEADS,
    ),
    "modernbert": Family(
        "modernbert",
        "ModernBertModel",
        text_signature(),
        native="mlx-embeddings",
        prefix="model.",
        keeps_prefix=False,
        heads=MODERNBERT_HEADS,
        native_heads=("ForMaskedLM", "ForSequenceClassification"),
    ),
    "mpnet": Family(
        "mpnet",
        "MPNetModel",
        text_signature(reserved=2),
        ("pooler",),
        prefix="mpnet.",
        heads=ROBERTA_HEADS,
    ),
    "resnet": Family(
        "resnet",
        "ResNetModel",
        convolutional_signature,
        prefix="resnet.",
        heads=IMAGES,
        staged=True,
    ),
    "roberta": ROBERTA,
    "siglip_vision_model": Family(
        "siglip_vision",
        "SiglipVisionModel",
        siglip_vision_signature,
        ("head",),
        prefix="vision_model.",
    ),
    "swin": Family("swin", "SwinModel", swin_signature, prefix="swin.", heads=IMAGES, staged=True),
    "t5": Family("t5", "T5EncoderModel", t5_signature, heads=T5_HEADS),
    "vit": Family("vit", "ViTModel", vit_signature, ("pooler",), prefix="vit.", heads=IMAGES),
    "wav2vec2": Family(
        "wav2vec2",
        "Wav2Vec2Model",
        wav2vec2_signature,
        prefix="wav2vec2.",
        keeps_prefix=False,
        optional=("masked_spec_embed",),  # replaces frames in training alone
        heads=WAV2VEC2_HEADS,
        spellings=OLD_WEIGHT_NORM,
    ),
    "whisper": Family(
        "whisper",
        "WhisperModel",
        whisper_signature,
        prefix="model.",
        keeps_prefix=False,
        heads={"ForConditionalGeneration": ("proj_out?",)},
    ),
    "xlm-roberta": ROBERTA._replace(torch_class="XLMRobertaModel", native="mlx-embeddings"),
}
