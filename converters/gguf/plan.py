"""What an export will write: decided before a byte is written, all problems together."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from ...errors import BadInputError, MismatchError, UnsupportedError
from ..checkpoints import Checkpoint
from ..checkpoints.workers import Workers
from ..quantization import Dequantized
from .choosing import Choice, choose_type
from .file import GgufFile
from .header import UINT32, Stored
from .library import gguf
from .names import EMBEDDING, Pairing, pair
from .proof import Proof, candidates, prove, wanted_of
from .rows import quantized
from .rules import Rule, Wanted
from .types import ALWAYS_FLOAT32, CODED, FLOATS, TYPES, fitting, is_known

FILE_TYPE: Final = "general.file_type"
# Written into a file by the tool that quantized it; not true of one that it did not quantize.
OF_QUANTIZING: Final = "quantize."
VERSION: Final = "general.quantization_version"
LOSSY: Final = (
    "{} would not keep its values in the file; --type F32 keeps them, 4 bytes each, and --allow-lossy"
    " writes what is nearest"
)


class Made(NamedTuple):
    """A tensor to be written.

    Attributes:
        stored: how it will lie in the file.
        members: the tensors of the checkpoint that make it; none for one that is copied.
        rule: what happens to each of them; ``None`` for one that is copied.
        wanted: what it makes of each.
        choice: of the type, where its members are quantized; ``None`` where they are dense.
    """

    stored: Stored
    members: tuple[str, ...] = ()
    rule: Rule | None = None
    wanted: Wanted = Wanted(())
    choice: Choice | None = None


@dataclass(frozen=True)
class Plan:
    """An export, decided.

    Attributes:
        like: the file whose metadata and names are taken.
        made: every tensor of the new file, in the order of the old one.
        fields: the metadata: name -> bytes.
        pairing: where the tensors of the checkpoint go.
        proof: how the rules were found.
        reference: whose values they were found by.
    """

    like: GgufFile
    made: Mapping[str, Made]
    fields: Mapping[str, bytes]
    pairing: Pairing
    proof: Proof
    reference: str

    @property
    def changed_fields(self) -> list[str]:
        """The metadata that is not the base file's."""
        return [name for name, data in self.like.fields.items() if self.fields.get(name) != data]

    def lines(self) -> tuple[str, ...]:
        """Return the plan, a line each."""
        types = Counter(made.stored.type for made in self.made.values())
        counts = ", ".join(f"{count} {kind}" for kind, count in types.most_common())
        ways = Counter(made.rule.name for made in self.made.values() if made.rule)
        moved = ", ".join(f"{count} {name}" for name, count in ways.most_common())
        proof = self.proof
        found = f"{proof.exact} equal, {proof.rounded} within rounding, {proof.near} near"
        lossy = {name: each.choice.why for name, each in self.made.items() if each.choice}
        return (
            f"{len(self.made)} tensors ({counts}) like {self.like.path.name}",
            f"rules: {moved}; found by the values of {self.reference} ({found})",
            *(f"{name}: {why}" for name, why in lossy.items() if why),
            *(f"{name}: copied, made from the configuration" for name in self.pairing.copied),
            *(f"{name}: left out, {why}" for name, why in self.pairing.dropped.items()),
            *(f"{name}: not as there, because the types are not" for name in self.changed_fields),
        )


def plan_export(
    source: Checkpoint,
    like: GgufFile,
    *,
    where: str,
    base: Checkpoint | None = None,
    kind: str | None = None,
    lossy: bool = False,
) -> Plan:
    """Decide how SOURCE takes the place of the tensors of LIKE.

    Args:
        source: a checkpoint as transformers saves it; of a ``Dequantized`` one the codes are kept.
        like: the GGUF file of its base.
        where: what SOURCE is called in messages.
        base: the checkpoint that LIKE was made from; proves every rule by equality.
        kind: ``F32``, ``F16``, ``BF16`` or ``Q8_0`` for all matrices, of a quantized source a type
            of ``CODED`` too. Without: as in LIKE, and of a quantized source what keeps all values.
        lossy: whether codes of a quantized source may be lost.

    Raises:
        BadInputError: KIND is none of them.
        UnsupportedError: LIKE holds types that are not written here, or is of an unknown architecture.
        MismatchError: the tensors do not fit; every one of them is named.
    """
    coded = source if isinstance(source, Dequantized) else None
    require_types(like, kind, CODED if coded else {})
    pairing = pair(like, source.headers, where)
    refuse(f"{where} does not fit {like.path}", pairing.problems)
    refuse(f"{where} does not fit {like.path}", untied(pairing, source))
    proof, reference = proved(pairing, like, source, base)
    summary = "is not the file of --base" if base else f"and {where} are too far apart"
    refuse(f"{like.path} {summary}", proof.problems)
    made = {name: make(name, like, pairing, proof, kind) for name in like.tensors}
    refuse(f"{where} does not fit {like.path}", misshapen(made, like, source))
    if coded:
        made = all_retyped(made, coded, kind)
        refuse(LOSSY.format(where), [] if lossy else losses(made))
    fields = metadata_of(like, made) if coded else metadata(like, kind)
    return Plan(like, made, fields, pairing, proof, reference or where)


