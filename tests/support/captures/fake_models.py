"""One base model of every model type of transformers, without weights, and inputs for it.

A configuration is the class's default with a few layers only: sizes stay as the class has them, so they
fit each other, and nothing is computed or allocated with fake tensors. What types need beside that, and
inputs that no rule gives, are data: ``fake_models.toml``.
"""

from __future__ import annotations

import inspect
import re
import tomllib
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from weighbridge.tests.support.atlas.tiny import merged
from weighbridge.tests.support.captures.zoo import lively

BATCH: Final = 2
TOKENS: Final = 16
FRAMES: Final = 128
LAYERS: Final = re.compile(r"(^|_)(n_?layers?|num_(\w+_)?layers|\w+_layers|depth|num_blocks)$")
REQUIRED: Final = {"prediction_length": 8}  # without which some configurations build no model
TABLE: Final = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
DTYPES: Final = {"float": torch.float32, "long": torch.int64, "bool": torch.bool}
IMAGE_SIZES: Final = "image_size img_size"
SMALL: Final = "made_small"  # what the configuration of a model that is run has
SIDE: Final = 64  # of images for models that are run and take any
LARGEST: Final = 1.6e8  # parameters of a model that is run
UNSET: Final = 1e4  # no weight is drawn so large
EMPTY: Final[Mapping[str, Any]] = MappingProxyType({})
KEPT: Final = re.compile(r"predictor|mtp|nextn|dense|upsampl|conv_|down|skip|first_|shared")


def model_types() -> list[str]:
    """Return every model type that has a base model."""
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return sorted(MODEL_MAPPING_NAMES)


def shrunk(config: Any) -> dict[str, Any]:
    """Return the values of CONFIG that leave few layers, of every kind that it has."""
    values = {k: v for k, v in vars(config).items() if not k.startswith("_")}
    changes: dict[str, Any] = {}
    for name, count in values.items():
        if not LAYERS.search(name) or KEPT.search(name) or type(count) is not int or count <= 2:
            continue
        lists = {
            key: value
            for key, value in values.items()
            if isinstance(value, list) and len(value) == count
        }
        few = max([2, *(_prefix(value) for value in lists.values())])
        if few < count:
            changes |= {name: few, **{key: value[:few] for key, value in lists.items()}}
    return changes


def _prefix(kinds: list[Any]) -> int:
    """Return how many of KINDS hold every kind, when they are names."""
    if not all(isinstance(kind, str) for kind in kinds):
        return 2
    return max(kinds.index(kind) for kind in set(kinds)) + 1


