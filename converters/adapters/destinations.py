"""Programs that load adapters, as data: what each one takes, and the command that uses it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ...errors import WeighbridgeError
from ..documents import read_object
from ..values import Array, LowRank
from .adapter import module_of
from .config import CONFIG
from .expectations import last_layers, position
from .writing import commonest, uniform

EVERY: Final[frozenset[str]] = frozenset()  # model types
HEADS: Final = ("lm_head", "output")
SHOWN: Final = 3  # examples in one line


@dataclass(frozen=True)
class Destination:
    """What a program takes.

    Attributes:
        name: what a user calls it.
        dialect: of the adapters that it reads: ``mlx`` or ``peft``.
        kinds: the kinds of modules, and the model types for which it takes them; empty for all.
        ranks: the largest ranks that it can be started with; empty if it takes any.
        dora: whether it knows DoRA.
        saved: whether it takes ``modules_to_save`` tensors.
        one: what it has once for all updates: ``scale``, ``alpha`` or nothing.
        layered: whether it looks for modules only within the last layers, by their names there.
        command: what to run; ``{folder}``, ``{base}`` and ``{rank}`` stand for themselves.
        heads: the model types whose output heads it takes; ``None`` for all.
    """

    name: str
    dialect: str
    kinds: Mapping[str, frozenset[str]]
    command: str
    ranks: tuple[int, ...] = ()
    dora: bool = False
    saved: bool = False
    one: str = ""
    layered: bool = False
    heads: frozenset[str] | None = None


# vllm/config/lora.py: MaxLoRARanks. vllm/lora/peft_helper.py: no DoRA, no modules_to_save, and one
# scale, lora_alpha / r: rank_pattern and alpha_pattern are not among its fields.
# vllm/lora/utils.py, get_supported_lora_modules: linear layers, and the embedding and the head of
# classes with embedding_modules (models/llama.py, mixtral.py). vllm/lora/model_manager.py: experts
# in PEFT's form for classes with is_3d_moe_weight (gpt_oss.py, qwen3_5.py).
VLLM: Final = Destination(
    "vllm",
    "peft",
    {
        "linear": EVERY,
        "embedding": frozenset({"llama", "mistral", "mixtral"}),
        "experts": frozenset({"qwen3_5_moe"}),
        "experts_in_out": frozenset({"gpt_oss"}),
    },
    "vllm serve {base} --enable-lora --max-lora-rank {rank} --lora-modules adapter={folder}",
    ranks=(1, 8, 16, 32, 64, 128, 256, 320, 512),
    one="scale",
    heads=frozenset({"llama", "mistral", "mixtral"}),
)
# mlx_lm/tuner/utils.py: linear_to_lora_layers takes Linear, Embedding and SwitchLinear, DoRA not of
# the latter; load_adapters refuses every other tensor.
MLX_LM: Final = Destination(
    "mlx-lm",
    "mlx",
    {"linear": EVERY, "embedding": EVERY, "experts": EVERY},
    "mlx_lm.generate --model {base} --adapter-path {folder} --prompt 'Hello'",
    dora=True,
    one="scale",
)
# mlx-swift-lm, Libraries/MLXLMCommon/Adapters/LoRA/LoRAContainer.swift: createReplacementLayer takes
# Linear only; replaceLayers compares keys with names within a layer, of the last num_layers ones.
MLX_SWIFT: Final = Destination(
    "mlx-swift",
    "mlx",
    {"linear": EVERY},
    "let adapter = try LoRAContainer.from(directory: URL(filePath: {folder}));"
    " try adapter.load(into: model)",
    dora=True,
    one="scale",
    layered=True,
)
# llama.cpp, convert_lora_to_gguf.py: lora_A, lora_B and those of embeddings, any other tensor ends
# it, norms of DoRA included; one lora_alpha, divided by each tensor's own rank
# (src/llama-adapter.h, get_scale). It knows neither PEFT's experts (base_layer) nor a Conv1D, whose
# weight it turns as if the update lay that way.
LLAMA_CPP: Final = Destination(
    "llama.cpp",
    "peft",
    {"linear": EVERY, "embedding": EVERY},
    "python convert_lora_to_gguf.py {folder} --base {base} --outfile {folder}/adapter.gguf",
    one="alpha",
)
DESTINATIONS: Final = {it.name: it for it in (VLLM, MLX_LM, MLX_SWIFT, LLAMA_CPP)}


def suited(destination: Destination, updates: Mapping[str, LowRank]) -> Mapping[str, LowRank]:
    """Return UPDATES as DESTINATION can have them: of one rank and scale where it has one for all."""
    return uniform(updates) if _apart(destination, updates) else updates


def problems(
    destination: Destination,
    updates: Mapping[str, LowRank],
    kinds: Mapping[str, str] | None,
    saved: Mapping[str, Array],
    config: Mapping[str, Any],
) -> list[str]:
    """Return why DESTINATION cannot load an adapter; empty if it can.

    Args:
        destination: the program.
        updates: by parameter, in the naming of its dialect, as ``suited`` returns them.
        kinds: of the base's modules; without them a weight of two axes is a linear layer's.
        saved: ``modules_to_save`` tensors.
        config: ``config.json`` of the base.
    """
    family = str(config.get("model_type", ""))
    found = [_whole(destination, saved), _dora(destination, updates), _rank(destination, updates)]
    found += _kinds(destination, updates, kinds, family)
    found += [_apart(destination, updates), _layers(destination, updates, kinds)]
    found.append(_heads(destination, updates, config, family))
    return [f"{destination.name} {what}" for what in found if what]


def _whole(destination: Destination, saved: Mapping[str, Array]) -> str:
    if destination.saved or not saved:
        return ""
    return f"loads no modules_to_save tensors, and there are {_some(saved)}"


def _dora(destination: Destination, updates: Mapping[str, LowRank]) -> str:
    norms = [name for name, update in updates.items() if update.magnitude is not None]
    return "" if destination.dora or not norms else f"does not know DoRA ({_some(norms)})"


def _rank(destination: Destination, updates: Mapping[str, LowRank]) -> str:
    rank = max((update.rank for update in updates.values()), default=0)
    if not destination.ranks or rank <= destination.ranks[-1]:
        return ""
    return f"takes ranks up to {destination.ranks[-1]}, and the largest is {rank}"


def _kinds(
    destination: Destination,
    updates: Mapping[str, LowRank],
    kinds: Mapping[str, str] | None,
    family: str,
) -> list[str]:
    by_kind: dict[str, list[str]] = {}
    for name, update in updates.items():
        known = "experts" if update.lead else "linear"
        kind = known if not kinds else kinds.get(module_of(name), "parameter")
        families = destination.kinds.get(kind)
        if families is None or (families and family not in families):
            by_kind.setdefault(kind, []).append(name)
    return [
        f"puts no adapter on modules of kind {kind} of {family or 'this model'} ({_some(names)})"
        for kind, names in sorted(by_kind.items())
    ]


def _apart(destination: Destination, updates: Mapping[str, LowRank]) -> str:
    """Say which updates differ in what DESTINATION has once."""
    if not destination.one or not updates:
        return ""
    alpha = destination.one == "alpha"
    found = {name: it.scale * (it.rank if alpha else 1) for name, it in updates.items()}
    common = commonest(found.values())
    others = [name for name, value in found.items() if value != common]
    return f"has one {destination.one} for all, and {_some(others)} differ" if others else ""


def _layers(
    destination: Destination, updates: Mapping[str, LowRank], kinds: Mapping[str, str] | None
) -> str:
    if not destination.layered:
        return ""
    places = {name: position(module_of(name)) for name in updates}
    if outside := [name for name, place in places.items() if place is None]:
        return f"puts adapters on modules within layers only, not on {_some(outside)}"
    stacks = {place.stack for place in places.values() if place}
    if len(stacks) > 1:
        return f"puts adapters on one stack of layers, not on those of {_some(stacks)}"
    _, missing = last_layers(map(module_of, updates), kinds or ())
    if not missing:
        return ""
    return (
        "can name only the last layers, and the same modules in each of them;"
        f" there is no update of {_some(missing)}"
    )


def _heads(
    destination: Destination, updates: Mapping[str, LowRank], config: Mapping[str, Any], family: str
) -> str:
    heads = [name for name in updates if module_of(name).rpartition(".")[2] in HEADS]
    inner = config.get("text_config")
    sections = (config, inner if isinstance(inner, Mapping) else {})
    if heads and any(it.get("tie_word_embeddings") for it in sections):
        return f"cannot change a head that is tied to the embedding ({_some(heads)})"
    if heads and destination.heads is not None and family not in destination.heads:
        return f"puts no adapter on the head of {family or 'this model'} ({_some(heads)})"
    return ""


def _some(names: Iterable[str]) -> str:
    """Return a few of NAMES, and how many more there are.

    >>> _some(["a", "b", "c", "d"])
    'a, b, c and 1 more'
    """
    listed = sorted(names)
    more = f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return ", ".join(listed[:SHOWN]) + more


def next_command(
    destination: Destination, folder: str | Path, base: str, rank: int | None = None
) -> str:
    """Return the command that uses the adapter in FOLDER on BASE; RANK is the largest of its ranks.

    >>> next_command(VLLM, "out", "base", rank=12)
    'vllm serve base --enable-lora --max-lora-rank 16 --lora-modules adapter=out'
    """
    rank = rank or rank_in(Path(folder))
    allowed = next((limit for limit in destination.ranks if limit >= rank), rank)
    quote = json.dumps if destination is MLX_SWIFT else shlex.quote
    return destination.command.format(folder=quote(str(folder)), base=quote(base), rank=allowed)


def rank_in(folder: Path) -> int:
    """Return the largest rank that the PEFT configuration in FOLDER names; 1 if it names none."""
    try:
        config = read_object(folder / CONFIG)
        return max(map(int, (config["r"], *(config.get("rank_pattern") or {}).values())))
    except (OSError, WeighbridgeError, ValueError, KeyError, TypeError, AttributeError):
        return 1
