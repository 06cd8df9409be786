"""One row of the atlas: a tiny checkpoint goes to MLX and back, and everything is compared.

    python -m weighbridge.tests.support.atlas.row LIBRARY TYPE:LAYOUT ...

prints one JSON object a row. The way is the product's own (`jobs.convert`); the oracles are not:
mlx-lm's loader, its class's own ``sanitize``, and transformers.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from weighbridge.converters.libraries.repairs.catalogue import INSTEAD, OF_LIBRARY, needs
from weighbridge.converters.libraries.resaved import CHANGES
from weighbridge.errors import MismatchError, WeighbridgeError
from weighbridge.tests.support.atlas import hub, libraries, logits, pictures, tiny, upstream

EXACT, SAME = "exact", "same weights"
STEPS = ("go", "come_back", "train", "run", "judge", "mend", "generate")
OTHERS = ("go", "come_back", "train", "see", "judge", "mend")


class Stored(NamedTuple):
    """A tensor as it lies in a safetensors file."""

    dtype: str
    shape: tuple[int, ...]
    content: bytes


Tensors = dict[str, Stored]


class Way(NamedTuple):
    """How a checkpoint goes to MLX: to whose class, mended or as it is."""

    library: str = "mlx-lm"
    repair: bool = False


@dataclass
class Row:
    """What was measured of one type in one layout; a step that was not reached is empty."""

    kind: str
    layout: str
    library: str = "mlx-lm"
    parameters: int = 0
    forward: str = ""  # our MLX weights against the class's sanitize: exact, or what differs
    inverse: str = ""  # MLX -> Hugging Face against the checkpoint
    trained: str = ""  # MLX -> Hugging Face -> MLX after every weight was changed
    config: str = ""  # config.json home again against the checkpoint's
    accepted: str = ""  # mlx-lm's strict loader on our directory: exact, or what it says
    error: float | None = None  # of mlx-lm's logits, relative to the largest of transformers'
    bar: float | None = None
    long_error: float | None = None  # the same on a text past every threshold
    long_bar: float | None = None
    seen_error: float | None = None  # the same with a picture in the text
    seen_bar: float | None = None
    moved: float | None = None  # how far another picture moves transformers' own output
    check: str = ""  # what our own check says of it, or why it refuses
    mended: str = ""  # with --repair: exact there and back as above, or what differs
    mended_error: float | None = None  # of its logits, and on the long text
    mended_long_error: float | None = None
    mended_seen_error: float | None = None
    mended_check: str = ""
    greedy: float | None = None  # how far the worst of 64 tokens is behind transformers' own choice
    control: str = ""  # mlx-lm loads the checkpoint itself: same weights, or what it says
    failed: str = ""  # the step that stopped, and why
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)


def measure(kind: str, layout: str, folder: Path, library: str = "mlx-lm") -> Row:
    """Fill a row of LIBRARY, in FOLDER; a step that fails ends it and says so."""
    row, start = Row(kind, layout, library), time.monotonic()
    step = "make"
    try:
        made = tiny.make(kind, folder / "hub", layout, gain=tiny.GAIN, library=library)
        row.parameters = sum(value.numel() for value in made.model.parameters())
        for step in steps_of(kind, library):
            globals()[step](row, folder, made)
    except (Exception, SystemExit) as error:
        row.failed = f"{step}: {said(error)}"
    row.failed = row.failed.replace(f"{folder}/", "")  # the same wherever it runs
    row.seconds = round(time.monotonic() - start, 1)
    return row


def steps_of(kind: str, library: str) -> tuple[str, ...]:
    """Return the steps of a row of LIBRARY for KIND."""
    if library != "mlx-lm":
        return ("unsaid", "judge", "mend") if needs(library, kind) else OTHERS
    return ("refuse", "mend", "generate") if kind in INSTEAD else STEPS


def go(row: Row, folder: Path, made: tiny.Tiny) -> None:
    """Convert the checkpoint to MLX and compare with what the class's own code makes of it.

    Codes that are written in MLX's own format are compared by what transformers reads.
    """
    to("mlx", folder / "hub", folder / "mlx", Way(row.library))
    if packed(folder) in hub.RECODED:
        row.forward = difference(dense(folder), held_by(made.model, folder / "oracle"))
    elif row.library == "mlx-lm":
        row.forward = difference(read(folder / "mlx"), sanitized(row, folder))


def packed(folder: Path) -> str:
    """Return the method by which the checkpoint in FOLDER is packed, empty for one that is not."""
    config = json.loads((folder / "hub" / "config.json").read_text())
    return str(config.get("quantization_config", {}).get("quant_method", ""))


def dense(folder: Path) -> Tensors:
    """Return the weights of the MLX directory in FOLDER, its codes as numbers."""
    import mlx.core as mx

    found = load(folder / "mlx")
    how = json.loads((folder / "mlx" / "config.json").read_text())["quantization"]
    for below in [name.removesuffix(".scales") for name in found if name.endswith(".scales")]:
        code = [found.pop(f"{below}.{part}") for part in ("weight", "scales", "biases")]
        own = {key: value for key, value in how.items() if key in ("group_size", "bits", "mode")}
        found[f"{below}.weight"] = mx.dequantize(*code, **how.get(below, own))
    (folder / "dense").mkdir()
    mx.save_safetensors(str(folder / "dense" / "model.safetensors"), found)
    return read(folder / "dense")


def held_by(model: Any, folder: Path) -> Tensors:
    """Return the weights of the torch MODEL, saved in FOLDER as transformers does."""
    model.save_pretrained(folder)
    return read(folder)


def come_back(row: Row, folder: Path, _: tiny.Tiny) -> None:
    """Convert back, with the original where the class dropped something."""
    row.notes += home(folder, "mlx", "home", packed(folder))
    wanted = read(folder / "hub")
    row.inverse = difference(read(folder / "home"), wanted)
    if row.inverse != EXACT and not row.notes:  # what nobody reads, such as masks, is let go
        to("torch", folder / "mlx", folder / "whole", original=str(folder / "hub"))
        row.inverse = difference(read(folder / "whole"), wanted)
        row.notes.append("--original")
    here, there = (json.loads((folder / x / "config.json").read_text()) for x in ("home", "hub"))
    keys = sorted(key for key in {**here, **there} if here.get(key, ...) != there.get(key, ...))
    row.config = f"differs in {', '.join(keys)}" if keys else EXACT


def train(row: Row, folder: Path, _: tiny.Tiny) -> None:
    """Change every weight of the MLX directory, then go home and to MLX once more."""
    row.trained = trip(folder, "mlx", Way(row.library))


def trip(folder: Path, source: str, way: Way) -> str:
    """Change every weight of SOURCE in FOLDER, go home and to MLX once more; return what differs."""
    for part in ("trained", "trained-home", "again"):
        shutil.rmtree(folder / part, ignore_errors=True)
    shutil.copytree(folder / source, folder / "trained")
    change(folder / "trained")
    fixed = go_home_trained(folder, source)
    to("mlx", folder / "trained-home", folder / "again", way)
    found = difference(read(folder / "again"), read(folder / "trained"))
    if found == EXACT and fixed:
        return f"exact but {fixed} weights that no checkpoint gives"
    return found if found == EXACT else nearest(folder, way) or found


def go_home_trained(folder: Path, source: str) -> int:
    """Convert the trained directory in FOLDER home; return how many weights had to be SOURCE's again.

    Those are made several from one tensor, which no tensor gives once each was changed by itself: the
    conversion refuses them by name.
    """
    try:
        home(folder, "trained", "trained-home")
    except MismatchError as error:
        made = re.findall(r"does not follow from (.+)", "\n".join(error.problems))
        together = {name for names in made for name in names.split(", ")}
        if len(made) < len(error.problems) or not all(", " in names for names in made):
            raise
        put_back(folder / source, folder / "trained", together)
        home(folder, "trained", "trained-home")
        return sum(value.size for name, value in load(folder / source).items() if name in together)
    return 0


def put_back(source: Path, target: Path, names: set[str]) -> None:
    """Give the weights of TARGET with NAMES the values of SOURCE again."""
    import mlx.core as mx

    own = load(source)
    for file in target.glob("model*.safetensors"):
        held = {name: own[name] if name in names else it for name, it in mx.load(str(file)).items()}
        mx.save_safetensors(str(file), held, {"format": "mlx"})


def nearest(folder: Path, way: Way) -> str:
    """Say so if every weight that did not come back has no checkpoint that it could come from.

    ``x + 1`` and ``x * c`` do not reach every number: the two checkpoints next to ours, one step of
    the last bit up and down, must miss the same weights.
    """
    wanted, found = (singles(folder / part) for part in ("trained", "again"))
    missed = {name: value != wanted[name] for name, value in found.items()}
    for sign in (1, -1):
        kind = f"{sign}-mended" if way.repair else sign
        step = folder / f"step{kind}"
        shutil.copytree(folder / "trained-home", step)
        nudge(step, sign)
        to("mlx", step, folder / f"stepped{kind}", way)
        for name, value in singles(folder / f"stepped{kind}").items():
            if np.any((value == wanted[name]) & missed[name]):
                return ""
    count = sum(int(value.sum()) for value in missed.values())
    return f"exact but {count} weights that no checkpoint gives"


def singles(folder: Path) -> dict[str, npt.NDArray[np.float32]]:
    """Return the float32 weights in FOLDER."""
    found = read(folder).items()
    return {k: np.frombuffer(v.content, np.float32) for k, v in found if v.dtype == "F32"}


def run(row: Row, folder: Path, made: tiny.Tiny) -> None:
    """Load our directory with mlx-lm, strictly, and compare the logits with transformers."""
    wanted, long = (logits.reference(made.model, it) for it in (logits.SHORT, logits.LONG))
    row.bar, row.long_bar = wanted.bar, long.bar
    try:
        model = logits.mlx_lm(folder / "mlx")
        row.accepted = EXACT
        row.error = logits.error(logits.native(model), wanted.double)
        row.long_error = logits.error(logits.native(model, logits.LONG), long.double)
    except Exception as error:
        row.accepted = said(error)
    if not agrees(vars(row)):
        row.control = control(folder)


def refuse(row: Row, folder: Path, made: tiny.Tiny) -> None:
    """Note what mlx-lm says of a type for which its class is of something else."""
    row.bar, row.long_bar = (
        logits.reference(made.model, it).bar for it in (logits.SHORT, logits.LONG)
    )
    row.accepted = row.control = upstream.loaders_words(folder / "hub")


def unsaid(row: Row, folder: Path, made: tiny.Tiny) -> None:
    """Note why a type is not converted whose weights no map says, but for a repaired class."""
    for name, it in libraries.probes(row.library, row.kind, made.model):
        setattr(row, f"{name}bar", libraries.reference(row.library, made.model, it).bar)
    try:
        go(row, folder, made)
    except WeighbridgeError as error:
        row.accepted = said(error).replace(f"{folder}/", "")


def see(row: Row, folder: Path, made: tiny.Tiny) -> None:
    """Load our directory with its library, strictly, and compare outputs, with a picture too."""
    given = dict(libraries.probes(row.library, row.kind, made.model))
    wanted = {name: libraries.reference(row.library, made.model, it) for name, it in given.items()}
    for name, it in wanted.items():
        setattr(row, f"{name}bar", it.bar)
    if "seen_" in given:
        other = pictures.another(given["seen_"])
        moved = libraries.reference(row.library, made.model, other).double
        row.moved = logits.error(moved, wanted["seen_"].double)
    try:
        model = libraries.load(row.library, folder / "mlx")
        row.accepted = EXACT
        for name, it in given.items():
            found = libraries.native(model, it)
            setattr(row, f"{name}error", logits.error(found, wanted[name].double))
    except Exception as error:
        row.accepted = said(error)
    row.control = control(folder, row.library)
    if row.control == SAME:  # what the class itself makes of the checkpoint
        row.forward = EXACT


def agrees(row: Mapping[str, Any]) -> bool:
    """Say whether MLX computes what transformers does, on both texts and with a picture."""
    return computes(row, "")


def computes(row: Mapping[str, Any], way: str) -> bool:
    """Say whether all errors of ROW that WAY names are known and within their bars."""
    pairs = [(row[f"{way}{it}error"], row[f"{it}bar"]) for it in ("", "long_", "seen_")]
    known = [(error, bar) for error, bar in pairs if bar is not None]
    return bool(known) and all(error is not None and error <= bar for error, bar in known)


def judge(row: Row, folder: Path, _: tiny.Tiny) -> None:
    """Convert as a user does, with the check at its defaults, and note its verdict."""
    row.check = judged(folder, "judged", Way(row.library))


def judged(folder: Path, name: str, way: Way) -> str:
    """Return the verdict of a conversion to NAME in FOLDER at its defaults, or why there is none."""
    from weighbridge.jobs.converting import convert
    from weighbridge.jobs.options import Options

    options = Options(**way._asdict())
    try:
        return convert(str(folder / "hub"), folder / name, "mlx", options=options).status
    except WeighbridgeError as error:
        return said(error).replace(f"{folder}/", "")


def mend(row: Row, folder: Path, made: tiny.Tiny) -> None:
    """Where the library does not agree and a repair is known, do the same with it."""
    way = Way(row.library, repair=True)
    if agrees(vars(row)) or row.kind not in OF_LIBRARY.get(row.library, ()):
        return
    try:
        to("mlx", folder / "hub", folder / "mended", way)
        home(folder, "mended", "mended-home", packed(folder))
        row.mended = difference(read(folder / "mended-home"), read(folder / "hub"))
        trained = trip(folder, "mended", way)
        row.mended = row.mended if trained.startswith(EXACT) else f"trained: {trained}"
        for name, error in errors(row, folder / "mended", made):
            setattr(row, f"mended_{name}error", error)
    except Exception as error:
        row.mended = said(error)
        return
    row.mended_check = judged(folder, "judged-mended", way)


def errors(row: Row, folder: Path, made: tiny.Tiny) -> Iterator[tuple[str, float]]:
    """Yield how far the directory FOLDER is from the torch model, on each text and with a picture."""
    if row.library == "mlx-lm":
        model = logits.mlx_lm(folder)
        for name, shape in (("", logits.SHORT), ("long_", logits.LONG)):
            wanted = logits.reference(made.model, shape)
            yield name, logits.error(logits.native(model, shape), wanted.double)
        return
    model = libraries.load(row.library, folder)
    for name, it in libraries.probes(row.library, row.kind, made.model):
        wanted = libraries.reference(row.library, made.model, it)
        yield name, logits.error(libraries.native(model, it), wanted.double)


def generate(row: Row, folder: Path, made: tiny.Tiny) -> None:
    """Generate greedily, as mlx-lm does, after a text past every threshold, where it computes right."""
    source = "mlx" if agrees(vars(row)) else "mended" if mends(vars(row)) else ""
    if source:
        prompt = logits.tokens(logits.LONG)[0]
        barred = logits.placeholders(made.model.config)
        chosen = logits.greedy(logits.mlx_lm(folder / source), prompt, barred)
        row.greedy = logits.behind(made.model, prompt, chosen, barred)


def mends(row: Mapping[str, Any]) -> bool:
    """Say whether the repaired directory computes what transformers does, comes back, and is kept."""
    return runs_mended(row) and row.get("mended_check") != "DIFFERS"


def runs_mended(row: Mapping[str, Any]) -> bool:
    """Say whether the repaired directory computes what transformers does, and comes back."""
    return computes(row, "mended_") and str(row["mended"]) == EXACT


def control(folder: Path, library: str = "mlx-lm") -> str:
    """Let LIBRARY load the checkpoint itself, our configuration beside it, and compare the models.

    Weights are compared, not logits: a transposed view of the same weights is rounded otherwise.
    """
    shutil.copytree(folder / "hub", folder / "control")
    shutil.copy(folder / "mlx" / "config.json", folder / "control")
    try:
        if library == "mlx-lm":
            theirs, ours = (logits.mlx_lm(folder / it) for it in ("control", "mlx"))
            logits.native(theirs)
        else:
            theirs, ours = (libraries.load(library, folder / it) for it in ("control", "mlx"))
    except Exception as error:
        return said(error)
    same = difference(held(ours, folder / "ours"), held(theirs, folder / "theirs"))
    return SAME if same == EXACT else f"other weights: {same}"


def held(model: Any, folder: Path) -> Tensors:
    """Return the weights that a loaded MLX MODEL computes with."""
    import mlx.core as mx
    from mlx.utils import tree_flatten

    folder.mkdir()
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())))
    return read(folder)


def to(
    framework: str,
    source: Path,
    target: Path,
    way: Way | None = None,
    *,
    original: str | None = None,
    quant_method: str | None = None,
) -> None:
    """Convert SOURCE to FRAMEWORK at TARGET by the product's own way, unchecked."""
    from weighbridge.jobs.converting import convert
    from weighbridge.jobs.options import Options

    asked = {"original": original, "quant_method": quant_method}
    options = Options(check="none", **asked, **(way._asdict() if way else {}))
    convert(str(source), target, framework, options=options)