def configuration(model_type: str, own: Mapping[str, Any] = EMPTY) -> Any:
    """Return the configuration of MODEL_TYPE with few layers, in its parts too, and settings OWN."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return _few(CONFIG_MAPPING[model_type], merged(TABLE["settings"].get(model_type, {}), own))


def _few(cls: type, settings: Mapping[str, Any]) -> Any:
    """Return the configuration of CLS with few layers and SETTINGS, those of its parts in tables."""
    needed = REQUIRED if hasattr(cls(), "prediction_length") else {}
    whole = cls(**needed)
    changes = {**needed, **shrunk(whole), **settings}
    for name in cls.sub_configs:
        part = getattr(whole, name, None)
        if part is not None and part is not whole:
            own = {k: v for k, v in part.to_dict().items() if k != "per_layer_config"}  # made anew
            changes[name] = {**own, **shrunk(part), **settings.get(name, {})}
    try:
        return cls(**changes)
    except Exception as error:
        if settings and not isinstance(error, ImportError):
            raise ValueError(f"{cls.__name__} does not take {dict(settings)}: {error}") from error
        return whole  # its layers are of too many kinds to be few


def configured(model_type: str, own: Mapping[str, Any] = EMPTY) -> Any:
    """Return the configuration of MODEL_TYPE as it is measured: without a cache, widths of heads stated."""
    config = configuration(model_type, own)
    for part in parts(config):
        part.use_cache = False
        with suppress(Exception):  # it may be one of each layer
            if part.head_dim is None:
                part.head_dim = part.hidden_size // part.num_attention_heads
    return config


def small(model_type: str) -> Any:
    """Return the configuration of MODEL_TYPE as it is measured, smaller in what need not fit anything."""
    config = configured(model_type, TABLE["small"].get(model_type, {}))
    for part in parts(config):
        for name, value in [*vars(part).items()]:
            if type(value) is int:
                setattr(part, name, _least(name, value))
    setattr(config, SMALL, True)
    if first(config, IMAGE_SIZES, None) is None:  # it takes any
        config.image_size = SIDE
    return config


def small_model(model_type: str) -> torch.nn.Module:
    """Return the base model of MODEL_TYPE, small and with weights as large as trained ones."""
    config = small(model_type)
    with torch.device("meta"):
        count = sum(p.numel() for p in built(config).parameters())
    if count > LARGEST:
        raise ValueError(f"{count / 1e6:.0f} M parameters: a size is missing in fake_models.toml")
    model = built(config)
    with torch.no_grad():
        for weight in model.parameters():  # some are left as the memory was
            if weight.is_floating_point() and not (weight.abs() < UNSET).all():
                weight.normal_(std=0.02)
    return lively(model)


def _least(name: str, value: int) -> int:
    limits = (most for pattern, most in TABLE["most"].items() if re.search(pattern, name))
    return min([value, *limits])


def built(config: Any) -> torch.nn.Module:
    """Return the base model of CONFIG in evaluation mode.

    Some types have one that takes a part of their configuration, and some one that ``AutoModel`` does not find.
    """
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    names = MODEL_MAPPING_NAMES[config.model_type]
    name = names if isinstance(names, str) else names[0]
    model: Any = getattr(transformers, name, None) or _unlisted(name, type(config))
    wanted = model.config_class or type(config)
    fitting = (part for part in parts(config) if isinstance(part, wanted))
    return model._from_config(next(fitting, config)).eval()


def _unlisted(name: str, config: type) -> Any:
    """Return the class NAME beside CONFIG, which transformers does not name among its own."""
    return getattr(import_module(config.__module__.replace("configuration_", "modeling_")), name)


def fake_model(model_type: str) -> tuple[torch.nn.Module, FakeTensorMode]:
    """Return the base model of MODEL_TYPE in evaluation mode, all of its tensors fake."""
    config = configured(model_type)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with suppress(Exception), mode:  # so that whole numbers that it keeps as tensors are known
        return built(config), mode
    with torch.device("meta"):
        model = built(config)
    with mode:
        model.to_empty(device="cpu")
    return model, mode


def parts(config: Any) -> Iterator[Any]:
    """Yield CONFIG and the configurations inside it."""
    yield config
    for name in getattr(type(config), "sub_configs", ()):
        part = getattr(config, name, None)
        if part is not None and part is not config:
            yield from parts(part)


def first(config: Any, names: str, default: Any) -> Any:
    """Return the first of NAMES that CONFIG or a part of it has."""
    for name in names.split():
        for part in parts(config):
            value = getattr(part, name, None)
            if value is not None:
                return value
    return default


def image(config: Any) -> tuple[int, ...]:
    """Return the shape of one image: channels, height, width."""
    size = 1536 if config.model_type == "depth_pro" else first(config, IMAGE_SIZES, 224)
    if isinstance(size, Mapping):
        size = [size["height"], size["width"]]
    sides = [size, size] if isinstance(size, int) else list(size)[-2:]
    return (first(config, "num_channels in_channels in_chans", 3), *sides)


def spectrogram(config: Any) -> tuple[int, ...]:
    """Return the shape of one spectrogram, time last for models that ask for all of it, as Whisper does."""
    bands = first(config, "input_dim num_mel_bins n_mels mel_bins input_feat_per_channel", 80)
    length = getattr(config, "max_source_positions", None)
    if length and hasattr(config, "scale_embedding") and not hasattr(config, "conv_channels"):
        return bands, 2 * length
    return FRAMES, bands


def history(config: Any) -> int:
    """Return how many steps a model of time series reads, with those that its lags need."""
    context = first(config, "context_length", 64) or 64
    return context + max(getattr(config, "lags_sequence", None) or [0])


def width(config: Any) -> int:
    """Return the width of hidden states."""
    return first(config, "hidden_size d_model embed_dim", 32)


def patches(config: Any) -> tuple[int, int]:
    """Return how many patches of an image that was cut into patches there are, and their size."""
    patch, times = (
        first(config, names, default)
        for names, default in (("patch_size", 14), ("temporal_patch_size", 1))
    )
    return 64, first(config, "in_channels num_channels", 3) * times * patch * patch


def _clip(config: Any) -> tuple[int, ...]:
    """Return how many frames a model of films takes; nothing for one of images."""
    if config.model_type == "instructblipvideo":
        return (4,)
    films = hasattr(config, "tubelet_size") or hasattr(config, "attention_type")
    return (config.num_frames,) if films and hasattr(config, "num_frames") else ()


def _audio_channels(config: Any) -> tuple[int, ...]:
    """Return the channels of codecs, which name them; other models take none."""
    codec = hasattr(config, "codebook_size") or hasattr(config, "audio_channels")
    return (getattr(config, "audio_channels", 1),) if codec else ()


def _variates(config: Any) -> tuple[int, ...]:
    """Return how many series are read at once; one alone has no axis in the older models."""
    count = first(config, "num_input_channels input_size", 1)
    return () if hasattr(config, "lags_sequence") and count == 1 else (count,)


Shape = Callable[[Any], tuple[int, ...]]
# input -> its shape after the batch, made of the configuration
FLOATS: Final[dict[str, Shape]] = {
    "pixel_values": lambda config: (*_clip(config), *image(config)),
    "pixel_values_videos": lambda config: (
        first(config, "num_frames frames_per_clip", 8),
        *image(config),
    ),
    "input_features": spectrogram,
    "input_values": lambda config: (*_audio_channels(config), 8000),
    "past_values": lambda config: (history(config), *_variates(config)),
    "hidden_states": lambda config: (TOKENS, width(config)),
    "states": lambda config: (TOKENS, config.state_dim),
    "actions": lambda config: (TOKENS, config.act_dim),
    "rewards": lambda _: (TOKENS, 1),
    "returns_to_go": lambda _: (TOKENS, 1),
    "inputs_embeds": lambda config: (TOKENS, width(config)),
    "latents": lambda config: (width(config), TOKENS),
    "state": lambda config: (first(config, "max_state_dim", 32),),
}
IDS: Final = frozenset(["task_inputs", "timesteps"])  # beside those that end in _ids
KNOWN: Final = (frozenset(FLOATS) - {"inputs_embeds"}) | {
    "input_ids",
    "attention_mask",
    "decoder_input_ids",
    "timesteps",
}
# types whose tokens come several at a time -> input -> how many
CODEBOOKS: Final[dict[str, dict[str, Callable[[Any], int]]]] = {
    "dia": {"decoder_input_ids": lambda config: config.decoder_config.num_channels},
    "kyutai_speech_to_text": {"input_ids": lambda config: config.num_codebooks + 1},
    "csm": {"input_ids": lambda config: config.num_codebooks},
}


def inputs_of(model: torch.nn.Module, all_known: bool = False) -> dict[str, torch.Tensor]:
    """Return what the forward of MODEL needs: its main input, what has no default, a decoder's ids.

    What depends on the values of these alone, as positions of patches do, is made by transformers
    itself, as for its own exports. ALL_KNOWN: everything in the signature that a value is known for.
    """
    from transformers.exporters.utils import precompute_export_inputs

    config = model.config
    names = _needed(model)
    if all_known:
        parameters = inspect.signature(model.forward).parameters
        names += [name for name in parameters if name in KNOWN and name not in names]
    tables = ("inputs", "small inputs") if hasattr(config, SMALL) else ("inputs",)
    likes = [TABLE[table].get(config.model_type, {}) for table in tables]
    given = {name: drawn(like) for name, like in ChainMap(*reversed(likes)).items()}
    known = {**_grids(names, config), **given}
    names += [name for name in given if name not in names]
    inputs = {name: known[name] if name in known else made(name, config) for name in names}
    with suppress(Exception):  # text alone, of a model that takes images too
        precompute_export_inputs(model, inputs)
    return inputs


def _needed(model: torch.nn.Module) -> list[str]:
    parameters = inspect.signature(model.forward).parameters
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [n for n, p in parameters.items() if p.default is p.empty and p.kind not in kinds]
    main = model.main_input_name
    names = [main] if isinstance(main, str) else list(main)
    if hasattr(model, "logit_scale"):  # two towers that are compared
        names += ["input_ids", "attention_mask", "pixel_values"]
    if getattr(model.config, "is_encoder_decoder", False):
        names.append("decoder_input_ids")
    return list(dict.fromkeys([*needed, *(name for name in names if name in parameters)]))


def drawn(like: str | list[Any]) -> torch.Tensor:
    """Return a tensor as the table says it: dtype and sizes, or its whole numbers.

    >>> drawn("long 2 16").shape, drawn([[8, 8]])
    (torch.Size([2, 16]), tensor([[8, 8]]))
    """
    if isinstance(like, list):
        return torch.tensor(like)
    dtype, *sizes = like.split()
    shape = [int(size) for size in sizes]
    if dtype == "float":
        return torch.randn(shape)
    if dtype == "ones":
        return torch.ones(shape, dtype=torch.long)
    return torch.randint(0, 2, shape).to(DTYPES[dtype])


def made(name: str, config: Any) -> torch.Tensor:
    """Return a tensor for the input NAME."""
    if name in IDS or name.endswith("_ids"):
        books = CODEBOOKS.get(config.model_type, {}).get(name)
        return torch.randint(0, 2, (BATCH, TOKENS, *([books(config)] if books else ())))
    if name.endswith("mask"):
        return torch.ones(BATCH, *_masked(name, config), dtype=torch.long)
    if name == "past_time_features":
        return torch.randn(BATCH, history(config), config.num_time_features)
    shape = FLOATS.get(name)
    if shape is None:
        raise ValueError(f"no value known for the input {name!r}")
    return torch.randn(BATCH, *shape(config))


def _masked(name: str, config: Any) -> tuple[int, ...]:
    """Return the shape that the mask NAME covers, after the batch."""
    if name == "past_observed_mask":
        return (history(config),)
    if "pixel" in name:
        return image(config)[1:]
    return (FRAMES if "feature" in name or "mel" in name else TOKENS,)


def _grids(names: list[str], config: Any) -> dict[str, torch.Tensor]:
    """Return patches of one image, eight by eight, and their grid, where a grid is asked for."""
    if not {"grid_thw", "image_grid_thw"} & set(names):
        return {}
    rows = torch.randn(patches(config))
    grid = torch.tensor([[1, 8, 8]])
    return {
        "hidden_states": rows,
        "pixel_values": rows,
        "grid_thw": grid,
        "image_grid_thw": grid,
        "merge_sizes": torch.tensor([1]),
    }
