"""Signatures of encoders, encoder-decoders, vision and audio models, from their configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from ...errors import BadInputError
from .signature import Dimension, Port, Signature, causal_signature, longest, size_of

Config = Mapping[str, Any]
Maker = Callable[[Config], Signature]
Headed = Callable[[Config, Signature], Signature]
TOKENS: Final = ("batch", "sequence")
TARGETS: Final = ("batch", "target")
FRAMES: Final = 24  # frames that a raw waveform is made long enough for
SIDE: Final = 224  # of an image, where the configuration does not say


def output(name: str, *shape: Dimension, role: str = "hidden") -> Port:
    """Return an output port; they are float32."""
    return Port(name, "float32", shape, role)


def text_inputs(vocabulary: int, limit: int) -> tuple[Port, Port]:
    """Return the ports of token ids below VOCABULARY and their mask, LIMIT tokens at most."""
    upper = (("sequence", limit), ("vocabulary", vocabulary))
    return (
        Port("input_ids", "int64", TOKENS, "token_ids", upper),
        Port("attention_mask", "int64", TOKENS, "attention_mask", upper),
    )


def decoder_input(vocabulary: int, limit: int) -> Port:
    """Return the port of the token ids that a decoder continues."""
    upper = (("target", limit), ("vocabulary", vocabulary))
    return Port("decoder_input_ids", "int64", TARGETS, "token_ids", upper)


def text_signature(width: str = "hidden_size", reserved: int = 0) -> Maker:
    """Return the maker for a text encoder: token ids and mask in, hidden states out.

    Args:
        width: key of the hidden states' size.
        reserved: positions that no token gets; RoBERTa's start behind the padding id.

    >>> make = text_signature(reserved=2)
    >>> make({"vocab_size": 9, "hidden_size": 4, "max_position_embeddings": 514}).inputs[0].upper
    (('sequence', 512), ('vocabulary', 9))
    """

    def make(config: Config) -> Signature:
        limit = max(1, longest(config, 512 + reserved) - reserved)
        hidden = output("last_hidden_state", *TOKENS, size_of(config, width))
        return Signature(text_inputs(size_of(config, "vocab_size"), limit), (hidden,))

    return make


def t5_signature(config: Config) -> Signature:
    """Return the signature of the encoder; with a decoder it takes what ``generating`` adds."""
    limit = longest(config, 512)
    hidden = output("last_hidden_state", *TOKENS, size_of(config, "d_model"))
    return Signature(text_inputs(size_of(config, "vocab_size"), limit), (hidden,))


def whisper_signature(config: Config) -> Signature:
    """Return the signature of Whisper: log-mel features of full length and token ids in."""
    width, limit = size_of(config, "d_model"), size_of(config, "max_target_positions")
    sizes = size_of(config, "num_mel_bins"), 2 * size_of(config, "max_source_positions")
    features = Port("input_features", "float32", ("batch", *sizes), "spectrogram")
    return Signature(
        (features, decoder_input(size_of(config, "vocab_size"), limit)),
        (
            output("last_hidden_state", *TARGETS, width),
            output("encoder_last_hidden_state", "batch", sizes[1] // 2, width),
        ),
    )


def pixels(config: Config) -> Port:
    """Return the port of images, channels first, as large as CONFIG says."""
    shape = ("batch", config.get("num_channels") or 3, *sides_of(config.get("image_size") or SIDE))
    return Port("pixel_values", "float32", shape, "pixels")


def sides_of(size: Any) -> tuple[int, int]:
    """Return height and width of an image of SIZE: one number for both, two, or an object of two.

    Raises:
        BadInputError: it is none of these.

    >>> sides_of(224), sides_of([224, 112]), sides_of({"height": 1, "width": 2})
    ((224, 224), (224, 112), (1, 2))
    """
    match size:
        case int():
            return size, size
        case [int(height), int(width)] | {"height": int(height), "width": int(width)}:
            return height, width
    raise BadInputError("config.json: image_size should be one positive integer, or two")


def vit_signature(config: Config) -> Signature:
    """Return the signature of a vision transformer: an image in, hidden states of patches out."""
    hidden = output("last_hidden_state", "batch", "patches", size_of(config, "hidden_size"))
    return Signature((pixels(config),), (hidden,))


def detector_signature(config: Config) -> Signature:
    """Return the signature of a detector: an image in, what each of its queries found out, and where."""
    found = output("logits", "batch", "queries", "labels", role="scores")
    return Signature((pixels(config),), (found, output("pred_boxes", "batch", "queries", 4)))


def described_signature(config: Config) -> Signature:
    """Return the signature of SAM 3: an image and what to find in it, in words, in; masks and boxes out.

    Raises:
        BadInputError: the configuration lacks one of its two halves.
    """
    text, vision = halves_of(config)
    ids, mask = text_inputs(size_of(text, "vocab_size"), longest(text, 32))
    seen = pixels(vision.get("backbone_config") or vision)
    outputs = (
        output("pred_logits", "batch", "queries", role="scores"),
        output("pred_boxes", "batch", "queries", 4),
        output("pred_masks", "batch", "queries", "rows", "columns"),
    )
    return Signature((seen, ids, mask), outputs)


def convolutional_signature(config: Config) -> Signature:
    """Return the signature of a convolutional backbone: an image in, feature maps out.

    Raises:
        BadInputError: the configuration lacks the sizes of the stages.
    """
    sizes = config.get("hidden_sizes")
    if not isinstance(sizes, list) or not sizes:
        raise BadInputError("config.json: hidden_sizes should be there, a list of integers")
    width = int(sizes[-1])
    features = output("last_hidden_state", "batch", width, "rows", "columns")
    pooled = output("pooler_output", "batch", width, *(1, 1) * ("embedding_size" in config))
    return Signature((pixels(config),), (features, pooled))


def clip_text_signature(config: Config) -> Signature:
    """Return the signature of CLIP's text tower, which attends to what came before only."""
    width, limit = size_of(config, "hidden_size"), longest(config, 77)
    ids, _ = text_inputs(size_of(config, "vocab_size"), limit)
    hidden = output("last_hidden_state", *TOKENS, width), output("pooler_output", "batch", width)
    return Signature((ids,), hidden)


