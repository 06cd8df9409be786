"""The table of families: what is good, how it is spoiled, which verbs read it, what success means."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from . import noise, oracles
from .drawn import Chance, draw
from .formats import (
    json_pool,
    spoil_gguf,
    spoil_json,
    spoil_legacy,
    spoil_protobuf,
    spoil_safetensors,
    spoil_zip,
)
from .judge import Oracle
from .oracles import (
    BIN,
    MENDED,
    NPZ,
    NPZ_HEADERS,
    PT,
    PT_HEADERS,
    SAFETENSORS,
    listed,
    merged,
    mlx_updates,
    moved,
    peft_updates,
)
from .trees import spoiled_tree, written

Spoil = Callable[[Chance, Path], str]
LONGEST = 40  # a run of more steps is no hang of ours


class Verb(NamedTuple):
    """A command line, and what its success must mean.

    Attributes:
        line: its words.
        target: what it may write.
        oracle: asked when it succeeds.
        share: how often, against the other verbs of the family.
    """

    line: str
    target: str = ""
    oracle: Oracle | None = None
    share: int = 2


class Family(NamedTuple):
    """Inputs of one kind.

    Attributes:
        goods: what lies in the input's folder.
        spoil: makes it bad, says how.
        verbs: what may be run on it.
        share: how many inputs, against the other families.
    """

    goods: tuple[str, ...]
    spoil: Spoil
    verbs: tuple[Verb, ...]
    share: int = 10


def tensor_verbs(
    source: str,
    read: oracles.Read,
    way: str = "torch-to-mlx",
    headers: oracles.Read | None = None,
) -> tuple[Verb, ...]:
    """Return what reads the tensors of SOURCE with READ, or their HEADERS; npz archives hold MLX's."""
    return (
        Verb(f"inspect {source} --json", oracle=listed(source, headers or read)),
        Verb(f"convert {way} {source} out --check none", "out", moved(source, read), 4),
        Verb(f"map show {source}", share=1),
    )


def one_of(*spoils: Spoil) -> Spoil:
    """Return a way to spoil that is one of SPOILS each time."""
    return lambda chance, folder: chance.choice(spoils)(chance, folder)


def every(*spoils: Spoil) -> Spoil:
    """Return a way to spoil that is all of SPOILS: the verb reads one of the files."""
    return lambda chance, folder: "; ".join(spoil(chance, folder) for spoil in spoils)


def at(path: str, spoil: Spoil) -> Spoil:
    """Return SPOIL for the file PATH of the input's folder."""
    return lambda chance, folder: spoil(chance, folder / path)


def spoil_index(chance: Chance, folder: Path) -> str:
    """Spoil an index, one of its shards, or which shards there are."""
    files = sorted(folder.glob("*.safetensors"))
    what = chance.random()
    if what < 0.6:
        return spoil_json(chance, folder / "model.safetensors.index.json")
    if what < 0.8:
        return spoil_safetensors(chance, chance.choice(files))
    one, other = chance.sample(files, 2)
    if what < 0.9:
        one.unlink()
        return f"{one.name} is missing"
    swapped = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(swapped)
    return f"{one.name} and {other.name} swapped"


def spoil_package(chance: Chance, folder: Path) -> str:
    """Spoil the manifest, the program or the weights of a Core ML package."""
    from coremltools.proto import Model_pb2

    inner = folder / "Data" / "com.apple.CoreML"
    what = chance.random()
    if what < 0.3:
        return spoil_json(chance, folder / "Manifest.json")
    if what < 0.7:
        return spoil_protobuf(chance, inner / "model.mlmodel", Model_pb2.Model())
    if what < 0.95:
        return spoil_noise(chance, inner / "weights" / "weight.bin")
    chance.choice([path for path in folder.rglob("*") if path.is_file()]).unlink()
    return "a file is missing"


def spoil_onnx(chance: Chance, path: Path) -> str:
    from onnx import ModelProto

    return spoil_protobuf(chance, path, ModelProto())