def has_names_of(source: Checkpoint, like: GgufFile) -> bool:
    """Tell whether SOURCE makes every tensor of LIKE by its own names and shapes, as PyTorch's would."""
    pairing = pair(like, source.headers, str(source.path))
    return not pairing.problems and all(
        candidates(like, name, members, source) for name, members in pairing.sources.items()
    )


def refuse(summary: str, problems: tuple[str, ...] | list[str]) -> None:
    """Raise MismatchError if there are PROBLEMS."""
    if problems:
        raise MismatchError(summary, problems)


def require_types(like: GgufFile, kind: str | None, coded: Collection[str] = ()) -> None:
    """Refuse what cannot be written, and what cannot even be read; CODED types are written too."""
    if kind is not None and kind not in {*TYPES, *coded}:
        more = "" if kind not in CODED else ", or export a model that is quantized already"
        raise BadInputError(f"type {kind} is not written; choose from {', '.join(TYPES)}{more}")
    found = {stored.type for stored in like.tensors.values()}
    if unreadable := sorted(each for each in found if not is_known(each)):
        raise UnsupportedError(
            f"{like.path}: tensors of type {', '.join(unreadable)} are not read; take the base's"
            " file in F16, BF16, F32 or Q8_0"
        )
    if kind is None and not coded and (foreign := sorted(found - set(TYPES))):
        raise UnsupportedError(
            f"{like.path} has tensors of type {', '.join(foreign)}, and only {', '.join(TYPES)} are"
            " written: export with --type F16 (or BF16), then quantize that file to"
            f" {foreign[0]} with llama-quantize"
        )


def untied(pairing: Pairing, source: Checkpoint) -> list[str]:
    """Return the heads of SOURCE that differ from the embedding whose place they would share."""
    embedding = pairing.sources.get(EMBEDDING, ())
    return [
        f"{head} is not {embedding[0]}, but {EMBEDDING} stands for both in the file: the base ties"
        " them; make the file with llama.cpp's convert_hf_to_gguf.py"
        for head in pairing.heads
        if embedding and not same_bytes(source, head, embedding[0])
    ]


def same_bytes(checkpoint: Checkpoint, one: str, other: str) -> bool:
    """Tell whether two tensors of CHECKPOINT are the same, block by block."""
    if checkpoint.headers[one] != checkpoint.headers[other]:
        return False
    pairs = zip(checkpoint.stream(one), checkpoint.stream(other), strict=True)
    return all(a == b for a, b in pairs)


def proved(
    pairing: Pairing, like: GgufFile, source: Checkpoint, base: Checkpoint | None
) -> tuple[Proof, str | None]:
    """Return the rules, found by the values of BASE or else of SOURCE, and whose these were."""
    if base is None:
        return prove(pairing, like, source, strict=False), None
    theirs = pair(like, base.headers, "--base")
    refuse(f"--base does not fit {like.path}", theirs.problems)
    return prove(theirs, like, base, strict=True), "--base"


def make(name: str, like: GgufFile, pairing: Pairing, proof: Proof, kind: str | None) -> Made:
    """Return how the tensor NAME of LIKE will be made."""
    stored = like.tensors[name]
    if name in pairing.copied:
        return Made(stored)
    if kind is not None:
        stored = stored._replace(type=wanted_type(name, stored.shape, kind))
    members = pairing.sources[name]
    return Made(stored, members, proof.rules[name], wanted_of(like, name, members))