def clip_vision_signature(config: Config) -> Signature:
    """Return the signature of CLIP's vision tower; only the pooled output passes its last norm."""
    made, width = vit_signature(config), size_of(config, "hidden_size")
    return replace(made, outputs=(*made.outputs, output("pooler_output", "batch", width)))


def clip_signature(config: Config) -> Signature:
    """Return the signature of CLIP: as many texts as images in, both embeddings and scores out.

    Raises:
        BadInputError: the configuration lacks one of its two halves.
    """
    text, vision = halves_of(config)
    inputs = (*clip_text_signature(text).inputs, pixels(vision))
    return scored(inputs, size_of(config, "projection_dim"))


def siglip_signature(config: Config) -> Signature:
    """Return the signature of SigLIP, as CLIP's, but for the mask: its texts have no padding.

    Raises:
        BadInputError: the configuration lacks one of its two halves.
    """
    text, vision = halves_of(config)
    inputs = (*causal_signature(text).inputs, pixels(vision))
    return scored(inputs, size_of(vision, "hidden_size"))


def siglip_vision_signature(config: Config) -> Signature:
    """Return the signature of SigLIP's vision tower, which may lack the head that pools."""
    made = clip_vision_signature(config)
    return made if config.get("vision_use_head", True) else replace(made, outputs=made.outputs[:1])


def doubled_widths(config: Config) -> list[int]:
    """Return the widths of stages of which each has twice that of the one before.

    >>> doubled_widths({"depths": [2, 2, 6], "embed_dim": 96})
    [96, 192, 384]
    """
    return [size_of(config, "embed_dim") << it for it in range(len(config["depths"]))]


def swin_signature(config: Config) -> Signature:
    """Return the signature of Swin: an image in, hidden states of the last stage's patches out, and their mean.

    Raises:
        BadInputError: the configuration lacks the depths of the stages.
    """
    if not isinstance(config.get("depths"), list) or not config["depths"]:
        raise BadInputError("config.json: depths should be there, a list of integers")
    return clip_vision_signature({**config, "hidden_size": doubled_widths(config)[-1]})


def halves_of(config: Config) -> tuple[Config, Config]:
    """Return the configurations of the text and of the vision tower in CONFIG."""
    halves = [config.get(key) for key in ("text_config", "vision_config")]
    if not all(isinstance(half, Mapping) for half in halves):
        raise BadInputError(
            "config.json: text_config and vision_config should be there, as objects"
        )
    text, vision = (dict(half) for half in halves if half is not None)
    return text, vision


def scored(inputs: tuple[Port, ...], width: int) -> Signature:
    """Return the signature of a model that makes embeddings of WIDTH of texts and images, and scores."""
    names = ("text_embeds", "image_embeds")
    return Signature(
        inputs,
        (
            *(output(name, "batch", width, role="embedding") for name in names),
            output("logits_per_image", "batch", "batch", role="logits"),
        ),
    )


def samples_for(config: Config, frames: int) -> int:
    """Return how many samples the convolutions of CONFIG turn into FRAMES.

    >>> samples_for({"conv_kernel": [10, 3], "conv_stride": [5, 2]}, 2)
    30
    """
    kernels, strides = (config.get(key) or () for key in ("conv_kernel", "conv_stride"))
    lists = all(isinstance(it, list | tuple) for it in (kernels, strides))
    if not lists or len(kernels) != len(strides):
        raise BadInputError(
            "config.json: conv_kernel and conv_stride should be lists of one length"
        )
    for kernel, stride in reversed(list(zip(kernels, strides, strict=True))):
        frames = (frames - 1) * int(stride) + int(kernel)
    return frames