def spoil_asset(chance: Chance, folder: Path) -> str:
    """Spoil what an asset says of itself, or its program; mostly its hash is put right after it."""
    if chance.random() < 0.5:
        return spoil_json(chance, folder / "metadata.json")
    program = folder / "main.mlirb"
    told = spoil_noise(chance, program)
    if chance.random() < 0.8:
        (folder / "main.hash").write_bytes(hashlib.sha256(program.read_bytes()).digest())
    return told


def spoil_noise(chance: Chance, path: Path) -> str:
    """Spoil bytes anywhere in the file PATH."""
    path.write_bytes(noise.spoiled(chance, path.read_bytes()))
    return f"{path.name}: bytes"


SIDE = (
    *("tokenizer.json", "tokenizer_config.json", "modules.json", "generation_config.json"),
    *("vocab.txt", "1_Pooling/config.json", "sentence_bert_config.json"),
)


def spoil_side(chance: Chance, folder: Path) -> str:
    """Spoil a file beside the weights."""
    path = folder / chance.choice(SIDE)
    return spoil_noise(chance, path) if path.suffix == ".txt" else spoil_json(chance, path)


def spoil_lines(chance: Chance, path: Path) -> str:
    """Spoil a text by its lines: lost, doubled, in another order, or of the map's grammar."""
    lines = path.read_text().splitlines()
    for _ in range(chance.choice((1, 1, 2, 3))):
        here, what = chance.randrange(len(lines)), chance.random()
        if what < 0.15:
            del lines[here]
        elif what < 0.3:
            lines.insert(chance.randrange(len(lines)), lines[here])
        elif what < 0.65:
            lines[here] = spoiled_line(chance, lines[here])
        else:
            lines.insert(here, str(draw("line", chance)))
    path.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
    return f"{path.name}: lines"


def spoiled_line(chance: Chance, line: str) -> str:
    """Return LINE with a word lost, doubled, replaced, or a sign changed."""
    words = line.split(" ")
    here = chance.randrange(len(words))
    new = (
        "",
        words[here] * 2,
        chance.choice(words),
        "{",
        "}",
        "]",
        "[",
        "->",
        "x" * 3_000,
        "(" * 500,
    )
    words[here] = chance.choice((*new, "same", "*", "{a}{b}", "|", "=", "9" * 5_000))
    return " ".join(words)


def spoil_recipe(chance: Chance, path: Path) -> str:
    """Spoil a YAML or TOML file: its tree, a scalar, or its text."""
    what, text = chance.random(), path.read_text()
    if path.suffix == ".yaml" and what < 0.4:
        import yaml

        text = written(spoiled_tree(chance, yaml.safe_load(text), json_pool(chance)))
    elif what < 0.75:
        scalar = str(draw("scalar", chance))
        value = r"(?<=[:=] )[^\n{]+" if chance.random() < 0.6 else r"\w+"
        spots = list(re.finditer(value, text))
        spot = chance.choice(spots)
        text = text[: spot.start()] + scalar + text[spot.end() :]
    else:
        return spoil_noise(chance, path)
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    keep_short(path)
    return f"{path.name}: recipe"


def keep_short(path: Path) -> None:
    """Let a recipe of a long run name no model: it is read as a whole all the same."""
    try:
        told = oracles.leaves(oracles.read_recipe(path))
    except (Exception, RecursionError):  # whatever is wrong with it
        return
    sizes = [told.get(f".{name}") for name in ("steps", "batch_size", "accumulation")]
    if any(isinstance(it, int) and it > LONGEST for it in sizes):
        path.write_text(path.read_text().replace("port:make", "nowhere:make"))


SETTINGS = (
    *("steps", "model", "optimizer.learning_rate", "optimizer.betas", "data.train", "data.kind"),
    *("schedule.kind", "schedule.warmup", "freeze", "adapter", "adapter.targets", "objective.name"),
    *("seed", "clip_norm", "tolerance", "keep", "batch_size", "validate_every", "objective"),
    *("data", "compile", "trust_code", "nonfinite_limit", "", ".", "a.b", "steps.more", "x" * 300),
)


