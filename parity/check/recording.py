"""What of a source a check records: as much as its candidate is compared with."""

from __future__ import annotations

import inspect
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ...converters.common.policy import full_tokens
from ...converters.libraries.transformers import meta_model
from ...converters.models import PROGRAMS, Model, Signature
from ...converters.models.pictures import of_pictures, require_pictures
from ...converters.models.ports import BESIDE_TOKENS, without_last
from ...converters.quantization import Dequantized
from ...errors import WeighbridgeError
from ..configuration.lengths import to_cross
from ..goldens.rounding import WIDE
from ..probes import coverage
from ..probes.probes import Probe, make_probes, stand_ins
from ..weights.orders import shorten
from ..weights.weights import base_weights, has_wider, kept_weights, storage_dtype
from .candidate import Candidate
from .verdict import Stage

if TYPE_CHECKING:
    from ..goldens.golden import Golden

REACH: Final = 2048  # positions at which half precision is looked at, if the model has as many


def record_for(
    reference: Model | Golden,
    candidate: Candidate,
    *,
    quick: bool,
    probes: Sequence[Probe] | None,
    cache: Path | None,
) -> Golden:
    """Record what CANDIDATE is to be compared with, and no more; a golden is recorded already."""
    if not isinstance(reference, Model):
        return reference
    from ..goldens.recorder import Recorder, text_folder

    signature = coverage.restrict(reference.signature, candidate.signature)
    past, folder = to_cross(reference, signature, quick=quick), text_folder(reference)
    reach = REACH if candidate.program else 0
    about: dict[str, Any] = {"quick": quick, "past": past, "reach": reach}
    about |= {"tokens": tokens_for(reference, candidate), "pad": pad_of(reference.config)}
    about["reserved"] = stand_ins(reference.config)
    pictures = candidate.pictures
    for probe in probes or ():
        require_pictures(pictures, probe.inputs)
    made = [] if probes else make_probes(signature, tokenizer=folder, **about)
    chosen = probes or [it._replace(inputs=of_pictures(pictures, it.inputs)) for it in made]
    precisions = {candidate.storage, candidate.shipped} - {"float32"}
    weights = kept_weights(reference)
    source = {"storage": storage_dtype(weights), "wider": has_wider(weights)}
    compared = compared_storage(source | {"adapter": reference.adapter}, candidate)
    storages = None if cache else tuple({compared} - {"stored"})
    storages = storages if candidate.program is None else ()  # recorded where it is asked for
    recorder = Recorder(reference, chosen, outlives=False, once=cache is None)
    return recorder.record("verdict", tuple(sorted(precisions)), cache, storages)


class Given(NamedTuple):
    """A reference as another tool's program was given it.

    Attributes:
        reference: takes the masks and positions that the program asks for, and gives no last outputs
            that this lacks.
        notes: what is left out, in words.
        stages: that of the outputs, where what is left out needs weights that nothing else does.
    """

    reference: Model | Golden
    notes: tuple[str, ...] = ()
    stages: tuple[Stage, ...] = ()


def as_given(reference: Model | Golden, candidate: Candidate) -> Given:
    """Return REFERENCE as CANDIDATE was given it; unchanged unless that is another tool's program."""
    own = candidate.signature if candidate.model.framework in PROGRAMS else None
    if own is None or candidate.manifest or not isinstance(reference, Model):
        return Given(reference)
    signature = with_masks(reference, own)
    narrow = without_last(signature, own)
    left = [it.name for it in signature.outputs[len(narrow.outputs) :]]
    if narrow == reference.signature:
        return Given(reference)
    given = replace(reference, declared=narrow, known={})
    notes = tuple(f"{name}, which the candidate does not give" for name in left)
    return Given(given, notes, unreached(reference, given, left) if left else ())


def unreached(reference: Model, given: Model, left: Collection[str]) -> tuple[Stage, ...]:
    """Return the stage of the outputs LEFT out of GIVEN; none where the others need every weight of REFERENCE.

    What leads to the others only, such as hidden states below logits, is compared with them.
    """
    from ..reference.unused import unneeded

    probe = make_probes(reference.signature, tokenizer=None, quick=True)[0]
    lost = sorted(unneeded(given, probe) - unneeded(reference, probe))
    words = f"{', '.join(left)} is not given, and nothing else needs {shorten(lost, 3)}"
    return (Stage("outputs", "unverified", words, {"weights": lost}),) if lost else ()


def with_masks(reference: Model, own: Signature) -> Signature:
    """Return the signature of REFERENCE, with what the program OWN is asks for beside its token ids.

    A language model is called with token ids alone, and takes a mask and positions all the same.
    """
    signature = reference.signature
    given = {it.name for it in signature.inputs}
    ids = next((it for it in signature.inputs if it.role == "token_ids"), None)
    more = [it for it in own.inputs if it.name not in given and it.role in BESIDE_TOKENS]
    if ids is None or not more:
        return signature
    known = parameters_of(reference)
    added = (
        replace(ids, name=it.name, role=it.role)
        for it in more
        if it.name in known and len(it.shape) == len(ids.shape)
    )
    return replace(signature, inputs=(*signature.inputs, *added))


def parameters_of(model: Model) -> Collection[str]:
    """Return what the module of MODEL can be called with, by name; nothing where it has none in PyTorch."""
    try:
        module = model.factory or meta_model(model.config)
    except WeighbridgeError:
        return ()
    forward = getattr(module, "forward", None)
    return inspect.signature(forward).parameters if forward else ()


def tokens_for(reference: Model, candidate: Candidate) -> int | None:
    """Return how many tokens a full check reads of REFERENCE in all; ``None`` for every probe."""
    headers = base_weights(reference).headers.values()
    weights = sum(math.prod(it.shape) for it in headers)
    return None if candidate.program else full_tokens(weights)


def left_out(reference: Model | Golden, candidate: Candidate) -> list[str]:
    """Return what a full check leaves out because REFERENCE is large, in words."""
    if not isinstance(reference, Model) or (tokens := tokens_for(reference, candidate)) is None:
        return []
    return [f"texts of more than {tokens:,} tokens together (fewer, the larger the model)"]


def pad_of(config: Mapping[str, Any]) -> int:
    """Return the id of padding in CONFIG, 0 where it names none.

    >>> pad_of({"pad_token_id": 1, "vocab_size": 9}), pad_of({"pad_token_id": None})
    (1, 0)
    """
    pad, vocabulary = config.get("pad_token_id"), config.get("vocab_size", 0)
    if not isinstance(pad, int) or not isinstance(vocabulary, int):
        return 0
    return pad if 0 <= pad < vocabulary else 0


def compared_storage(source: Mapping[str, Any], candidate: Candidate) -> str:
    """Return with which recording of SOURCE the CANDIDATE's weights are compared.

    ``stored`` where they are the source's own, else the dtype to which the source's are rounded; codes
    are not rounded to what the tensors beside them are kept in, and a merge rounds each weight to its own.
    SOURCE is the provenance of a golden: its ``storage``, whether some are ``wider``, and its ``adapter`` if
    it has one.
    """
    own = candidate.storage
    same = own == source.get("storage") and candidate.model.framework not in PROGRAMS
    tensors = candidate.model.tensors
    quantized = isinstance(tensors, Dequantized) and bool(tensors.schemes)
    if quantized or own == "float32" or (same and not source.get("adapter")):
        return "stored"
    return f"{own}{WIDE}" if same and source.get("wider") else own
