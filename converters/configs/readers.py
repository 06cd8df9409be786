"""Which dataclass of an MLX library reads a config, and which its parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import Field, fields, is_dataclass
from typing import Any, Final, NamedTuple

from ..libraries import Target
from ..libraries.packages import module as import_module

Config = Mapping[str, Any]


class Reader(NamedTuple):
    """A dataclass that reads a config or a part of one.

    Attributes:
        part: the key of the part, dotted for one inside another; empty for the config itself.
        names: under which the class has rows of its own: library and model type, model type, file;
            of a part, first library, model type of the whole and part.
        fields: of the dataclass, by key.
        dataclass: the class itself; ``None`` where there is none.
    """

    part: str
    names: tuple[str, ...]
    fields: Mapping[str, Field[Any]]
    dataclass: Any = None


# mlx-lm model file -> file and class that read its text_config. Mistral's depends on the text.
TEXT: Final = {
    "gemma3": "gemma3_text:ModelArgs",
    "gemma3n": "gemma3n:TextConfig",
    "gemma4": "gemma4_text:ModelArgs",
    "kimi_k25": "deepseek_v3:ModelArgs",
    "kimi_k3": "kimi_k3:TextArgs",
    "kimi_vl": "kimi_vl:TextArgs",
    "lfm2-vl": "lfm2:ModelArgs",
    "llama4": "llama4:TextArgs",
    "minimax_m3_vl": "minimax_m3_vl:TextArgs",
    "mistral3": "llama:ModelArgs",
    "mistral3/ministral3": "ministral3:ModelArgs",
    "mistral3/mistral4": "mistral4:ModelArgs",
    "muse_glimmer": "muse_glimmer:ModelArgs",
    "muse_spark": "muse_spark:TextArgs",
    "pixtral": "llama:ModelArgs",
    "qwen2_vl": "qwen2:ModelArgs",
    "qwen3_5": "qwen3_5:TextModelArgs",
    "qwen3_5_moe": "qwen3_5:TextModelArgs",
    "qwen3_vl": "qwen3:ModelArgs",
    "qwen3_vl_moe": "qwen3_moe:ModelArgs",
}
PARTS: Final = (
    *("text", "vision", "audio", "perceiver", "projector"),
    *("thinker", "talker", "code_predictor", "code2wav"),
)


def readers(target: Target, config: Config) -> Iterator[Reader]:
    """Yield who reads the parts of CONFIG, then who reads CONFIG itself."""
    for part, dataclass in parts(target, config):
        found = by_name(dataclass)
        file = dataclass.__module__.rpartition(".")[2]
        kind = str(place(config, part).get("model_type") or file)
        within = f"{target.library} {target.model_type} {part}"
        yield Reader(part, (within, f"{target.library} {kind}", kind, file), found, dataclass)
    kind, file = target.model_type, target.module.rpartition(".")[2]
    names = (f"{target.library} {kind}", kind, file)
    yield Reader("", names, target.fields(), target.dataclass())


def by_name(dataclass: Any) -> dict[str, Field[Any]]:
    """Return the fields of DATACLASS by name, none where it is not one."""
    return {field.name: field for field in fields(dataclass)} if is_dataclass(dataclass) else {}


def parts(target: Target, config: Config) -> Iterator[tuple[str, Any]]:
    """Yield the parts that CONFIG has and the class that reads each."""
    if target.library == "mlx-lm":
        file = target.module.rpartition(".")[2]
        text = config.get("text_config")
        if isinstance(text, Mapping) and file in TEXT:
            name = TEXT.get(f"{file}/{text.get('model_type')}", TEXT[file])
            yield "text_config", lm_class(name)
        return
    yield from inside(import_module(target.module) if target.library != "user" else None, config)


def inside(package: Any, config: Config, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the parts of CONFIG, which is ABOVE them, and the class of PACKAGE that reads each."""
    for part in PARTS:
        reader = getattr(package, f"{part.title().replace('_', '')}Config", None)
        own = config.get(f"{part}_config")
        if reader is not None and isinstance(own, Mapping):
            yield f"{above}{part}_config", reader
            yield from inside(package, own, f"{above}{part}_config.")


def place(config: Any, part: str) -> Any:
    """Return the PART of CONFIG that dots lead to.

    >>> place({"a": {"b": {"c": 1}}}, "a.b"), place({"a": 1}, "")
    ({'c': 1}, {'a': 1})
    """
    for key in filter(None, part.split(".")):
        config = config[key]
    return config


def lm_class(name: str) -> Any:
    """Return the class that ``file:Class`` names in mlx-lm."""
    file, _, cls = name.partition(":")
    return getattr(import_module(f"mlx_lm.models.{file}"), cls)