def home(folder: Path, source: str, target: str, method: str = "") -> list[str]:
    """Convert SOURCE to torch, with the original only where it does not go without.

    Codes that were written in MLX's own format become those of METHOD again.
    """
    try:
        again = method if method in hub.RECODED else None
        to("torch", folder / source, folder / target, quant_method=again)
    except WeighbridgeError as error:
        if "original" not in str(error):
            raise
        to("torch", folder / source, folder / target, original=str(folder / "hub"))
        return ["--original"]
    return []


def sanitized(row: Row, folder: Path) -> Tensors:
    """Return what mlx-lm's class makes of the checkpoint, given our configuration.

    A saved one that the class does not read is rewritten before, as the published ones are.
    """
    shutil.copytree(folder / "hub", folder / "readable")
    if row.layout == "saved" and row.kind in CHANGES:
        hub.made_readable(row.kind, folder / "readable")
    import mlx.core as mx
    from mlx_lm.utils import _get_classes, load_config

    config = load_config(folder / "mlx")
    model_class, args_class = _get_classes(config)
    model = model_class(args_class.from_dict(config))
    weights = {name: mx.array(value) for name, value in load(folder / "readable").items()}
    if hasattr(model, "sanitize"):
        weights = model.sanitize(weights)
    (folder / "oracle").mkdir()
    mx.save_safetensors(str(folder / "oracle" / "model.safetensors"), weights)
    return read(folder / "oracle")


