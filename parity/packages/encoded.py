"""Files of a decoder alone, which take what an encoder gives: the source's own encoder gives it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, cast

from ...converters.checkpoints.formats.onnx_caches import Cache
from ...converters.checkpoints.formats.onnx_model import OnnxFile
from ...converters.common.arrays import from_torch
from ...converters.models import Model, Port, Signature
from ...converters.runtimes.base import Arrays, Runner
from ...converters.runtimes.pieces import KEPT, kept_by, stepped
from ...converters.runtimes.programs.renamed import Renamed
from ...converters.values import Array
from ..goldens.golden import Golden
from ..probes.probes import Probe

if TYPE_CHECKING:
    from torch import nn

STATES: Final = "encoder_hidden_states"  # what optimum and transformers call what an encoder gives
MASK: Final = "encoder_attention_mask"
GIVEN: Final = "encoder_last_hidden_state"  # the output of transformers' classes that it is


@dataclass(frozen=True)
class Encoded:
    """How a file of a decoder takes what the encoder of its source gives.

    Attributes:
        source: the whole model.
        signature: what the file takes, as the source does: texts, and not what its encoder makes of them.
        names: the source's name -> the file's of inputs that the file itself takes.
        states: whether it takes the encoder's states.
        kept: what it takes of keys and values of these, in the order of the layers.
    """

    source: Model
    signature: Signature
    names: Mapping[str, str]
    states: bool
    kept: tuple[Cache, ...]

    @cached_property
    def module(self) -> nn.Module:
        """The source in float32."""
        from ..reference.reference import float32_module

        return float32_module(self.source)

    def inputs(self, inputs: Arrays) -> dict[str, Array]:
        """Return what the source's encoder makes of INPUTS in float32, as the file takes it."""
        import torch

        from ..reference.reference import feed

        probe = Probe("", dict(inputs))
        with torch.no_grad():
            found = self.module(**feed(self.source.signature, probe, "float32"), use_cache=True)
        given = {STATES: from_torch(found[GIVEN])} if self.states else {}
        tensors = _kept_of_states(found) if self.kept else ()
        pairs = zip((it.taken for it in self.kept), tensors, strict=True)
        return given | {name: from_torch(tensor) for name, tensor in pairs}

    def unneeded(self, probe: Probe) -> set[str]:
        """Return the weights of the source that the file has no need of: its encoder's, most of all."""
        from ..reference.unused import unneeded

        return unneeded(self.source, probe, self._answered)

    def _answered(self, module: nn.Module, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what MODULE makes of INPUTS where it is given what the file is."""
        import torch
        from transformers import DynamicCache
        from transformers.cache_utils import EncoderDecoderCache

        with torch.no_grad():
            first = module(**inputs, use_cache=True)
        beside = {it.name for it in self.source.signature.inputs} - self.names.keys()
        rest = {name: it for name, it in inputs.items() if name not in beside}
        if self.kept:
            layers = [*_kept_of_states(first)]
            pairs = [*zip(layers[::2], layers[1::2], strict=True)]
            rest[KEPT] = EncoderDecoderCache(DynamicCache(), DynamicCache(pairs))
        found = module(encoder_outputs=(first[GIVEN],), **rest, use_cache=bool(self.kept))
        return {it.name: found[it.name] for it in self.signature.outputs if it.name in found}


def _kept_of_states(found: Any) -> Iterator[Any]:
    """Yield the keys and values of an encoder's states, layer by layer, that a class of transformers returned."""
    for layer in found[KEPT].cross_attention_cache.layers:
        yield from (layer.keys, layer.values)


class BehindEncoder(Renamed):
    """The runner of a decoder's file, run on the texts of the whole model."""

    def __init__(self, runner: Runner, encoded: Encoded) -> None:
        super().__init__(runner, encoded.names)
        self.encoded = encoded

    def inward(self, inputs: Arrays) -> dict[str, Array]:
        """Return INPUTS as the file takes them, what the encoder gives among them."""
        own = {its: inputs[name] for name, its in self.names.items() if name in inputs}
        return own | self.encoded.inputs(inputs)

    def around(self, runner: Runner) -> Runner:
        """Return RUNNER of the same file, run in the same way."""
        return behind_encoder(runner, self.encoded)


def behind_encoder(runner: Runner, encoded: Encoded) -> Runner:
    """Return RUNNER of a decoder's file, run on the texts of the whole model that it is ENCODED by."""
    return cast("Runner", BehindEncoder(runner, encoded))


def encoded_by(reference: Model | Golden, candidate: Model, own: Signature) -> Encoded | None:
    """Return how CANDIDATE takes what the encoder of REFERENCE gives; ``None`` where it takes nothing of that.

    OWN is the candidate's signature.
    """
    file = candidate.tensors
    if not isinstance(file, OnnxFile) or not isinstance(reference, Model):
        return None
    states = STATES in {it.name for it in own.inputs}
    kept = () if file.kept.branch else file.kept.other
    port, ids = stepped(reference.signature), stepped(own)
    if (
        not (states or kept)
        or port is None
        or ids is None
        or not _answers(reference.signature, port)
    ):
        return None
    taken = {it.name: it for it in own.inputs}
    names = {port.name: ids.name}
    masks = [it for it in reference.signature.inputs if it.role == "attention_mask"]
    names |= {it.name: MASK for it in masks if MASK in taken}
    inputs = [
        replace(taken[names[it.name]], name=it.name, role=it.role) if it.name in names else it
        for it in reference.signature.inputs
        if it.name in names or it not in masks
    ]
    left = taken.keys() - {*names.values(), STATES}
    signature = Signature((*inputs, *(taken[it] for it in sorted(left))), own.outputs)
    found = Encoded(reference, signature, names, states, kept)
    return found if kept_by(found.module)[0] == KEPT else None


def _answers(signature: Signature, port: Port) -> bool:
    """Say whether a model of SIGNATURE reads the text of PORT beside what its encoder reads, and gives that one's states."""
    beside = [it for it in signature.inputs if it is not port]
    return bool(beside) and GIVEN in {it.name for it in signature.outputs}


def without_encoder(golden: Golden, encoded: Encoded | None) -> tuple[Golden, list[str]]:
    """Return GOLDEN without the weights that a file ENCODED need not have, and what that leaves unchecked, in words."""
    if encoded is None:
        return golden, []
    unneeded = encoded.unneeded(golden.probes[0])
    known = {name for name in golden.sketches if name in unneeded}
    golden = replace(golden, provenance={**golden.provenance, "unused": sorted(known)})
    words = f"{len(known)} weights of the encoder, which is no part of the file: the source's own gave its states"
    return golden, [f"{words}, and keys and values of these" if encoded.kept else words]
