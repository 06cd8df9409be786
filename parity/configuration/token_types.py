"""Token types: which of two texts a token belongs to, an input that BERT-like classes may be given."""

from __future__ import annotations

import copy
import inspect
from dataclasses import replace
from typing import Any, Final

import numpy as np

from ...converters.models import Port, Signature
from ..goldens.golden import Golden
from ..probes.probes import Probe

TYPES: Final = "token_type_ids"
NOT_TAKEN: Final = f"{TYPES} other than 0: the candidate takes none"


def types_of(golden: Golden) -> int:
    """Return how many token types the source has that its signature does not ask for; 0 for none."""
    count = golden.model.config.get("type_vocab_size") if golden.model else None
    asked = any(it.role == "token_types" for it in golden.signature.inputs)
    return count if isinstance(count, int) and count > 1 and not asked else 0


def takes_types(runner: Any) -> bool:
    """Say whether the module of RUNNER takes token types by their usual name."""
    module = getattr(runner, "module", None)
    call = getattr(module, "forward", None) or type(module).__call__
    return module is not None and TYPES in inspect.signature(call).parameters


def with_types(signature: Signature, probe: Probe, count: int) -> Probe:
    """Return PROBE with token types besides: each of COUNT in an equal part of every row."""
    ids = next(probe.inputs[it.name] for it in signature.inputs if it.role == "token_ids")
    types = np.arange(ids.shape[1]) * count // ids.shape[1]
    inputs = {**probe.inputs, TYPES: np.broadcast_to(types, ids.shape).astype(ids.dtype)}
    return probe._replace(name=f"{probe.name}, token types 0 to {count - 1}", inputs=inputs)


def signature_for(signature: Signature, probe: Probe) -> Signature:
    """Return SIGNATURE, with a port of token types if PROBE has them and it has none."""
    if TYPES not in probe.inputs or any(it.name == TYPES for it in signature.inputs):
        return signature
    ids = next(it for it in signature.inputs if it.role == "token_ids")
    port = Port(TYPES, ids.dtype, ids.shape, "token_types")
    return replace(signature, inputs=(*signature.inputs, port))


def runner_for(runner: Any, probe: Probe) -> Any:
    """Return RUNNER, giving its module the token types of PROBE if that has any."""
    wanted = signature_for(runner.signature, probe)
    if wanted is runner.signature:
        return runner
    other = copy.copy(runner)
    other.signature = wanted
    return other
