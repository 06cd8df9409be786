"""Merges that nobody wants: an adapter into a model that has it already, or into another base."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from click.testing import CliRunner

from weighbridge.cli import main as weighbridge
from weighbridge.converters.common.dtypes import NUMPY
from weighbridge.tests.support.adapters import made

FRAMEWORKS: Final = ("torch", "mlx")
DIALECTS: Final = ("peft", "mlx")
FORMATS: Final = {"torch": "pt", "mlx": "mlx"}
REFUSED: Final = 3
LAYERS, HIDDEN, GROUP, RANK, GAIN = 2, 96, 32, 4, 1.5
TRAINED: Final = "model.layers.1.self_attn.v_proj.weight"  # in a sibling, by a part of FURTHER
FURTHER: Final = 0.02
WHY: Final = {"twice": "already", "elsewhere": "are not those that the adapter was trained on"}


class Twice(NamedTuple):
    """A way to merge an adapter: its dialect, the framework of the base, and what they are."""

    dialect: str
    framework: str
    kind: str

    @property
    def told(self) -> str:
        """The way in a few words."""
        return " ".join(self)


class Elsewhere(NamedTuple):
    """A way to meet another base: the framework of the record, that of the base, and what they are."""

    recorded: str
    framework: str
    kind: str

    @property
    def told(self) -> str:
        """The way in a few words."""
        return " ".join(self)


TWICE: Final = tuple(
    Twice(*way) for way in product(DIALECTS, FRAMEWORKS, ("LoRA", "DoRA", "8-bit"))
)
ELSEWHERE: Final = tuple(
    Elsewhere(*way) for way in product(FRAMEWORKS, FRAMEWORKS, ("LoRA", "DoRA", "BF16"))
)


class Tried(NamedTuple):
    """What came of a command.

    Attributes:
        what: in words.
        code: the exit code.
        said: what was printed.
        left: whether the target is there.
    """

    what: str
    code: int
    said: str
    left: bool


def run(what: str, target: Path, *arguments: Any) -> Tried:
    """Run weighbridge with ARGUMENTS, which write TARGET, unchecked."""
    shutil.rmtree(target, ignore_errors=True)  # what a wrong success left
    words = [str(it) for it in (*arguments, "--check", "none")]
    result = CliRunner().invoke(weighbridge, words)
    return Tried(what, result.exit_code, result.output, target.exists())


def must(target: Path, *arguments: Any) -> Path:
    """Run weighbridge with ARGUMENTS, which write TARGET, and return it."""
    tried = run("", target, *arguments)
    if tried.code or not tried.left:
        raise RuntimeError(tried.said)
    return target


class Bench:
    """A folder with bases and adapters, each made when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config, self.layout = made.llama(LAYERS, HIDDEN)
        self.config |= {"rms_norm_eps": 1e-5, "tie_word_embeddings": False}

    def arrays(self) -> dict[str, np.ndarray]:
        """Return weights that keep the size of what flows through them."""
        found = made.random_arrays(self.layout, seed=1)
        wide = {
            name: GAIN / (0.05 * it.shape[-1] ** 0.5) for name, it in found.items() if it.ndim > 1
        }
        return {
            name: (it * np.float32(wide[name]) if name in wide else 1 + it).astype(np.float32)
            for name, it in found.items()
        }

    def base(self, framework: str, dtype: str = "F32", *, sibling: bool = False) -> Path:
        """Return the base in FRAMEWORK and DTYPE, or the SIBLING of it."""
        folder = self.folder / f"{framework}-{dtype}{'-sibling' * sibling}"
        if framework == "mlx":
            torch = self.base("torch", dtype, sibling=sibling)
            return (
                folder
                if folder.exists()
                else must(folder, "convert", "torch-to-mlx", torch, folder)
            )
        if not folder.exists():
            arrays = self.arrays()
            if sibling:
                noise = np.random.default_rng(5).standard_normal(arrays[TRAINED].shape)
                spread = FURTHER * arrays[TRAINED].std()
                arrays[TRAINED] += (spread * noise).astype(np.float32)
            arrays = {name: it.astype(NUMPY[dtype]) for name, it in arrays.items()}
            made.write_base(folder, self.config, arrays, "pt", 1)
        return folder

    def quantized(self) -> Path:
        """Return the base at 8 bits, as mlx-lm writes it."""
        from mlx_lm.utils import load_model, quantize_model, save_config, save_model

        folder = self.folder / "8-bit"
        if not folder.exists():
            model, config = quantize_model(*load_model(self.base("mlx")), group_size=GROUP, bits=8)
            save_model(folder, model)
            save_config(config, config_path=folder / "config.json")
        return folder

    def adapter(
        self, dialect: str, *, dora: bool = False, seed: int = 2, order: int | None = None
    ) -> Path:
        """Return an adapter that nobody recorded anything of, its tensors in some ORDER."""
        folder = self.folder / f"{dialect}-{dora}-{seed}-{order}"
        if not folder.exists():
            shapes = {
                name.removesuffix(".weight"): header.shape
                for name, header in self.layout.items()
                if ".self_attn." in name
            }
            updates = made.random_updates(shapes, RANK, seed=seed, dora=dora)
            chance = None if order is None else random.Random(order)
            made.write_adapter(folder, updates, dialect, chance)
        return folder

    def recorded(self, framework: str, *, dora: bool = False) -> Path:
        """Return an adapter with a record of the base in FRAMEWORK."""
        target = self.folder / f"recorded-{framework}-{dora}"
        if target.exists():
            return target
        source, base = self.adapter("peft", dora=dora), self.base(framework)
        return must(target, "convert", "peft-to-mlx", source, target, "--base", base)

    def other_dialect(self, dialect: str, *, dora: bool) -> Path:
        """Return the adapter of DIALECT as the other one has it, carried by weighbridge."""
        verb = {"peft": "peft-to-mlx", "mlx": "mlx-to-peft"}[dialect]
        target, base = self.folder / f"carried-{dialect}-{dora}", self.base("torch")
        source = self.adapter(dialect, dora=dora)
        if not target.exists():
            must(target, "convert", verb, source, target, "--base", base)
            (target / "weighbridge.json").unlink()  # its record would refuse it, being of the base
        return target