def load(folder: Path) -> dict[str, Any]:
    """Return the weights in FOLDER as MLX arrays."""
    import mlx.core as mx

    found: dict[str, Any] = {}
    for file in sorted(folder.glob("model*.safetensors")):
        found |= dict(mx.load(str(file)).items())
    return found


def read(folder: Path) -> Tensors:
    """Return the weights in FOLDER as they lie in the files, the sidecar not among them."""
    found: Tensors = {}
    for file in sorted(folder.glob("model*.safetensors")):
        content = file.read_bytes()
        size = int.from_bytes(content[:8], "little")
        start = 8 + size
        for name, head in json.loads(content[8:start]).items():
            if name != "__metadata__":
                first, last = (start + offset for offset in head["data_offsets"])
                found[name] = Stored(head["dtype"], tuple(head["shape"]), content[first:last])
    return found


def nudge(folder: Path, sign: int) -> None:
    """Move every float32 weight in FOLDER by one step of its last bit."""
    from safetensors.numpy import load_file, save_file

    for file in folder.glob("model*.safetensors"):
        moved = {
            name: np.nextafter(value, np.float32(sign * np.inf))
            if value.dtype == np.float32
            else value
            for name, value in load_file(file).items()
        }
        save_file(moved, file, {"format": "pt"})


