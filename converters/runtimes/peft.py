"""An adapter live in PyTorch by PEFT's own loader, and whether that took all of it.

PEFT is imported inside: it checks independently where it is installed, and is needed nowhere.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import MismatchError
from ..common.policy import Policy
from ..models import Model

if TYPE_CHECKING:
    import torch
    from torch import nn

    from .torch import TorchRunner

NAME = "default"  # what PEFT calls an adapter that nobody named


def peft_runner(model: Model, folder: Path) -> TorchRunner:
    """Return MODEL in float32 with the adapter of FOLDER live, loaded by PEFT itself.

    PEFT only warns of tensors that are missing and passes over those that it does not know; every
    tensor is compared with the file.

    Args:
        model: any model with weights, which runs as a class of transformers or of its factory; an
            adapter on it is left aside.
        folder: ``adapter_config.json`` and ``adapter_model.safetensors`` (or ``.bin``).

    Raises:
        MismatchError: PEFT refuses the adapter, or does not load it whole; everything is listed.
        ModuleNotFoundError: PEFT is not installed.
    """
    import peft  # noqa: F401  # fails before a model is built

    from .torch import TorchRunner, build_module

    bare = replace(model, adapter=None)
    live = loaded(build_module(bare), folder, model.spec)
    return TorchRunner(bare, Policy(), live.get_base_model())


def loaded(module: nn.Module, folder: Path, where: str) -> Any:
    """Return PEFT's model of MODULE, of the model WHERE, with the adapter of FOLDER.

    Raises:
        MismatchError: PEFT refuses it, or does not load all of it and nothing else.
    """
    from peft import PeftModel

    summary = f"PEFT cannot load {folder} on {where}"
    with quiet():
        try:
            live = PeftModel.from_pretrained(module, str(folder), adapter_name=NAME).eval()
        except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, OSError) as error:
            reported = str(error).splitlines() or [type(error).__name__]
            raise MismatchError(summary, [line.strip() for line in reported]) from error
        problems = list(differences(live, folder))
    if problems:
        raise MismatchError(f"PEFT does not load {folder} on {where} whole", problems)
    return live


def differences(live: Any, folder: Path) -> Iterator[str]:
    """Yield how the adapter in LIVE, PEFT's model, differs from the files of FOLDER."""
    from peft import get_peft_model_state_dict
    from peft.utils import load_peft_weights

    own: Mapping[str, torch.Tensor] = get_peft_model_state_dict(
        live, adapter_name=NAME, save_embedding_layers=False
    )
    saved = converted(live, load_peft_weights(str(folder), device="cpu"))
    everything = {**live.state_dict(), **own}  # the base of an embedding is in some files too
    yield from (f"{name} is in no file: left at random" for name in sorted(own.keys() - saved))
    for name, tensor in sorted(saved.items()):
        if name not in everything:
            yield f"{name} is loaded into nothing"
        elif not same(everything[name], tensor):
            yield f"{name} has other values than the file"


def converted(live: Any, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return TENSORS as PEFT renames and stacks them for the classes of transformers 5."""
    from peft.utils.transformers_weight_conversion import (
        convert_peft_adapter_state_dict_for_transformers,
    )

    config = live.peft_config[NAME]
    return dict(convert_peft_adapter_state_dict_for_transformers(live, config, dict(tensors), NAME))


def same(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Say whether FOUND has the numbers of WANTED, in a dtype that is at least as wide."""
    import torch

    return found.shape == wanted.shape and torch.equal(found.double(), wanted.double())


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep PEFT's warnings back: what they hint at is compared here, and raised."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
