"""Whether weights can be what a configuration says, asked before anything is written.

A class of an MLX library loads exactly the tensors that its configuration asks for; a checkpoint
that lacks some, has others or other shapes is no model, whatever a map could do with its names.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ...errors import BadInputError, MismatchError, UnsupportedError, WeighbridgeError
from ..checkpoints import Header
from ..checkpoints.base import different, require_unwrapped
from ..common.hints import dequantizing
from ..libraries import Target
from ..libraries.transformers import hub_headers
from ..models import Model
from ..quantization.view import is_packed
from .dense import packings
from .manifest import manifest_of

Headers = Mapping[str, Header]
LAYERS: Final = ("num_hidden_layers", "num_layers", "n_layers", "n_layer")


def packed(headers: Headers) -> list[str]:
    """Return the weights that MLX quantized: words of codes, with scales beside them.

    >>> words, scales = Header("U32", (2, 8)), Header("U8", (2, 2))
    >>> packed({"a.weight": words, "a.scales": scales, "b.weight": scales, "b.scales": scales})
    ['a.weight']
    """
    return sorted(name for name in headers if is_packed(headers, name))


def require_dense(model: Model) -> None:
    """Refuse a quantized MLX directory, which has rounded weights and no way to its originals.

    One that a map was recorded for goes back by it: some PyTorch checkpoints are packed too.

    Raises:
        UnsupportedError: the weights are packed.
    """
    if model.path is not None and not model.map_text and packed(model.checkpoint.headers):
        raise UnsupportedError(quantized(model))


def require_described(model: Model) -> None:
    """Refuse a PyTorch MODEL with float8 numbers of which ``config.json`` says nothing.

    Raises:
        UnsupportedError: MLX has no such dtype, and reads their bytes as whole numbers.
    """
    headers = model.checkpoint.headers
    found = [name for name, it in headers.items() if it.dtype in ("F8_E4M3", "F8_E5M2")]
    if model.framework == "torch" and found and not packings(model.config):
        raise UnsupportedError(
            f"{model.spec}: {len(found)} tensors such as {found[0]} are float8, which MLX has not, and"
            " config.json has no quantization_config that says what they stand for; save them in"
            " bfloat16 first"
        )


def quantized(model: Model) -> str:
    """Say that MODEL is quantized, and what to do."""
    found = packed(model.checkpoint.headers)
    settings = model.config.get("quantization")
    bits = settings.get("bits") if isinstance(settings, Mapping) else None
    what = f"{len(found)} weight{'s' * (len(found) > 1)} such as {found[0]}"
    dense = f", or make its weights dense: {dequantizing(model.spec)}"
    return (
        f"{model.spec} is quantized ({what}{f', {bits} bits' if bits else ''}). Take the model that"
        f" it was made from{dense if model.framework == 'mlx' else ''}. An adapter that was trained on"
        f" it is merged into that model with --trained-on {shlex.quote(model.spec)}"
    )


def unfit(model: Model, to: str, problems: Sequence[str]) -> WeighbridgeError:
    """Return what is raised for a MODEL whose tensors do not fit TO."""
    if packed(model.checkpoint.headers):
        return UnsupportedError(quantized(model))
    return MismatchError(f"{model.spec} does not fit {to}", problems)


def as_read(target: Target) -> str:
    """Say what weights must fit that TARGET reads."""
    return f"its config.json, as {target} reads it; correct the one or the other"


def require_possible(model: Model) -> None:
    """Refuse a configuration with more layers than the checkpoint has tensors, before it is built.

    Raises:
        BadInputError: it says so; or there is none and nothing else says what the model is; or
            the tensors are those of a wrapper around it.
    """
    if model.path is None or model.map_text or model.factory:
        return
    if not model.config:
        raise BadInputError(
            f"{model.spec}: no config.json {'beside the weights' if model.folder else 'for one file'},"
            " so nothing says what they are; name the directory that has one, or give a map:"
            " --map FILE.wmap"
        )
    require_unwrapped(model.checkpoint.headers, model.spec)
    count = len(model.checkpoint.headers)
    inner = model.config.get("text_config")
    for config in (model.config, inner if isinstance(inner, Mapping) else {}):
        for key in LAYERS:
            wanted = config.get(key)
            if isinstance(wanted, int) and wanted > count:
                raise BadInputError(
                    f"{model.spec}: config.json says {key} = {wanted:,}, but the checkpoint has"
                    f" {count:,} tensors; one of them belongs to another model"
                )


def reader(model: Model) -> Target | None:
    """Return the class of an MLX library that takes the weights of MODEL, or what becomes of them.

    It is the one that the map was learned from; ``None`` where the map comes from elsewhere.

    Raises:
        MismatchError: the configuration is of another type than when the map was recorded.
        UntrustedError: it asks to run code of its own directory.
    """
    if model.map_text is None:
        return model.library if model.family and not model.family.map else None
    manifest = manifest_of(model)
    recorded = manifest.get("library") if model.map_text == manifest.get("map") else None
    if not isinstance(recorded, Mapping):
        return None
    kind, then = model.config.get("model_type"), recorded.get("model_type")
    if kind != then:
        raise MismatchError(
            f"{model.spec} does not fit its config.json",
            [f"model_type is {kind}; the weights were made for {then}"],
        )
    here = model.library
    same = here and (here.library, here.version) == (recorded.get("name"), recorded.get("version"))
    return here if same else None


def reading(model: Model) -> dict[str, str] | None:
    """Return what a manifest says of the class that takes the weights of MODEL, if one is known."""
    target, manifest = reader(model), manifest_of(model)
    if target is None:  # or it is not installed now; then what was recorded of it stays
        return manifest.get("library") if model.map_text == manifest.get("map") else None
    name, version, kind, module = target.library, target.version, target.model_type, target.module
    return {"name": name, "version": version, "module": module, "model_type": kind}


def misfit(model: Model) -> list[str]:
    """Return how MODEL, in torch's layout, differs from what transformers writes for its config.

    Raises:
        BadInputError: transformers does not take the config.
        UnsupportedError: transformers does not know the model.
    """
    found = model.checkpoint.headers
    layouts = (hub_headers(model.config, layout="saved"), hub_headers(model.config, layout="hub"))
    return min((list(different(wanted, found)) for wanted in layouts), key=len)


def blamed(model: Model, error: UnsupportedError) -> WeighbridgeError:
    """Return ERROR, the refusal of a class to be learned from, or what of MODEL explains it."""
    if model.framework != "torch":
        return error
    try:
        problems = misfit(model)
    except (WeighbridgeError, ImportError):
        return error
    if not problems:
        return error
    summary = f"{error}. And {model.spec} is not what transformers writes for its config.json"
    return MismatchError(summary, problems)


def require_loadable(model: Model, config: Mapping[str, Any], layout: Headers) -> str | None:
    """Make sure that the class which the map was learned from takes LAYOUT, what is to be written.

    Returns:
        What is wrong with the class, where it is not the checkpoint: some take nothing that
        transformers writes. ``None`` if all is well.

    Raises:
        MismatchError: the checkpoint does not fit its configuration; everything is listed.
        UnsupportedError: the class was mended for this, and does not take it all the same.
    """
    target = reader(model)
    problems = list(different(target.parameters(config), layout)) if target else []
    if target is None or not problems or target.completes(config, layout, model.path):
        return None
    try:
        if misfit(model):
            raise unfit(model, as_read(target), problems)
        cause = "it is a checkpoint as transformers writes it"
    except UnsupportedError as error:
        if packed(model.checkpoint.headers):
            raise
        cause = f"it may be incomplete, or the class at fault ({error})"
    count = f"{len(problems)} tensors do not fit" if len(problems) > 1 else "one does not fit"
    found = (
        f"{target} will not load this: {cause}, but of what the class makes of it {count}"
        f" ({problems[0]})"
    )
    if target.repaired:
        raise UnsupportedError(f"{found}; leave --repair out for the weights alone")
    return found


def require_read(model: Model) -> bool:
    """Make sure that the class which takes an MLX directory takes it still; say if there is one.

    Raises:
        MismatchError: weights and configuration are not of one model; everything is listed.
    """
    target = reader(model)
    if target is None:
        return False
    problems = list(different(target.parameters(model.config), model.checkpoint.headers))
    if problems and not target.completes(model.config, model.checkpoint.headers, model.path):
        raise unfit(model, as_read(target), problems)
    return True


def require_made(model: Model, made: Headers, origin: str) -> None:
    """Make sure that an MLX directory holds what was MADE of ORIGIN, names and shapes.

    Raises:
        MismatchError: tensors are missing, left over or of other shapes; everything is listed.
    """
    problems = list(different(made, model.checkpoint.headers))
    if problems:
        raise unfit(model, origin, problems)
