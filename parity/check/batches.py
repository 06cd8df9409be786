"""Rows among others, padded on either side, and one of them alone: each computes what it computes by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from ...converters.common.dtypes import unit_roundoff
from ...converters.models import Port, Signature
from ...converters.values import Array
from ...errors import BadInputError, UnsupportedError
from ..configuration.reach import Asked, Sides
from ..goldens.golden import Golden
from ..probes import coverage
from ..probes.probes import Probe, masks_of
from .candidate import Candidate
from .distances import Distance, distance, token_errors
from .stages import outputs_stage
from .verdict import Stage

NAME: Final = "batch"
AMONG: Final = "rows without padding"
RIGHT: Final = "rows padded on the right"
LEFT: Final = "rows padded on the left"
Outputs = Mapping[str, Array]
Judge = Callable[[Sequence[Probe], tuple[Any, Any, Any]], Stage]


class Alone(NamedTuple):
    """One row of a probe, cut out without its padding.

    Attributes:
        probe: its inputs.
        of: the index of the probe that it is a row of.
        row: its index there.
    """

    probe: Probe
    of: int
    row: int


class Ran(NamedTuple):
    """What a candidate made of the probes, and of a row alone.

    Attributes:
        probes: those that ran.
        found: the candidate's outputs per probe.
        wanted: the float64 outputs per probe.
        own: the source's own errors per probe.
        alone: the row that was run alone, if any was.
        single: what came out of that one.
    """

    probes: Sequence[Probe]
    found: Sequence[Outputs]
    wanted: Sequence[Outputs]
    own: Sequence[Mapping[str, Distance]]
    alone: Alone | None = None
    single: Outputs | None = None


def mask_of(signature: Signature, probe: Probe) -> tuple[Port | None, Array | None]:
    """Return the attention mask among the inputs of PROBE, and its port."""
    port = next((it for it in signature.inputs if it.role == "attention_mask"), None)
    return port, probe.inputs[port.name] if port else None


def kinds_of(signature: Signature, probe: Probe) -> list[str]:
    """Return for each row of PROBE on which side it is padded.

    >>> import numpy as np
    >>> from ...converters.models.families import encoder_signature
    >>> taken = encoder_signature({"vocab_size": 9, "hidden_size": 8, "max_position_embeddings": 9})
    >>> rows = {"input_ids": np.ones((3, 2)), "attention_mask": np.array([[1, 1], [1, 0], [0, 1]])}
    >>> kinds_of(taken, Probe("p", rows))
    ['rows without padding', 'rows padded on the right', 'rows padded on the left']
    """
    _, mask = mask_of(signature, probe)
    if mask is None:
        return [AMONG] * max((len(it) for it in probe.inputs.values() if it.ndim), default=1)
    return [AMONG if row.all() else RIGHT if row[0] else LEFT for row in mask]


def cut(signature: Signature, probe: Probe, port: Port, array: Array, row: int) -> Array:
    """Return of an input or output ARRAY of PORT what belongs to one ROW of PROBE, without padding."""
    masked, mask = mask_of(signature, probe)
    along = masked.shape[1] if masked else None
    count = int(mask[row].sum()) if mask is not None else 0
    parts = {port.shape[0]: slice(row, row + 1), along: slice(count)}
    return array[tuple(parts.get(size, slice(None)) for size in port.shape)]


def alone_of(
    signature: Signature, taken: Signature | None, probes: Sequence[Probe]
) -> Alone | None:
    """Return a row of one of PROBES to run alone, a short padded one if there is any.

    Args:
        signature: of the reference.
        taken: what the candidate says of its inputs.
        probes: those that it runs.
    """
    batches = {it.shape[:1] for it in (*signature.inputs, *signature.outputs)}
    if len(batches) != 1 or not all(isinstance(size, str) for it in batches for size in it or [0]):
        return None
    for index, probe in enumerate(probes):
        kinds = kinds_of(signature, probe)
        whole = [row for row, kind in enumerate(kinds) if kind != LEFT]
        if len(kinds) > 1 and whole and not probe.rows:
            row = kinds.index(RIGHT) if RIGHT in kinds else whole[-1]
            found = row_of(signature, probe, row)
            fits = taken is None or coverage.fits(taken, found)
            return Alone(found, index, row) if fits else None
    return None


def row_of(signature: Signature, probe: Probe, row: int) -> Probe:
    """Return ROW of PROBE without its padding."""
    inputs = {
        it.name: cut(signature, probe, it, probe.inputs[it.name], row) for it in signature.inputs
    }
    return Probe(f"row {row + 1} of {probe.name} alone", inputs)


def placed(golden: Golden, ran: Ran, alone: Alone, single: Outputs) -> dict[str, Array]:
    """Return what came out of the batch of ALONE, its row replaced by what came out of it alone.

    Raises:
        BadInputError: that has another shape.
    """
    signature, about = golden.signature, ran.probes[alone.of]
    outputs = {name: array.copy() for name, array in ran.found[alone.of].items()}
    for port in signature.outputs:
        place = cut(signature, about, port, outputs[port.name], alone.row)
        if place.shape != single[port.name].shape:
            shapes = f"shape {single[port.name].shape}, expected {place.shape}"
            raise BadInputError(f"{alone.probe.name}: {port.name} has {shapes}")
        place[...] = single[port.name]
    return outputs


def batch_stages(
    golden: Golden, candidate: Candidate, storage: str, ran: Ran, judge: Judge, structure: Stage
) -> list[Stage]:
    """Return what rows among others and padded, and one alone, say; none where probes have one kind.

    Args:
        golden: the reference.
        candidate: what is judged.
        storage: which recording of GOLDEN it is compared with.
        ran: what was run for STRUCTURE.
        judge: measures outputs of some probes, from their wanted ones and the source's own errors.
        structure: judged all rows together.
    """
    library = str(getattr(candidate.structure, "library", ""))
    if structure.status == "fail":
        wrong = parted(golden, ran, structure)
        return [Stage(NAME, "fail", wrong, {"upstream": library})] if wrong else []
    if structure.status != "pass" or ran.alone is None or ran.single is None:
        return []
    stage = judged(golden, ran, ran.alone, ran.single, judge)
    if stage.status == "fail":
        stage = by_itself(golden, candidate, storage, ran, judge) or stage
    kinds = " and ".join(dict.fromkeys(kinds_of(golden.signature, ran.probes[ran.alone.of])))
    detail = f"{kinds} together, and row {ran.alone.row + 1} of them alone: it {stage.detail}"
    shown = stage.figures if stage.status == "fail" else {}
    figures = {**shown, "upstream": library}
    return [stage._replace(name=NAME, detail=detail, figures=figures)]


def judged(golden: Golden, ran: Ran, alone: Alone, single: Outputs, judge: Judge) -> Stage:
    """Judge what came out of a row ALONE in the place of what came out of it among others."""
    about, wanted, own = ran.probes[alone.of], ran.wanted[alone.of], ran.own[alone.of]
    try:
        found = placed(golden, ran, alone, single)
    except BadInputError as error:
        return Stage(NAME, "fail", str(error))
    finite = outputs_stage(golden, [about], [found], [wanted])
    if finite.status == "fail":
        return finite
    return judge([about], ([found], [wanted], [own]))


def by_itself(
    golden: Golden, candidate: Candidate, storage: str, ran: Ran, judge: Judge
) -> Stage | None:
    """Judge what came out of a row alone by what the source computes of it alone.

    The source's own rows may depend on those beside; ``None`` where it is not at hand.
    """
    if golden.model is None or ran.alone is None:
        return None
    probe = ran.alone.probe
    try:
        wanted, own = Sides(golden, candidate, storage).of_source(Asked(probe))
    except UnsupportedError:
        return None
    masks = masks_of(golden.signature, probe)
    errors = {name: distance(own[name], it, masks.get(name)) for name, it in wanted.items()}
    finite = outputs_stage(golden, [probe], [ran.single or {}], [wanted])
    return finite if finite.status == "fail" else judge([probe], ([ran.single], [wanted], [errors]))


def parted(golden: Golden, ran: Ran, structure: Stage) -> str:
    """Return in which kinds of rows alone the candidate errs; empty where it does in all."""
    about, worst = structure.figures, dict[str, float]()
    least = about["c"] * unit_roundoff(about["dtype"])
    for probe, found, wanted, own in zip(ran.probes, ran.found, ran.wanted, ran.own, strict=True):
        for row, kind in enumerate(kinds_of(golden.signature, probe)):
            for name, share in shares(golden.signature, probe, row, found, wanted).items():
                allowed = about["k_token"] * max(own[name].worst, least)
                worst[kind] = max(worst.get(kind, 0.0), share / allowed)
    wrong = [it for it, share in worst.items() if not share <= 1]
    right = [it for it in worst if it not in wrong]
    if not wrong or not right:
        return ""
    return f"only {' and '.join(wrong)} are wrong; {' and '.join(right)} are right: see the mask"


def shares(
    signature: Signature, probe: Probe, row: int, found: Outputs, wanted: Outputs
) -> dict[str, float]:
    """Return the largest error of a token in ROW of PROBE, by output, where padding does not hide it."""
    masks, errors = masks_of(signature, probe), {}
    for port in signature.outputs:
        right = wanted[port.name]
        if right.dtype.kind != "f" or port.shape[:1] != signature.inputs[0].shape[:1]:
            continue
        tokens = row_errors(found[port.name], right)[row : row + 1].reshape(-1)
        mask = masks[port.name]
        counted = tokens[mask[row] != 0] if mask is not None else tokens
        errors[port.name] = float(counted.max(initial=0.0))
    return errors


def row_errors(found: Array, right: Array) -> Array:
    """Return the relative errors of the tokens of each row: shape ``(rows, tokens)``.

    Where each row is one number the output is one token, and so is what is allowed of it.
    """
    if right.ndim > 1:
        tokens = token_errors(found, right)
        return tokens.reshape(len(right), len(tokens) // max(len(right), 1))
    errors: Array = np.abs(np.atleast_1d(found - right)).astype(np.float64)[:, None]
    return errors / max(float(np.linalg.norm(right)), np.finfo(np.float64).tiny)