def settings(chance: Chance, _: Path) -> list[str]:
    """Return ``--set`` options."""
    made = []
    for _ in range(chance.choice((1, 1, 2))):
        key = chance.choice(SETTINGS)
        scalar = str(draw("scalar", chance)).replace("\x00", "")
        made += ["--set", f"{key}={scalar}" if chance.random() < 0.95 else scalar or key]
    model = [] if chance.random() < 0.5 else ["--set", "model=nowhere:make"]
    return [*made, *model, "--set", "steps=2"]


def spoil_pairs(chance: Chance, path: Path) -> str:
    """Spoil JSON lines: a line's tree, the lines, or bytes."""
    lines = path.read_text().splitlines()
    what = chance.random()
    if what < 0.5:
        here = chance.randrange(len(lines))
        lines[here] = written(spoiled_tree(chance, json.loads(lines[here]), json_pool(chance)))
        path.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
        return f"{path.name}: a line"
    if what < 0.7:
        path.write_text("\n".join(chance.choices(lines, k=chance.choice((0, 1, 2, 30)))))
        return f"{path.name}: other lines"
    return spoil_noise(chance, path)


def spoil_run(chance: Chance, folder: Path) -> str:
    """Spoil a run that was stopped: state, facts, configuration, journal, or which files there are."""
    state = folder / "checkpoints" / "step-00000002"
    what = chance.random()
    if what < 0.3:
        return spoil_json(chance, state / "state.json")
    if what < 0.55:
        return spoil_safetensors(chance, state / "state.safetensors")
    if what < 0.65:
        return spoil_recipe(chance, folder / "config.yaml")
    if what < 0.8:
        return spoil_noise(chance, folder / "metrics.jsonl")
    files = sorted(path for path in folder.rglob("*"))
    path = chance.choice(files)
    return muddle(chance, path)


def spoil_golden(chance: Chance, folder: Path) -> str:
    """Spoil a golden."""
    if chance.random() < 0.6:
        return spoil_json(chance, folder / "golden.json")
    return spoil_safetensors(chance, folder / "golden.safetensors")