def first(bench: Bench, way: Twice) -> tuple[Path, list[Any]]:
    """Merge by WAY; return the merged model, and what further merges into it are told besides."""
    adapter = bench.adapter(way.dialect, dora=way.kind == "DoRA")
    target, extra = bench.folder / f"merged {way.told}", list[Any]()
    base = bench.quantized() if way.kind == "8-bit" else bench.base(way.framework)
    if way.kind == "8-bit" and way.framework == "torch":
        extra = ["--original", bench.base("torch")]
    return must(target, "merge", base, adapter, target, *extra), extra


def twice(bench: Bench, way: Twice) -> Iterator[Tried]:
    """Merge by WAY, and yield what comes of every second merge."""
    dora, out = way.kind == "DoRA", bench.folder / "out"
    merged, _ = first(bench, way)
    own = bench.adapter(way.dialect, dora=dora)
    copy = bench.adapter(way.dialect, dora=dora, order=7)
    carried = bench.other_dialect(way.dialect, dora=dora)
    for what, adapter in (("the same", own), ("a copy", copy), ("the other dialect", carried)):
        yield run(what, out, "merge", merged, adapter, out)
    if way.kind != "8-bit":
        other, verb = beyond(bench, way, merged)
        yield run("the other framework", out, "merge", other, own, out)
        yield run("convert --adapter", out, "convert", verb, merged, out, "--adapter", own)
        yield run("convert BASE+ADAPTER", out, "convert", verb, f"{merged}+{own}", out)
    else:
        original = ("--original", bench.base("torch"))
        yield run("--promote", out, "merge", merged, own, out, "--promote")
        yield run("--original", out, "merge", merged, own, out, *original)
    yield run("no manifest", out, "merge", undeclared(bench, way, merged), named(bench, way), out)


def beyond(bench: Bench, way: Twice, merged: Path) -> tuple[Path, str]:
    """Return MERGED in the other framework, and the verb that brought it there."""
    other = next(it for it in FRAMEWORKS if it != way.framework)
    verb, target = f"{way.framework}-to-{other}", bench.folder / f"beyond {way.told}"
    return must(target, "convert", verb, merged, target), verb


def undeclared(bench: Bench, way: Twice, merged: Path) -> Path:
    """Return a copy of MERGED that says nothing of how it was made."""
    target = shutil.copytree(merged, bench.folder / f"undeclared {way.told}")
    (target / "weighbridge.json").unlink()
    return target


def named(bench: Bench, way: Twice) -> Path:
    """Return a copy of the adapter of WAY whose configuration names the model it was trained on."""
    source = bench.adapter(way.dialect, dora=way.kind == "DoRA")
    target = shutil.copytree(source, bench.folder / f"named {way.told}")
    config = json.loads((target / "adapter_config.json").read_text())
    key = {"peft": "base_model_name_or_path", "mlx": "model"}[way.dialect]
    base = bench.base("torch" if way.dialect == "peft" else "mlx")
    (target / "adapter_config.json").write_text(json.dumps(config | {key: str(base)}))
    return target


def elsewhere(bench: Bench, way: Elsewhere, *, sibling: bool = True) -> Tried:
    """Merge an adapter by WAY into the SIBLING of its base, or into the base: a control."""
    adapter = bench.recorded(way.recorded, dora=way.kind == "DoRA")
    dtype = "BF16" if way.kind == "BF16" else "F32"
    base = bench.base(way.framework, dtype, sibling=sibling)
    out = bench.folder / ("out" if sibling else f"right {way.told}")
    return run("a sibling" if sibling else "the base", out, "merge", base, adapter, out)


def refused(tried: Tried, why: str) -> bool:
    """Say whether a command was refused because of WHY, and left nothing."""
    return tried.code == REFUSED and not tried.left and why in " ".join(tried.said.split())
