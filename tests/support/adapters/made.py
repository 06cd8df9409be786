"""Bases and adapters made of random numbers, their files in any order and any number of shards."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from weighbridge.converters.checkpoints import Header, Writer
from weighbridge.converters.common.dtypes import CODE, NUMPY
from weighbridge.tests.support.large_models import BLOCK, KINDS, layout_of, random_pieces, size_of

Array = np.ndarray
ROLES: Final = {  # what stands after the path of a module
    "peft": {"a": ".lora_A.weight", "b": ".lora_B.weight", "m": ".lora_magnitude_vector"},
    "mlx": {"a": ".lora_a", "b": ".lora_b", "m": ".m"},
}
FILE: Final = {"peft": "adapter_model.safetensors", "mlx": "adapters.safetensors"}
SMALL: Final = {"hidden_size": 48, "intermediate_size": 80, "head_dim": 16, "vocab_size": 130} | {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # no two sizes that meet in a tensor are equal


class Update(NamedTuple):
    """An update as PEFT lays it out: a (rank, in), b (out, rank), magnitudes (out,) or none."""

    a: Array
    b: Array
    scale: float
    m: Array | None = None


def write(path: Path, arrays: Mapping[str, Array], **metadata: str) -> None:
    """Write ARRAYS as a safetensors file, header and bytes in the order of the mapping."""
    header: dict[str, Any] = {"__metadata__": metadata}
    place = 0
    for name, array in arrays.items():
        offsets = [place, place := place + array.nbytes]
        header[name] = {
            "dtype": CODE[array.dtype],
            "shape": list(array.shape),
            "data_offsets": offsets,
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in arrays.values():
            file.write(np.ascontiguousarray(array).tobytes())


def shuffled(arrays: Mapping[str, Array], order: random.Random) -> dict[str, Array]:
    """Return ARRAYS in another order."""
    names = list(arrays)
    order.shuffle(names)
    return {name: arrays[name] for name in names}


def write_base(
    folder: Path, config: Mapping[str, Any], arrays: Mapping[str, Array], form: str, shards: int
) -> None:
    """Write a model directory, FORM ``pt`` or ``mlx``, its tensors dealt out to SHARDS in turn."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    names = list(arrays)
    if shards == 1:
        write(folder / "model.safetensors", arrays, format=form)
        return
    where = {}
    for number in range(shards):
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        held = names[number::shards]
        write(folder / file, {name: arrays[name] for name in held}, format=form)
        where |= dict.fromkeys(held, file)
    index = {"metadata": {}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def tensors(updates: Mapping[str, Update], dialect: str) -> dict[str, Array]:
    """Return the tensors of UPDATES, by module, as DIALECT names and lays them out."""
    prefix = "base_model.model." if dialect == "peft" else ""
    found = {}
    for module, update in updates.items():
        turned = dialect == "mlx"
        parts = {"a": update.a.T if turned else update.a, "b": update.b.T if turned else update.b}
        if update.m is not None:
            parts["m"] = update.m
        found |= {f"{prefix}{module}{ROLES[dialect][role]}": part for role, part in parts.items()}
    return found


def settings(updates: Mapping[str, Update], dialect: str) -> dict[str, Any]:
    """Return the ``adapter_config.json`` of UPDATES, which have one rank and one scale."""
    first = next(iter(updates.values()))
    rank, dora = len(first.a), first.m is not None
    if dialect == "peft":
        return {
            "peft_type": "LORA",
            "r": rank,
            "lora_alpha": first.scale * rank,
            "use_dora": dora,
            "target_modules": sorted(updates),
        }
    parameters = {"rank": rank, "scale": first.scale, "dropout": 0.0, "keys": sorted(updates)}
    kind = "dora" if dora else "lora"
    return {"fine_tune_type": kind, "num_layers": -1, "lora_parameters": parameters}


def write_adapter(
    folder: Path, updates: Mapping[str, Update], dialect: str, order: random.Random | None = None
) -> None:
    """Write UPDATES as a directory of DIALECT, its tensors in the given or in a random ORDER."""
    folder.mkdir(parents=True)
    text = json.dumps(settings(updates, dialect))
    (folder / "adapter_config.json").write_text(text)
    arrays = tensors(updates, dialect)
    write(folder / FILE[dialect], shuffled(arrays, order) if order else arrays)


def write_large(folder: Path, nbytes: float, max_shard_size: int = 5_000_000_000) -> None:
    """Write a Llama in bfloat16 of about NBYTES; its weights are normal values, used many times."""
    kind = KINDS["llama"]
    fixed, one = (size_of(layout_of(kind, layers)) for layers in (0, 1))
    layers = max(1, round((nbytes - fixed) / (one - fixed)))
    layout = layout_of(kind, layers)
    folder.mkdir()
    values = 0.02 * np.random.default_rng(0).standard_normal(BLOCK // 2, dtype=np.float32)
    noise = memoryview(np.tile(values.astype(NUMPY["BF16"]), 2).view(np.uint8))
    writer = Writer(folder, layout, metadata={"format": "pt"}, max_shard_size=max_shard_size)
    for number, (name, header) in enumerate(layout.items()):
        writer.write(name, random_pieces(noise, 2 * number, header.nbytes))
    writer.close()
    (folder / "config.json").write_text(json.dumps(kind.config | {"num_hidden_layers": layers}))


def llama(layers: int, hidden: int = 48) -> tuple[dict[str, Any], dict[str, Header]]:
    """Return the configuration and the tensors, float32, of a small Llama."""
    kind = KINDS["llama"]
    config = {**kind.config, **SMALL, "num_hidden_layers": layers, "dtype": "float32"}
    config["hidden_size"] = hidden
    wide = SMALL["num_attention_heads"] * SMALL["head_dim"]
    narrow = SMALL["num_key_value_heads"] * SMALL["head_dim"]
    sizes = {"q_proj": (wide, hidden), "k_proj": (narrow, hidden), "v_proj": (narrow, hidden)}
    sizes |= {"o_proj": (hidden, wide)}
    found = layout_of(kind._replace(config=config), layers)
    return config, {
        name: Header("F32", sizes.get(name.split(".")[-2], header.shape))
        for name, header in found.items()
    }


def random_arrays(layout: Mapping[str, Header], seed: int) -> dict[str, Array]:
    """Return normal values of LAYOUT, small as weights are."""
    generator = np.random.default_rng(seed)
    return {
        name: (0.05 * generator.standard_normal(header.shape)).astype(NUMPY[header.dtype])
        for name, header in layout.items()
    }


def random_updates(
    shapes: Mapping[str, tuple[int, int]], rank: int, seed: int, *, dora: bool = False
) -> dict[str, Update]:
    """Return updates of the modules with SHAPES (out, in); scale 2."""
    return dict(_updates(shapes, rank, np.random.default_rng(seed), dora=dora))


def _updates(
    shapes: Mapping[str, tuple[int, int]], rank: int, generator: Any, *, dora: bool
) -> Iterator[tuple[str, Update]]:
    for module, (out, into) in shapes.items():
        a, b = (
            (0.1 * generator.standard_normal(shape)).astype(np.float32)
            for shape in ((rank, into), (out, rank))
        )
        m = (1 + generator.random(out)).astype(np.float32) if dora else None
        yield module, Update(a, b, 2.0, m)
