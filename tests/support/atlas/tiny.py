"""Tiny random checkpoints of every model type that transformers and mlx-lm share.

    python -m weighbridge.tests.support.atlas.tiny TYPE FOLDER [hub]

The sizes are data (`sizes.py`); every norm, bias and correction bias is perturbed, so that none
can be dropped, swapped or transposed unseen.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from weighbridge.tests.support.atlas import hub, sizes, tower_sizes

LAYOUTS = ("saved", "hub")
GAIN = 1.5  # of a matrix that is drawn like trained ones, times the root of its inputs
GENERATING = ("AutoModelForImageTextToText", "AutoModelForCausalLM")
BARE = ("AutoModel",)
AUTOS = {"mlx-lm": GENERATING, "mlx-vlm": (*GENERATING, *BARE), "mlx-embeddings": BARE}
# What a library's class for a type is, where it is not what the library's others are.
PLAIN = {
    ("mlx-embeddings", "modernbert"): ("AutoModelForMaskedLM",),
    ("mlx-embeddings", "qwen3_vl"): GENERATING,
    ("mlx-vlm", "bert"): BARE,
    ("mlx-vlm", "openai_privacy_filter"): ("AutoModelForTokenClassification",),
    ("mlx-vlm", "llama4"): GENERATING[:1],
    ("mlx-vlm", "qwen3_omni_moe"): ("AutoModelForMultimodalLM",),
    ("mlx-vlm", "pp_doclayout_v3"): ("AutoModelForObjectDetection",),
    ("mlx-vlm", "rt_detr_v2"): ("AutoModelForObjectDetection",),
}
LARGEST = 4_000_000  # parameters: more means that a size is missing in sizes.py
WIDER = {"pp_doclayout_v3": 9_000_000, "sam3_video": 23_000_000}  # some widths are fixed in a class
TOWERS = ("vision_config", "audio_config", "image_config")
# What makes numbers of pictures, which no tiny model needs: its pictures are numbers.
PROCESSOR = {"do_normalize": True, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
STEPS = ("A_log", "dt_bias", "dt_proj.bias")  # keep their scale: exponents and time steps


class Tiny(NamedTuple):
    """A checkpoint that was made: its folder, and what transformers built it from."""

    folder: Path
    config: Any  # transformers.PreTrainedConfig
    model: Any  # the torch model whose weights were saved, float32, in eval mode


def types(library: str = "mlx-lm") -> list[str]:
    """Return every model type that LIBRARY and transformers implement, renamed ones included.

    Of mlx-vlm those that mlx-lm does not read by default: with towers, or unknown to it. ``olmo`` is
    listed although importing mlx-lm's module for it ends the process.
    """
    if library != "mlx-lm":
        return sorted(others(library))
    from pkgutil import iter_modules

    import mlx_lm.models
    import mlx_lm.utils
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    modules = {module.name for module in iter_modules(mlx_lm.models.__path__)}
    return sorted((modules | set(mlx_lm.utils.MODEL_REMAPPING)) & set(CONFIG_MAPPING))


def others(library: str) -> Iterator[str]:
    """Yield the types that LIBRARY, another than mlx-lm, and transformers implement."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    from weighbridge.converters.libraries.finding import module_of

    for kind, cls in CONFIG_MAPPING.items():
        config = {"model_type": kind}
        sees = any(name in cls.sub_configs for name in TOWERS)
        if module_of(library, config) and (
            sees or library == "mlx-embeddings" or not module_of("mlx-lm", config)
        ):
            yield kind


def layouts(model_type: str) -> tuple[str, ...]:
    """Return the layouts in which checkpoints of MODEL_TYPE lie: both where they differ."""
    return LAYOUTS if model_type in hub.LAYOUTS else LAYOUTS[:1]