def spoil_leftover(chance: Chance, folder: Path) -> str:
    """Spoil what a killed conversion left."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    path = chance.choice(files)
    return spoil_noise(chance, path) if chance.random() < 0.8 else muddle(chance, path)


def spoil_folder(chance: Chance, folder: Path) -> str:
    """Make something else of a file in FOLDER than a file."""
    path = chance.choice(sorted(folder.rglob("*")))
    return muddle(chance, path)


def muddle(chance: Chance, path: Path) -> str:
    """Make of the file or folder PATH a folder, a pipe, a link, nothing, or give it a name."""
    what = chance.choice(MUDDLES)
    gone = path.with_name("gone")
    path.rename(gone)
    what(path, gone)
    return f"{path.name}: {what.__name__}"


def lost(path: Path, gone: Path) -> None:
    gone.rename(path.parent / ".gone")


def folder_instead(path: Path, gone: Path) -> None:
    path.mkdir()


def pipe(path: Path, gone: Path) -> None:
    os.mkfifo(path)


def loop(path: Path, gone: Path) -> None:
    path.symlink_to(path.name)


def dangling(path: Path, gone: Path) -> None:
    path.symlink_to("no" + "where" * 40)


def link(path: Path, gone: Path) -> None:
    path.symlink_to(gone.name)


def outside(path: Path, gone: Path) -> None:
    path.symlink_to(os.path.relpath(gone.parent.parent.parent / "away" / "kept.txt", path.parent))


def empty(path: Path, gone: Path) -> None:
    path.write_bytes(b"")


def device(path: Path, gone: Path) -> None:
    path.symlink_to("/dev/zero")


def no_utf8(path: Path, gone: Path) -> None:
    gone.rename(os.fsdecode(os.fsencode(path) + b"\xff\n[bold]"))


def long_name(path: Path, gone: Path) -> None:
    gone.rename(path.with_name("x" * 240 + path.suffix))


def deep(path: Path, gone: Path) -> None:
    path.joinpath(*["d"] * 150).mkdir(parents=True)


MUDDLES = (lost, folder_instead, pipe, loop, dangling, link, outside, empty, device, no_utf8)
MUDDLES += (long_name, deep)


def argv(chance: Chance, _: Path) -> list[str]:
    """Return a command line."""
    return list(draw("argv", chance))


def nothing(_chance: Chance, _folder: Path) -> str:
    return "a command line"


MERGE = Verb("merge bert peft out --check none", "out", merged("bert", "peft", peft_updates), 3)
MERGE_MLX = Verb(
    "merge mlx mlx-adapter out --check none", "out", merged("mlx", "mlx-adapter", mlx_updates), 3
)
TO_MLX = Verb("convert peft-to-mlx peft out --base bert --check none", "out", oracles.peft_to_mlx)
TO_PEFT = Verb("convert mlx-to-peft mlx-adapter out --base mlx --check none", "out", share=1)
PLAIN = moved("bert", SAFETENSORS)
CONVERT = Verb("convert torch-to-mlx bert out --check none", "out", PLAIN, 4)
TRAIN = "train out --backend torch --config"
SERIES = ("port.py", "series")
LIKE = tuple(
    Verb(f"export gguf llama out.gguf --like {name}", "out.gguf", oracles.exported)
    for name in ("like-f32.gguf", "like-bf16.gguf", "like-q8.gguf")
)
CHOSEN = "--library mlx-embeddings --check none"
GGUFS = ("llama", "like-f32.gguf", "like-bf16.gguf", "like-q8.gguf")


FAMILIES: dict[str, Family] = {
    "safetensors": Family(
        ("bert",),
        at("bert/model.safetensors", spoil_safetensors),
        tensor_verbs("bert", SAFETENSORS),
        14,
    ),
    "bfloat16": Family(
        ("bert-bf16",),
        at("bert-bf16/model.safetensors", spoil_safetensors),
        tensor_verbs("bert-bf16", SAFETENSORS),
        6,
    ),
    "shards": Family(
        ("bert-shards",),
        at("bert-shards", spoil_index),
        tensor_verbs("bert-shards", oracles.readers.shards),
    ),
    "npz": Family(
        ("bert-npz",),
        at("bert-npz/weights.npz", spoil_zip),
        tensor_verbs("bert-npz", NPZ, "mlx-to-torch", NPZ_HEADERS),
        10,
    ),
    "npz packed": Family(
        ("bert-npz-packed",),
        at("bert-npz-packed/weights.npz", spoil_zip),
        tensor_verbs("bert-npz-packed", NPZ, "mlx-to-torch", NPZ_HEADERS),
        6,
    ),
    "pt": Family(
        ("bert-pt",),
        at("bert-pt/model.pt", spoil_zip),
        tensor_verbs("bert-pt", PT, headers=PT_HEADERS),
        12,
    ),
    "bin": Family(
        ("bert-bin",), at("bert-bin/pytorch_model.bin", spoil_legacy), tensor_verbs("bert-bin", BIN)
    ),
    "gguf": Family(
        GGUFS,
        every(*(at(name, spoil_gguf) for name in GGUFS[1:])),
        (*LIKE, Verb("inspect like-f32.gguf", share=1)),
        14,
    ),
    "mlpackage": Family(
        ("model.mlpackage", "golden"),
        at("model.mlpackage", spoil_package),
        (
            Verb("inspect model.mlpackage --json", share=3),
            Verb(
                "parity check golden model.mlpackage --quick",
                oracle=oracles.package_checked,
                share=3,
            ),
        ),
        8,
    ),
    "functions": Family(
        ("functions.mlpackage", "llama"),
        at("functions.mlpackage", spoil_package),
        (
            Verb("inspect functions.mlpackage"),
            Verb(
                "convert coreml-to-torch functions.mlpackage out --like llama --check none", "out"
            ),
        ),
        2,
    ),
    "onnx": Family(
        ("model.onnx", "products.onnx", "onnx", "golden", "bert", "llama"),
        every(
            *(at(name, spoil_onnx) for name in ("model.onnx", "products.onnx", "onnx/model.onnx"))
        ),
        (
            Verb("inspect model.onnx"),
            Verb("inspect products.onnx"),
            Verb("convert onnx-to-mlx products.onnx out --like llama --check none", "out"),
            *tuple(
                Verb(line, target, oracles.refused)
                for line, target in (
                    ("convert onnx-to-torch model.onnx out --like bert --check none", "out"),
                    ("convert torch-to-mlx model.onnx out --check none", "out"),
                    ("convert torch-to-mlx onnx out --check none", "out"),
                    ("parity check golden model.onnx --quick", ""),
                    ("merge onnx model.onnx out", "out"),
                )
            ),
        ),
        4,
    ),
    "states": Family(
        ("states.aimodel", "llama"),
        at("states.aimodel", spoil_asset),
        (
            Verb("inspect states.aimodel"),
            Verb("convert coreai-to-torch states.aimodel out --like llama --check none", "out"),
        ),
        1,
    ),
    "asset": Family(
        ("model.aimodel", "golden", "bert"),
        at("model.aimodel", spoil_asset),
        (
            Verb("inspect model.aimodel"),
            Verb("parity check golden model.aimodel --quick", oracle=oracles.asset_checked),
            Verb("convert coreai-to-torch model.aimodel out --like bert --check none", "out"),
        ),
        2,
    ),
    "config": Family(
        ("bert", "mlx"),
        one_of(
            at("bert/config.json", spoil_json),
            at("bert/config.json", spoil_json),
            at("mlx/config.json", spoil_json),
        ),
        (
            Verb("inspect bert --json", share=1),
            CONVERT._replace(oracle=oracles.both(PLAIN, oracles.configured)),
            Verb("map show bert", share=1),
            Verb("convert mlx-to-torch mlx out --check none", "out", moved("mlx", SAFETENSORS), 2),
        ),
        14,
    ),
    "config of a learned map": Family(
        ("llama",),
        at("llama/config.json", spoil_json),
        (
            Verb("convert torch-to-mlx llama out --check none", "out", moved("llama", SAFETENSORS)),
            Verb("map show llama", share=1),
        ),
        5,
    ),
    "class of a library": Family(
        ("encoder", "mended"),  # the latter to compare with
        one_of(
            at("encoder/config.json", spoil_json),
            at("encoder/model.safetensors", spoil_safetensors),
        ),
        (
            Verb(f"convert torch-to-mlx encoder out {CHOSEN} --repair", "out", oracles.mended),
            Verb(f"quantize encoder out {CHOSEN} --group-size 32", "out"),
        ),
        4,
    ),
    "model file": Family(
        ("mended", "encoder"),
        one_of(at(f"mended/{MENDED}", spoil_noise), at("mended/config.json", spoil_json)),
        (
            Verb("convert mlx-to-torch mended out --check none", "out", oracles.unmended),
            Verb("inspect mended", share=1),
        ),
        4,
    ),
    "side files": Family(
        ("bert",),
        at("bert", spoil_side),
        (CONVERT._replace(oracle=oracles.both(PLAIN, oracles.copied)),),
        8,
    ),
    "tokenizer in use": Family(
        ("bert", "pairs", "pairs.yaml"),
        at("bert", spoil_side),
        (Verb(f"{TRAIN} pairs.yaml", "out"), Verb("parity record bert out", "out")),
        4,
    ),
    "peft config": Family(
        ("bert", "peft"),
        at("peft/adapter_config.json", spoil_json),
        (MERGE, TO_MLX, Verb("inspect peft", share=1), Verb("inspect bert+peft", share=1)),
    ),
    "peft tensors": Family(
        ("bert", "peft"),
        at("peft/adapter_model.safetensors", spoil_safetensors),
        (MERGE, TO_MLX, Verb("inspect peft", share=1)),
        8,
    ),
    "mlx adapter": Family(
        ("mlx", "mlx-adapter"),
        one_of(
            at("mlx-adapter/adapter_config.json", spoil_json),
            at("mlx-adapter/adapters.safetensors", spoil_safetensors),
        ),
        (MERGE_MLX, TO_PEFT, Verb("inspect mlx-adapter", share=1)),
        12,
    ),
    "wmap": Family(
        ("bert", "bert.wmap"),
        at("bert.wmap", spoil_lines),
        (
            Verb("map show bert --map bert.wmap", share=2),
            Verb(
                "convert torch-to-mlx bert out --check none --map bert.wmap",
                "out",
                oracles.round_trip,
                2,
            ),
        ),
        12,
    ),
    "recipe": Family(
        (*SERIES, "recipe.yaml"),
        at("recipe.yaml", spoil_recipe),
        (Verb(f"{TRAIN} recipe.yaml", "out", oracles.as_configured("recipe.yaml")),),
        10,
    ),
    "recipe in TOML": Family(
        (*SERIES, "recipe.toml"),
        at("recipe.toml", spoil_recipe),
        (Verb(f"{TRAIN} recipe.toml", "out", oracles.as_configured("recipe.toml")),),
        4,
    ),
    "settings": Family(
        (*SERIES, "recipe.yaml"),
        nothing,
        (
            Verb(f"{TRAIN} recipe.yaml *settings", "out"),
            Verb("preflight --config recipe.yaml *settings", share=1),
        ),
        8,
    ),
    "pairs": Family(
        ("bert", "pairs", "pairs.yaml"),
        at("pairs/train.jsonl", spoil_pairs),
        (Verb(f"{TRAIN} pairs.yaml", "out", oracles.pairs_counted),),
        5,
    ),
    "series": Family(
        (*SERIES, "recipe.yaml"),
        at("series/train.npz", spoil_zip),
        (Verb(f"{TRAIN} recipe.yaml", "out", oracles.series_read),),
        5,
    ),
    "run": Family(
        (*SERIES, "run"),
        at("run", spoil_run),
        (Verb("train run --resume --backend torch", "run", oracles.resumed),),
        6,
    ),
    "golden": Family(
        ("golden", "mlx"),
        at("golden", spoil_golden),
        (
            Verb("inspect golden", share=4),
            Verb("parity check golden mlx --quick", oracle=oracles.golden_checked, share=2),
        ),
        5,
    ),
    "manifest": Family(
        ("mlx", "mlx-adapter"),
        at("mlx/weighbridge.json", spoil_json),
        (
            Verb("convert mlx-to-torch mlx out --check none", "out", oracles.back_home, 3),
            Verb("inspect mlx", share=1),
            Verb("map show mlx", share=1),
            MERGE_MLX._replace(share=1),
        ),
        12,
    ),
    "leftover": Family(("bert", ".out.staging"), at(".out.staging", spoil_leftover), (CONVERT,), 6),
    "inputs": Family(
        ("bert", "inputs.npz"),
        at("inputs.npz", spoil_zip),
        (Verb("parity record bert out --inputs inputs.npz", "out", oracles.inputs_recorded),),
        5,
    ),
    "folder": Family(
        ("bert", "peft", "mlx"),
        every(at("bert", spoil_folder), at("peft", spoil_folder), at("mlx", spoil_folder)),
        (
            Verb("inspect bert", share=1),
            CONVERT._replace(oracle=None, share=2),
            Verb("merge bert peft out --check none", "out"),
            Verb("convert mlx-to-torch mlx out --check none", "out"),
        ),
        6,
    ),
    "command line": Family(
        (
            "bert",
            "mlx",
            "peft",
            "mlx-adapter",
            "llama",
            "like-f32.gguf",
            "golden",
            "recipe.yaml",
            "series",
            "pairs",
            "run",
            "inputs.npz",
            "bert.wmap",
            "port.py",
        ),
        nothing,
        (Verb("*argv"),),
        10,
    ),
}
WORDS: dict[str, Callable[[Chance, Path], list[str]]] = {"*settings": settings, "*argv": argv}


def words(chance: Chance, folder: Path, verb: Verb) -> list[str]:
    """Return the command line of VERB."""
    made: list[Any] = []
    for word in verb.line.split():
        made += WORDS[word](chance, folder) if word in WORDS else [word]
    return made


def choose(chance: Chance, verbs: Sequence[Verb]) -> Verb:
    """Return one of VERBS by their shares."""
    return chance.choices(verbs, [verb.share for verb in verbs])[0]
