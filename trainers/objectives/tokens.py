"""Language models: the next token, tokens that were hidden, or another text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ...converters.captures.modes import in_mode
from ...converters.values import Array
from ..data.batches import Batch, Dataset
from ..evaluation import measure_tokens
from .base import IGNORED, labels
from .outputs import logits_of, looked_at, run

MOVED: Final = 1e-4  # of the largest logit: what no rounding of float32 does
START: Final = "decoder_start_token_id"  # of a configuration: what transformers puts before a text


def surprises(logits: Tensor, labels: Tensor) -> Tensor:
    """Return ``logsumexp(logits) - logits[label]`` where LABELS are not -100, and 0 elsewhere.

    What torch's cross entropy is a mean of, without the logarithms of all probabilities: of a large
    vocabulary, the logits exist once in float32, and not a second time.

    Args:
        logits: shape ``(batch, sequence, vocabulary)``, of any floating dtype.
        labels: ids, shape ``(batch, sequence)``.

    Returns:
        Minus the logarithms of probabilities, shape ``(batch, sequence)``.
    """
    counts = labels != IGNORED
    wide = torch.promote_types(logits.dtype, torch.float32)
    chosen = logits.gather(-1, labels.where(counts, 0).unsqueeze(-1)).squeeze(-1)
    return (logits.to(wide).logsumexp(-1) - chosen.to(wide)).where(counts, 0.0)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean of :func:`surprises` over the LABELS that count, 0 where none does."""
    return surprises(logits, labels).sum() / (labels != IGNORED).sum().clamp(min=1)


def next_tokens(labels: Tensor) -> Tensor:
    """Return the label of the next position for each; the last has none."""
    return functional.pad(labels[:, 1:], (0, 1), value=IGNORED)


def next_labels(batch: Batch) -> float:
    """Return the number of ``labels`` that count and have a token before them."""
    return float(np.count_nonzero(batch.inputs["labels"][:, 1:] != IGNORED))


class MaskedLM(nn.Module):
    """The loss of the tokens that were hidden: those whose label is not -100."""

    dynamic: ClassVar = {name: {0: "batch", 1: "sequence"} for name in ("ids", "mask", "labels")}
    weight = staticmethod(labels)
    measure = staticmethod(measure_tokens)
    hidden: ClassVar = True  # what is to be found
    shown: ClassVar = "masked_lm finds tokens that are hidden, and none are; --set data.hide=0.15"

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        """Return the loss, a scalar."""
        logits = logits_of(run(self.model, {"ids": ids, "mask": mask}))
        return cross_entropy(logits, self.answers(labels))

    @staticmethod
    def answers(labels: Tensor) -> Tensor:
        """Return the label of every position's logits."""
        return labels

    @classmethod
    def check(cls, module: Any, splits: Mapping[str, Dataset]) -> list[str]:
        """Return why MODULE finds no tokens of a text: no head, an encoder that shows them to its decoder, or data that do."""
        if getattr(splits["train"], "hides", cls.hidden) is not cls.hidden:
            return [cls.shown]
        name, config = type(module).__name__, getattr(module, "config", None)
        base: Any = getattr(module, "base_model", module)
        bare = base is module and not getattr(base, "get_output_embeddings", lambda: True)()
        if not getattr(config, "is_encoder_decoder", False):
            return [f"{name} has no head of words; take a checkpoint that has"] if bare else []
        fitting = "objective=seq2seq_lm, on pairs of texts (--recipe seq2seq-lora)"
        return [f"{name} reads a text and writes another: {fitting}"]


class CausalLM(MaskedLM):
    """The loss of every token whose label is not -100, found from those before it."""

    weight = staticmethod(next_labels)
    hidden: ClassVar = False
    shown: ClassVar = (
        "causal_lm finds the next of tokens that are there, and data.hide hides some; leave it out, or take"
        " objective=masked_lm"
    )

    answers = staticmethod(next_tokens)

    @classmethod
    def check(cls, module: Any, splits: Mapping[str, Dataset]) -> list[str]:
        """Return why MODULE finds no next tokens; one that looks at them learns nothing from their loss."""
        if problems := super().check(module, splits):
            return problems
        example = next(iter(splits.values())).batch([0]).inputs
        known = {name: example[name] for name in ("ids", "mask")}
        last = int(known["mask"][0].sum()) - 1
        if last < 1 or not _moved(module, known, ("ids", last), slice(last)):
            return []
        fitting = "encoders take objective=masked_lm with data.hide"
        return [f"{type(module).__name__} looks at the tokens that it is to find next; {fitting}"]


class Seq2SeqLM(nn.Module):
    """The loss of every token of a pair's document, found from its query and the tokens before it.

    The query goes to the encoder; the decoder gets the document as the model's own class shifts labels.
    """

    dynamic: ClassVar = {
        f"{text}_{part}": {0: "batch", 1: text}
        for text in ("query", "document")
        for part in ("ids", "mask")
    }
    measure = staticmethod(measure_tokens)
    apart = False
    writes = True  # documents are coded as what is written, not read

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model: Any = model

    def forward(
        self, query_ids: Tensor, query_mask: Tensor, document_ids: Tensor, document_mask: Tensor
    ) -> Tensor:
        """Return the loss, a scalar."""
        labels = document_ids.where(document_mask != 0, IGNORED)
        given = {"ids": query_ids, "mask": query_mask, "labels": labels}
        return cross_entropy(logits_of(run(self.model, given)), labels)

    @staticmethod
    def weight(batch: Batch) -> float:
        """Return the number of tokens of documents."""
        return float(np.count_nonzero(batch.inputs["document_mask"]))

    @staticmethod
    def check(module: Any, splits: Mapping[str, Dataset]) -> list[str]:
        """Return why MODULE does not read one text and write another."""
        name = type(module).__name__
        if not (getattr(module, "can_generate", bool)() and module.config.is_encoder_decoder):
            kind = "encoder-decoder of transformers with a head of words"
            return [f"{name} is no {kind}; decoders take objective=causal_lm"]
        example = next(iter(splits.values())).batch([0]).inputs
        names = {"ids": "query_ids", "mask": "query_mask", "labels": "document_ids"}
        count = min(example["query_ids"].shape[1], int(example["document_mask"][0].sum()))
        given = {name: example[it][:, :count] for name, it in names.items()}
        try:
            if count < 2 or _moved(module, given, ("labels", 0), slice(1, 2)):
                return []
        except (AttributeError, ValueError) as error:
            if START not in str(error):
                raise
            return [f"{name} does not say what a text begins with; set {START} in its config.json"]
        return [f"{name} gives its decoder something else than the document that it is to write"]


def _moved(
    module: Any, inputs: Mapping[str, Array], changed: tuple[str, int], places: slice
) -> bool:
    """Say whether another token in INPUTS, the one CHANGED of a text, moves the logits of MODULE at PLACES."""
    name, at = changed
    other = inputs[name].copy()
    other[0, at] += -1 if other[0, at] > 1 else 1
    with in_mode(module, False), looked_at(inputs) as tensors:
        before = logits_of(run(module, tensors))[0, places]
        after = logits_of(run(module, {**tensors, name: torch.tensor(other)}))[0, places]
        return float((after - before).abs().max()) > MOVED * float(before.abs().max())
