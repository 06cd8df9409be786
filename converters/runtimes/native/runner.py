"""A directory in MLX's layout, run by the class that reads it as it lies.

A capture of torch's computation gets its weights through a map, so it cannot tell whether the map is
right. The class knows of none.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from ....errors import UnsupportedError
from ...common.policy import Policy
from ...documents.fields import IDS, read_fields
from ...models import Model
from ...models.specs import open as open_model
from .classes import library_module

if TYPE_CHECKING:
    from mlx import nn

    from ..mlx import MlxRunner

GENERATION: Final = dict.fromkeys(
    (
        *("decoder_start_token_id", "bos_token_id", "eos_token_id", "pad_token_id"),
        *("suppress_tokens", "begin_suppress_tokens"),
    ),
    IDS,
)


def class_runner(model: Model, policy: Policy, *, whole: bool = False) -> MlxRunner:
    """Return MODEL run by its class; WHOLE, all of its weights are in memory.

    Raises:
        MismatchError: its tensors are not those that the class has; all that differ are listed.
        BadInputError: the class does not take its configuration.
    """
    from ..mlx import MlxRunner, from_library

    runner = MlxRunner(model, policy, from_library(model, policy.parameter_dtype, whole=whole))
    runner.kind, runner.library = "library", str(model.library)
    return runner


def mlx_model(path: str | Path) -> nn.Module:
    """Return the ``mlx.nn`` module that runs the directory PATH, its weights in it, in eval mode.

    Its class is that of an MLX library, or, for families that none of them has, one that comes with
    Weighbridge: CLIP, ConvNeXt, ResNet, SigLIP, Swin, T5, ViT, wav2vec 2.0, Whisper. These take what transformers'
    processors give (images channels first) and return a dict with the names of transformers' outputs.
    T5 and Whisper generate too, as ``generation_config.json`` says: ``model.generate(ids, count=64)``.

    Args:
        path: a directory in MLX's layout, as ``weighbridge convert torch-to-mlx`` writes it.

    Raises:
        BadInputError: PATH is no such directory, or the class does not take its configuration.
        MismatchError: its tensors are not those that the class has; all that differ are listed.
        UnsupportedError: there is no class for its ``model_type``.

    Example::

        weighbridge.convert("bert", "bert-in-mlx", to="mlx", check="none")
        model = weighbridge.mlx_model("bert-in-mlx")
    """
    model = open_model(path)
    if model.library is None or model.framework != "mlx":
        kind = model.config.get("model_type")
        raise UnsupportedError(
            f"{path} is a {model.framework} model of type {kind}, which no class in MLX reads. Convert"
            " it with weighbridge convert torch-to-mlx, if its type has a class"
        )
    module = library_module(model, model.own_values())
    if hasattr(module, "generation"):
        recorded = read_fields(Path(path) / "generation_config.json", GENERATION)
        module.generation = module.generation.from_dict({**model.config, **recorded})
    module.eval()
    return module