def make(
    model_type: str,
    folder: Path,
    layout: str = "saved",
    own: Mapping[str, Any] | None = None,
    *,
    gain: float = 0,
    library: str = "mlx-lm",
) -> Tiny:
    """Build a tiny random model of MODEL_TYPE and save it in FOLDER.

    Args:
        model_type: one of `types()`.
        folder: made when it does not exist.
        layout: ``saved``, as ``save_pretrained`` of transformers 5 writes it, or ``hub``, as the
            published checkpoints of that type have it; one of `layouts(model_type)`.
        own: values for the configuration, on top of those in `sizes.OVERRIDES`; parts nest.
        library: whose class the model is for: one of mlx-embeddings wants no head.
        gain: of every matrix, such as `GAIN`; 0 leaves them as small as transformers draws them.

    Raises:
        Whatever transformers raises where no such model can be built.
    """
    from transformers.utils import logging

    logging.disable_progress_bar()
    folder, own = Path(folder), own or {}
    own = merged(tower_sizes.OF_LIBRARY.get(library, {}).get(model_type, {}), own)
    if layout == "hub":
        own = merged(hub.SIZES.get(model_type, {}), own)
    if model_type in sizes.BORROWED:
        made = borrow(sizes.BORROWED[model_type], model_type, folder, own, gain)
    else:
        autos = PLAIN.get((library, model_type), AUTOS[library])
        made = build(model_type, folder, own, gain, autos)
    if layout == "hub":
        hub.publish(model_type, folder)
    if any(getattr(made.config, name, None) is not None for name in TOWERS):
        (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    return reread(made) if layout == "hub" and model_type in hub.REREAD else made


def reread(made: Tiny) -> Tiny:
    """Return MADE with the weights that transformers reads from the packed ones.

    Where it also rounds what enters a layer, which no MLX class does, the layers stay plain ones.
    """
    import torch

    plain = {"attn_implementation": "eager", "experts_implementation": "eager"}
    model = type(made.model).from_pretrained(made.folder, dtype=torch.float32, **plain).eval()
    state = model.state_dict()
    scales = {name: state.pop(name) for name in [*state] if name.endswith(".weight_scale")}
    if not scales:
        return made._replace(model=model)
    unpacked = {name: it * scales.get(f"{name}_scale", 1) for name, it in state.items()}
    made.model.load_state_dict(unpacked)
    return made


def build(
    model_type: str,
    folder: Path,
    own: Mapping[str, Any],
    gain: float,
    autos: tuple[str, ...] = GENERATING,
) -> Tiny:
    """Build a random model of MODEL_TYPE and save it in FOLDER as transformers does."""
    import torch

    settings = configuration(model_type, own)
    torch.manual_seed(0)
    plain = {"attn_implementation": "eager", "experts_implementation": "eager"}
    model = torch_class(settings, autos).from_config(settings, **plain)
    model = model.eval().float()
    perturb(model)
    amplify(model, gain)
    model.save_pretrained(folder)
    if autos == AUTOS["mlx-embeddings"]:
        add_layers(model_type, folder)
    return Tiny(folder, model.config, model)


def add_layers(model_type: str, folder: Path) -> None:
    """Save the layers behind MODEL_TYPE in FOLDER as sentence-transformers does, each in its own."""
    import torch
    from safetensors.torch import save_file

    rows = sizes.BEHIND.get(model_type, {})
    for name, shape in rows.items():
        (folder / name).mkdir()
        weight = torch.randn(shape, generator=torch.Generator().manual_seed(2)) / shape[1] ** 0.5
        save_file({"linear.weight": weight}, folder / name / "model.safetensors")
    if rows:
        listed = [{"idx": i, "path": it} for i, it in enumerate(("", *rows))]
        (folder / "modules.json").write_text(json.dumps(listed))


def borrow(
    how: sizes.Borrowed, model_type: str, folder: Path, own: Mapping[str, Any], gain: float
) -> Tiny:
    """Build the donor of MODEL_TYPE in FOLDER, then rewrite the files as this type has them."""
    from safetensors.torch import load_file, save_file
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    made = build(how.donor, folder, own, gain)
    tensors = {
        re.sub(f"^{re.escape(how.prefix[0])}", how.prefix[1], name): tensor
        for name, tensor in load_file(folder / "model.safetensors").items()
        if not name.startswith(how.drop)
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    settings = getattr(made.config, how.part) if how.part else made.config
    if how.wrap:
        settings = CONFIG_MAPPING[model_type](**{how.wrap: settings.to_dict()})
    settings.save_pretrained(folder)
    return made._replace(config=settings)


def configuration(model_type: str, own: Mapping[str, Any]) -> Any:
    """Return the transformers configuration of the tiny MODEL_TYPE, changed by OWN."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    cls = CONFIG_MAPPING[model_type]
    usual = merged(tower_sizes.OVERRIDES.get(model_type, {}), sizes.OVERRIDES.get(model_type, {}))
    own = merged(usual, own)
    parts = dict(nested(cls(), own))
    table = sizes.TEXT if "text_config" not in parts else {**sizes.WRAPPER, **tower_sizes.TOKENS}
    return filled(cls, table, {**own, **parts})


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return BELOW with the values of ABOVE; configurations of parts are merged in turn."""
    parts = {k: merged(below.get(k, {}), v) for k, v in above.items() if k.endswith("_config")}
    return {**below, **above, **parts}


def nested(whole: Any, own: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the tiny version of every configuration inside WHOLE, as plain dictionaries."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    tables = {"vision_config": sizes.VISION, "audio_config": sizes.AUDIO}
    for name, cls in type(whole).sub_configs.items():
        part = getattr(whole, name, None)
        if name in own or part not in (None, whole):
            found = type(part) if part is not None else getattr(cls, "config_class", cls)
            found = (
                CONFIG_MAPPING[own[name]["model_type"]]
                if "model_type" in own.get(name, ())
                else found
            )
            yield name, filled(found, tables.get(name, sizes.TEXT), own.get(name, {})).to_dict()


def filled(cls: type, table: Mapping[str, Any], own: Mapping[str, Any]) -> Any:
    """Return a CLS with the sizes of TABLE that it knows, and all of OWN."""
    known = {*cls().to_dict(), *cls.attribute_map, *cls.__annotations__}
    values = {key: value for key, value in table.items() if key in known} | dict(own)
    return cls(**{key: value for key, value in values.items() if value is not sizes.DROP})


def torch_class(settings: Any, autos: tuple[str, ...] = GENERATING) -> Any:
    """Return the first of transformers' AUTOS that builds SETTINGS, after a check of the size."""
    import torch
    import transformers

    for auto in (getattr(transformers, name) for name in autos):
        if type(settings) in auto._model_mapping:
            with torch.device("meta"):
                count = sum(p.numel() for p in auto.from_config(settings).parameters())
            if count > WIDER.get(settings.model_type, LARGEST):
                raise ValueError(f"{count / 1e6:.0f} M parameters: a size is missing in sizes.py")
            return auto
    raise ValueError(f"no language model in transformers for {settings.model_type}")


def perturb(model: Any, seed: int = 1) -> None:
    """Add noise to every parameter and buffer that is saved, more to vectors than to matrices."""
    import torch

    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in model.state_dict(keep_vars=True).items():
            if value.is_floating_point() and not name.endswith(STEPS):
                scale = 0.2 if value.ndim == 1 else 0.1
                value.add_(torch.randn(value.shape, generator=noise) * scale)


def amplify(model: Any, gain: float) -> None:
    """Scale every matrix of MODEL to GAIN over the root of the number of its inputs; 0 leaves it."""
    import torch

    with torch.no_grad():
        for value in model.parameters():
            if gain and value.ndim > 1 and value.is_floating_point() and value.std() > 0:
                inputs = value.shape[-1] if value.ndim == 3 else value[0].numel()
                value.mul_(gain / inputs**0.5 / value.std())


if __name__ == "__main__":
    made = make(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:4])
    print(sum(value.numel() for value in made.model.parameters()), "parameters in", made.folder)
