"""Core ML packages, ONNX files and Core AI assets converted: their constants under the names of a framework."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from ...converters.checkpoints import Checkpoint, Header
from ...converters.checkpoints.formats.onnx_model import OnnxFile
from ...converters.checkpoints.open import refuse_coreml
from ...converters.common.dtypes import CODE, FLOATS
from ...converters.libraries.modules import ties
from ...converters.libraries.transformers import as_saved, meta_model, own_headers
from ...converters.models import Model, Signature
from ...converters.models.families import known_family
from ...converters.models.program_files import CODES, open_program, program_in, recorded
from ...converters.onnx_export.foreign import blocks_by_value
from ...converters.onnx_export.reading import blocks_in, under_other_names
from ...converters.onnx_export.unnamed import named_by_nodes
from ...converters.planning.instead import require_taken
from ...converters.planning.transcoding import DTYPES, is_quantized, section_of
from ...converters.quantization import Blocks, Dequantized
from ...converters.quantization.mlx import part_name
from ...converters.quantization.recipe import KEY
from ...converters.values import Array
from ...errors import BadInputError, MismatchError, UnsupportedError, WeighbridgeError
from ...parity.check.verdict import Verdict
from ...parity.probes.probes import make_probes
from ...parity.reference.unused import unneeded
from ..converting import compared, move
from ..options import Options
from ..pipeline import Outcome
from .alike import CHOSEN, exported_again, record_by_graph
from .gguf import Like, known_from, model_like

if TYPE_CHECKING:
    from ...converters.recovering.weights import Recovered

COUNTER: Final = ".num_batches_tracked"  # of batch norms: training alone reads it


class Contents(NamedTuple):
    """What a file holds: its constants, what an export of ours wrote of them, and what it takes and gives.

    An ONNX file is at hand besides, as it is.
    """

    constants: Checkpoint
    manifest: Mapping[str, Any]
    signature: Callable[[], Signature]
    graph: OnnxFile | None = None


def convert_program(
    source: Path, target: Path, to: str, *, like: Path, options: Options = Options()
) -> Outcome:
    """Convert the Core ML package, ONNX file or Core AI asset SOURCE to the framework TO at TARGET.

    An export of ours says which constant is which weight; of other files they are found by names and
    shapes. Unless ``options.check`` is ``none``, SOURCE itself is run against the weights found.

    Args:
        source: ``*.mlpackage``, ``*.onnx`` or a folder with one, or ``*.aimodel``.
        target: a new directory.
        to: ``mlx`` or ``torch``.
        like: the model's directory: ``config.json`` and tokenizer. Weights there only tell tensors from
            their sum.
        options: see :class:`Options`.

    Raises:
        MismatchError: weights that are not in SOURCE, or with which it does not compute what the
            model does.
        WeighbridgeError: other bad input; nothing is left behind.
    """
    place = options.begin(target, "model", source, like)
    require_taken(source, "coreml", "onnx", "coreai")
    contents, known = opened(source), known_from(like, options.trust_code)
    model, lines = recovered(source, contents, known, options)
    model = with_ports(model, contents)
    if to == "mlx" and options.checks and model.declared and not options.trust_code:
        require_run(model)
    ran = None if options.dry_run or not options.checks else require_same(model, source, options)
    limited = (lambda verdict: verdict.after(ran, "source file")) if ran else None
    if is_quantized(model) and options.dequantize:
        model = model_like(source, known, rounded(model, options.dequantize), options)
    keeps_codes = is_quantized(model) and not options.dequantize
    outcome = move(model, place, to, options, keeps_codes=keeps_codes, limited=limited)
    facts = {**outcome.facts, "found": lines}
    return replace(outcome, plan=(*lines, *outcome.plan), facts=facts)


def opened(source: Path) -> Contents:
    """Open the file SOURCE.

    Raises:
        BadInputError: it is none that is read here, or a damaged one.
    """
    if not source.exists():
        raise BadInputError(f"{source}: no such file or directory")
    if inside := program_in(source):
        file: Any = open_program(inside).tensors
        record = recorded(file)
        if isinstance(file, OnnxFile):
            file.require_exact_inputs()
        graph = file if isinstance(file, OnnxFile) else None
        named = named_by_nodes(file) if graph and not record else file
        return Contents(named, record, lambda: open_program(inside).signature, graph)
    if source.suffix != ".mlpackage":
        refuse_coreml(source)
        raise BadInputError(
            f"{source} is no Core ML package (*.mlpackage), no ONNX file (*.onnx) and no Core AI"
            " asset (*.aimodel)"
        )
    from ...converters.captures.mlprogram import load_program
    from ...converters.captures.mlprogram.signatures import read_signature
    from ...converters.recovering.weights import Held

    program = load_program(source)
    constants = {**program.scalars(), **program.constants()}
    kept = {name: it for name, it in constants.items() if it.dtype in CODE}
    return Contents(Held(source, kept), program.manifest, lambda: read_signature(source))


def recovered(
    source: Path, contents: Contents, like: Like, options: Options
) -> tuple[Model, list[str]]:
    """Return the model whose weights CONTENTS hold, and how they were found."""
    from ...converters.recovering.weights import count, recover

    held = contents.constants, contents.manifest
    names, besides, module, tied = named_by(contents, like)
    family = known_family(like.config, like.headers)
    heads = family.optional if family else ()
    wanted = {
        name: it
        for name, it in names.items()
        if contents.manifest  # which says what outputs need
        or not (name.partition(".")[0] in heads or name.endswith(COUNTER))
        or count(*held, {name: it})
    }
    lost = names.keys() - wanted.keys()
    look = partial(recover, *held, where=str(source), known=besides, like=like.values, tied=tied)
    try:
        found, spare = look(wanted=wanted), set[str]()
    except MismatchError:
        if contents.manifest:
            raise
        unnamed = {name for name, it in wanted.items() if not count(*held, {name: it})}
        spare = unnamed and unnamed & needless(source, contents, like, options)
        try:
            found = look(wanted={name: it for name, it in wanted.items() if name not in spare})
        except MismatchError:
            if placed := by_graph(source, contents, like, options):
                return placed
            raise
    found.without(lost, spare)
    found.leave_out(heads)
    found.fill(names, heads)
    return built(source, contents, like, options, found, module), found.lines()


def by_graph(
    source: Path, contents: Contents, like: Like, options: Options
) -> tuple[Model, list[str]] | None:
    """Return what ``recovered`` does of a file without a record, by the places that its constants stand in."""
    record = record_by_graph(source, partial(with_ports, contents=contents), like, options)
    if not record:
        return None
    placed = contents._replace(constants=contents.graph or contents.constants, manifest=record)
    model, lines = recovered(source, placed, like, options)
    again = exported_again(source, with_ports(model, contents), like, options, record[CHOSEN])
    return model, [*lines, *folded_in(record), *again]


def folded_in(record: Mapping[str, Any]) -> list[str]:
    """Say which batch norms the convolutions of a file took up, by its RECORD."""
    names = record.get("folded")
    words = "of which the file has convolution and batch norm in one, now in the convolution; the batch norm adds the"
    return [f"{words} bias alone, which computes the same: {', '.join(names)}"] if names else []


def built(
    source: Path, contents: Contents, like: Like, options: Options, found: Recovered, module: Any
) -> Model:
    """Return the model of LIKE with what was FOUND in SOURCE, by the names of MODULE if there is one."""
    from ...converters.recovering.weights import Held

    coded: dict[str, Blocks] = {}
    if CODES in contents.manifest and contents.graph:
        blocks = blocks_in(contents.graph, contents.manifest)
        coded = {name: it for name, it in blocks.items() if name in found.arrays}
    elif contents.graph:
        coded, found.dense = blocks_by_value(contents.graph, found.arrays)
    if module is not None:
        dense, found.arrays = found.arrays, as_saved(module, found.arrays)
        coded = under_other_names(coded, dense, found.arrays, partial(as_saved, module))
    tensors = with_codes(source, found.arrays, coded) if coded else Held(source, found.arrays)
    return model_like(source, like, tensors, options)


class Names(NamedTuple):
    """The tensors of a model by the names that a file uses.

    An exporter sees a module, whose names may be others than those of its checkpoints.

    Attributes:
        wanted: what the file may hold.
        known: names of what it may hold besides.
        module: the class whose names they are; ``None`` for those of checkpoints.
        tied: other names of what it may hold -> that among WANTED.
    """

    wanted: Mapping[str, Header]
    known: Collection[str] = ()
    module: Any = None
    tied: Mapping[str, str] = {}  # never written to


def named_by(contents: Contents, like: Like) -> Names:
    """Return the tensors of LIKE by the names that CONTENTS use."""
    from ...converters.recovering.weights import count

    try:
        module = meta_model(like.config)
    except WeighbridgeError:  # no class of transformers
        return Names(like.headers)
    own = own_headers(module)
    computed = {it for it in like.headers.keys() - own if like.headers[it].dtype not in FLOATS}
    saved = {name: it for name, it in like.headers.items() if name not in computed}
    held = contents.constants, contents.manifest
    if own.keys() <= saved.keys() or count(*held, own) <= count(*held, saved):
        return Names(saved, own.keys() | computed, None, ties(module))
    return Names(own, (), module, ties(module))


def with_codes(
    source: Path, arrays: Mapping[str, Array], coded: Mapping[str, Blocks]
) -> Dequantized:
    """Return ARRAYS of SOURCE, those that are CODED as their codes, seen dense."""
    from ...converters.recovering.weights import Held

    parts = {
        part_name(name, part): array
        for name, blocks in coded.items()
        for part, array in blocks.parts.items()
    }
    section = section_of({name: blocks.scheme for name, blocks in coded.items()})
    return Dequantized(Held(source, {**arrays, **parts}), {KEY: section})


def with_ports(model: Model, contents: Contents) -> Model:
    """Return MODEL; where nothing else says what it takes, it takes what the file with CONTENTS does."""
    try:
        model.signature  # noqa: B018  (it is found out once)
    except WeighbridgeError:
        return replace(model, declared=contents.signature())
    return model


def require_run(model: Model) -> None:
    """Refuse MODEL, whose file alone says what it takes, where an MLX library has its class.

    Raises:
        UnsupportedError: that class takes what is not known here, so a check cannot run it.
    """
    if model.library is not None:
        raise UnsupportedError(
            f"{model.spec}: nothing says how the MLX class of {model.config.get('model_type')} is called, so"
            " a check cannot run it; --check none writes it UNVERIFIED"
        )


def needless(source: Path, contents: Contents, like: Like, options: Options) -> set[str]:
    """Return the tensors of LIKE that no output needs of the file SOURCE with CONTENTS; none if that cannot be said."""
    from ...converters.recovering.weights import Held

    blank = {name: np.zeros(it.shape, "f4") for name, it in like.headers.items()}
    try:
        model = with_ports(model_like(source, like, Held(source, blank), options), contents)
        return unneeded(model, make_probes(model.signature, tokenizer=None, quick=True)[0])
    except WeighbridgeError:
        return set()


def rounded(model: Model, dtype: str) -> Checkpoint:
    """Return the tensors of MODEL, those on codes dense in DTYPE, a key of ``DTYPES``."""
    tensors = model.tensors
    assert isinstance(tensors, Dequantized)  # noqa: S101  (`is_quantized` was asked)
    return Dequantized(tensors.raw, {KEY: section_of(tensors.schemes)}, dtype=DTYPES[dtype])


def require_same(model: Model, source: Path, options: Options) -> Verdict:
    """Run the file SOURCE against MODEL, which holds the weights found in it; return what was found.

    Raises:
        MismatchError: it computes something else.
    """
    verdict = compared(model, source, source, options)
    if verdict.status == "DIFFERS":
        wrong = [f"{it.name}: {it.detail}" for it in verdict.stages if it.status == "fail"]
        raise MismatchError(
            f"{source} does not compute what the model does with its weights", wrong
        )
    return verdict