def wav2vec2_signature(config: Config) -> Signature:
    """Return the signature of wav2vec 2.0: a waveform in, hidden states of its frames out.

    Its length is fixed: too short a waveform has no frames, and the convolutions need hundreds of
    samples for the first.
    """
    width = size_of(config, "hidden_size")
    if config.get("add_adapter") and isinstance(config.get("output_hidden_size"), int):
        width = size_of(config, "output_hidden_size")
    shape = ("batch", samples_for(config, FRAMES))
    hidden = output("last_hidden_state", "batch", "frames", width)
    return Signature((Port("input_values", "float32", shape, "waveform"),), (hidden,))


def labels_of(config: Config) -> int:
    """Return how many labels a classifier has; two where CONFIG does not say, as transformers does.

    >>> labels_of({"id2label": {"0": "cat", "1": "dog", "2": "cow"}}), labels_of({})
    (3, 2)
    """
    labels = config.get("id2label")
    return len(labels) if isinstance(labels, Mapping) else config.get("num_labels") or 2


def vocabulary_logits(config: Config, base: Signature) -> Signature:
    """Return BASE with logits of every token of the vocabulary at every place."""
    size = size_of(config, "vocab_size")
    return with_outputs(base, output("logits", *base.outputs[0].shape[:2], size, role="logits"))


def token_labels(config: Config, base: Signature) -> Signature:
    """Return BASE with a label for every token."""
    return with_outputs(base, output("logits", *TOKENS, labels_of(config), role="logits"))


def labels(config: Config, base: Signature) -> Signature:
    """Return BASE with one label for all of it."""
    return with_outputs(base, output("logits", "batch", labels_of(config), role="logits"))


def spans(config: Config, base: Signature) -> Signature:  # noqa: ARG001
    """Return BASE with scores of where an answer begins and where it ends."""
    ends = (output(f"{end}_logits", *TOKENS, role="logits") for end in ("start", "end"))
    return with_outputs(base, *ends)


def pretraining(config: Config, base: Signature) -> Signature:
    """Return BASE with what it was trained to predict.

    Of BERT, a token for every mask and whether two sentences follow each other; of wav2vec 2.0, its
    frames as they are compared. The codes that those are compared with are the nearest of a codebook,
    where a last bit may decide.
    """
    if base.inputs[0].role != "token_ids":
        width = size_of(config, "proj_codevector_dim")
        return with_outputs(base, output("projected_states", "batch", "frames", width))
    words = output("prediction_logits", *TOKENS, size_of(config, "vocab_size"), role="logits")
    return with_outputs(base, words, output("seq_relationship_logits", "batch", 2, role="logits"))


def decoding(config: Config, base: Signature) -> Signature:
    """Return BASE with the decoder's input, and its hidden states beside the encoder's."""
    encoded = replace(base.outputs[0], name="encoder_last_hidden_state")
    limit = base.inputs[0].limit("sequence", 512)
    target = decoder_input(size_of(config, "vocab_size"), limit)
    hidden = output("last_hidden_state", *TARGETS, base.outputs[0].shape[-1])
    return Signature((*base.inputs, target), (hidden, encoded))


def generating(config: Config, base: Signature) -> Signature:
    """Return BASE with the logits of the decoder's next token."""
    decoded = len({port.name for port in base.inputs} & {"decoder_input_ids"})
    whole = base if decoded else decoding(config, base)
    logits = output("logits", *TARGETS, size_of(config, "vocab_size"), role="logits")
    return replace(whole, outputs=(logits, *whole.outputs[1:]))


def drafting(config: Config, base: Signature) -> Signature:
    """Return BASE with a draft of tokens that are all generated at once, and their logits instead.

    Without a draft transformers draws one, so that no two calls give the same.
    """
    vocabulary, limit = size_of(config, "vocab_size"), base.inputs[0].limit("sequence", 512)
    logits = output("logits", *TARGETS, vocabulary, role="logits")
    return Signature((*base.inputs, decoder_input(vocabulary, limit)), (logits,))


def projecting(config: Config, base: Signature) -> Signature:
    """Return BASE with the embedding that CLIP compares; its last output was what is projected."""
    name = "image_embeds" if base.inputs[0].role == "pixels" else "text_embeds"
    width = size_of(config, "projection_dim")
    return with_outputs(base, base.outputs[0], output(name, "batch", width, role="embedding"))


def with_outputs(base: Signature, *outputs: Port) -> Signature:
    """Return BASE with OUTPUTS in place of its own."""
    return replace(base, outputs=outputs)


# By what stands behind the base's name in a class of transformers: BertForMaskedLM, T5Model ...
HEADS: Final[Mapping[str, Headed]] = {
    "ForCTC": vocabulary_logits,
    "ForConditionalGeneration": generating,
    "ForImageClassification": labels,
    "ForMaskedLM": vocabulary_logits,
    "ForPreTraining": pretraining,
    "ForQuestionAnswering": spans,
    "ForSequenceClassification": labels,
    "ForTokenClassification": token_labels,
    "Model": decoding,
    "ModelWithProjection": projecting,
}