def all_retyped(made: Mapping[str, Made], source: Dequantized, kind: str | None) -> dict[str, Made]:
    """Return MADE in types that keep what SOURCE has, or in KIND; several are looked at at a time."""
    found: dict[str, Made] = {}
    Workers().each(made, lambda name: found.update({name: retyped(name, made[name], source, kind)}))
    return {name: found[name] for name in made}


def retyped(name: str, made: Made, source: Dequantized, kind: str | None) -> Made:
    """Return MADE in a type that keeps what SOURCE has, or in KIND."""
    if made.rule is None:
        return made
    if not all(quantized(source, member) for member in made.members):
        return made._replace(stored=made.stored._replace(type=dense_type(name, made, source, kind)))
    if wanted_type(name, made.stored.shape, "BF16") == "F32":  # routers: llama.cpp reads no other
        return made._replace(stored=made.stored._replace(type="F32"))
    choice = choose_type(source, made.members, made.stored.shape[-1], kind)
    return made._replace(stored=made.stored._replace(type=choice.kind), choice=choice)


def dense_type(name: str, made: Made, source: Dequantized, kind: str | None) -> str:
    """Return the type of a tensor that is not quantized in SOURCE: its own, or KIND."""
    dtypes = {source.headers[member].dtype for member in made.members}
    own = dtypes.pop() if len(dtypes) == 1 else "F32"
    return wanted_type(name, made.stored.shape, kind or (own if own in FLOATS else "F32"))


def losses(made: Mapping[str, Made]) -> list[str]:
    """Return which tensors do not keep the values of their codes, a line each."""
    return [
        f"{name}: {each.choice.why}"
        for name, each in made.items()
        if each.choice and each.choice.why
    ]


def wanted_type(name: str, shape: tuple[int, ...], kind: str) -> str:
    """Return the type of tensor NAME in a file that is mostly KIND, as llama.cpp's converter has it.

    Vectors, norms and a few others stay in float32 (conversion/base.py, prepare_tensors).
    """
    plain = len(shape) <= 1 or name.endswith("_norm.weight") or not name.endswith(".weight")
    return "F32" if plain or _stem(name) in _always() else fitting(shape, kind)


def _stem(name: str) -> str:
    parts = name.removesuffix(".weight").split(".")
    return ".".join(["blk", "{bid}", *parts[2:]] if parts[0] == "blk" else parts)


def _always() -> frozenset[str]:
    names = {tensor.name: name for tensor, name in gguf.TENSOR_NAMES.items()}
    return frozenset(names[each] for each in ALWAYS_FLOAT32 if each in names)


def misshapen(made: Mapping[str, Made], like: GgufFile, source: Checkpoint) -> list[str]:
    """Say which tensors of SOURCE their rules, found by another reference, cannot bring into shape."""
    return [
        f"{name}: {like.tensors[name]} cannot be made of"
        f" {' '.join(dict.fromkeys(str(source.headers[member]) for member in each.members))}"
        f" ({each.members[0]}) by the rule {each.rule.name!r}"
        for name, each in made.items()
        if each.rule and each.rule not in candidates(like, name, each.members, source)
    ]


def metadata(like: GgufFile, kind: str | None) -> dict[str, bytes]:
    """Return the metadata of LIKE, true of a file that is mostly KIND."""
    if kind is None:
        return dict(like.fields)
    kept = {k: data for k, data in like.fields.items() if not k.startswith(OF_QUANTIZING)}
    if FILE_TYPE in kept:  # a uint32, and the last thing in its bytes
        kept[FILE_TYPE] = kept[FILE_TYPE][:-4] + {**TYPES, **CODED}[kind].to_bytes(4, "little")
    return kept


def metadata_of(like: GgufFile, made: Mapping[str, Made]) -> dict[str, bytes]:
    """Return the metadata of LIKE, true of a file of the tensors MADE from a quantized source."""
    types = Counter(each.stored.type for each in made.values() if each.choice)
    [(kind, _)] = types.most_common(1) or [("F32", 0)]
    kept = metadata(like, kind)
    return kept | {VERSION: kept.get(VERSION) or _number(VERSION, gguf.GGML_QUANT_VERSION)}


def _number(name: str, number: int) -> bytes:
    """Return the bytes of NUMBER as metadata called NAME."""
    return struct.pack(f"<Q{len(name)}sII", len(name), name.encode(), UINT32, number)