def change(folder: Path) -> None:
    """Move every floating point weight in FOLDER, as training would; the parts of codes stay."""
    import mlx.core as mx

    noise = np.random.default_rng(5)
    for file in folder.glob("model*.safetensors"):
        held = mx.load(str(file))
        codes = {name.rpartition(".")[0] for name in held if name.endswith(".scales")}
        moved = {
            name: value + mx.array(noise.normal(0, 0.01, value.shape)).astype(value.dtype)
            if mx.issubdtype(value.dtype, mx.floating) and name.rpartition(".")[0] not in codes
            else value
            for name, value in held.items()
        }
        mx.save_safetensors(str(file), moved, {"format": "mlx"})


def difference(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Say whether names, dtypes, shapes and bytes are the same, or what differs."""
    parts = list(differences(found, wanted))
    return f"{len(parts)} differ: {'; '.join(parts[:3])}" if parts else EXACT


def differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[str]:
    """Yield every tensor that is missing, left over or not the same."""
    for name in sorted({*found, *wanted}):
        if name not in found:
            yield f"{name} is missing"
        elif name not in wanted:
            yield f"{name} is left over"
        elif found[name][:2] != wanted[name][:2]:
            yield f"{name}: {describe(found[name])} instead of {describe(wanted[name])}"
        elif found[name].content != wanted[name].content:
            yield f"{name}: other values"


def describe(tensor: Stored) -> str:
    """Return dtype and shape."""
    return f"{tensor.dtype}{list(tensor.shape)}"


def said(error: BaseException) -> str:
    """Return an error in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:1000]


def main(library: str, names: list[str]) -> None:
    """Print the rows ``TYPE:LAYOUT`` of LIBRARY."""
    for name in names:
        kind, layout = name.split(":")
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
            row = measure(kind, layout, Path(folder), library)
        print(json.dumps(asdict(row)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
