"""How each MLX library makes its objects from a config, in the order in which it sanitizes.

A protocol yields the model first, then every further object whose ``sanitize`` the library's own
``load_model`` runs. It is lazy: whoever wants the model alone takes the first. All objects are new,
because a ``sanitize`` may change its model (``gemma3_text`` pops a layer).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from ...errors import BadInputError

if TYPE_CHECKING:
    import mlx.core as mx

Config = dict[str, Any]
Protocol = Callable[[ModuleType, Config], Iterator[Any]]
VLM_PARTS: Final = ("text", "vision", "perceiver", "projector", "audio")
VLM_SANITIZERS: Final = {
    "VisionModel": "vision_config",
    "LanguageModel": "text_config",
    "AudioModel": "audio_config",
}


def mlx_lm(module: ModuleType, config: Config) -> Iterator[Any]:
    """Yield the model (mlx-lm 0.32, ``utils.load_model``)."""
    text = config.get("text_config")
    if "quantization_config" not in config and "quantization_config" in (text or {}):
        config["quantization_config"] = config["text_config"]["quantization_config"]
    yield module.Model(module.ModelArgs.from_dict(config))


def mlx_embeddings(module: ModuleType, config: Config) -> Iterator[Any]:
    """Yield the model, then what its vision and language parts add (``utils.load_model``)."""
    args = module.ModelArgs.from_dict(config)
    if hasattr(module, "TextConfig") and hasattr(module, "VisionConfig"):
        args.text_config = module.TextConfig(**args.text_config)
        args.vision_config = module.VisionConfig(**args.vision_config)
    yield module.Model(args)
    for name in ("VisionModel", "LanguageModel"):
        if hasattr(module.Model, name):
            yield from sanitizer(getattr(module.Model, name), getattr(args, VLM_SANITIZERS[name]))


def mlx_vlm(module: ModuleType, config: Config) -> Iterator[Any]:
    """Yield the model, then its vision, language and audio parts (mlx-vlm 0.7, ``load_model``)."""
    config.setdefault("text_config", config.pop("llm_config", {}))
    config.setdefault("vision_config", {})
    config.setdefault("audio_config", {})
    args = module.ModelConfig.from_dict(config)
    for part in VLM_PARTS:
        key = f"{part}_config"
        if hasattr(args, key) and config.get(key) is not None:
            setattr(args, key, getattr(module, f"{part.title()}Config").from_dict(config[key]))
    yield module.Model(args)
    for name, key in VLM_SANITIZERS.items():
        if hasattr(module, name) and hasattr(args, key):
            yield from sanitizer(getattr(module, name), getattr(args, key))


def sanitizer(part: Any, config: Any) -> Iterator[Any]:
    """Yield PART made from CONFIG where it sanitizes; the class itself where there is no config."""
    if hasattr(part, "sanitize"):
        yield part if config is None else part(config)


PROTOCOLS: Final[dict[str, Protocol]] = {
    "mlx-lm": mlx_lm,
    "mlx-embeddings": mlx_embeddings,
    "mlx-vlm": mlx_vlm,
    "weighbridge": mlx_lm,  # the classes that come with it are made as mlx-lm's are
}


def beside(path: Path | None, library: str) -> dict[str, mx.array]:
    """Return the tensors in folders of PATH, not read yet, named as the loader of LIBRARY names them.

    sentence-transformers keeps the layers after the model so: ``2_Dense/model.safetensors``.

    Raises:
        BadInputError: a file there is no safetensors file.
    """
    if path is None or library != "mlx-embeddings":
        return {}
    import mlx.core as mx

    found: dict[str, mx.array] = {}
    for file in sorted(path.glob("*/**/model*.safetensors")):
        try:
            held: Any = mx.load(str(file))
        except RuntimeError as error:
            raise BadInputError(f"{file} is no whole safetensors file: {error}") from error
        found |= {f"{file.parent.name}.{name}": array for name, array in held.items()}
    return found
