"""Open models for a job: maps found, adapters fitted and named like the model's own weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...errors import BadInputError, MismatchError
from ..adapters import Adapter, fit
from ..adapters.differences import differing
from ..adapters.merging.modules_to_save import ModulesToSave
from ..checkpoints.open import FORMATS
from ..common.repositories import local
from ..common.steps import step
from ..maps.binding.weightmap import WeightMap
from ..maps.sources.torch_side import with_torch_side
from ..models import Model
from ..models import open as open_model
from ..models.program_files import program_in
from ..models.specs import ADAPTER_FILES, no_model
from ..quantization import Dequantized
from .adapter_names import Side, side_of
from .manifest import manifest_of

FOREIGN = {".gguf": "GGUF", ".h5": "Keras", ".msgpack": "Flax", ".onnx": "ONNX"}


def open(  # noqa: A001
    spec: str,
    *,
    trust_code: str | None = None,
    map: str | None = None,  # noqa: A002
    options: Mapping[str, Any] = {},
) -> Model:
    """Open what SPEC names, by its headers; an adapter is fitted to its base.

    Args:
        spec: a directory, ``DIRECTORY+ADAPTER``, a ``.mlpackage``, an ``.onnx``, ``MODULE:FUNCTION``, a name on the hub.
        trust_code: ``module:function`` that builds the architecture.
        map: name or path of a ``.wmap``.
        options: arguments of the function that builds it.

    Raises:
        BadInputError: SPEC names nothing, or not what it claims to be.
        MismatchError: the adapter is partial, or made for another model.
        UntrustedError: the directory asks to run code that TRUST_CODE does not name.
    """
    spec = local(str(spec))
    step(f"reading {spec}")
    refuse_foreign(Path(spec))
    opened = open_model(spec, trust_code=trust_code, map=map, options=options)
    model = with_torch_side(with_check_kept(opened) if map else opened)
    return with_adapter(model, model.adapter) if model.adapter else model


def with_check_kept(model: Model) -> Model:
    """Return MODEL with what checked its layout when it was made, if the map that a user named is the one that made it."""
    record = manifest_of(model)
    made = record.get("map")
    if not made or not model.map_text or model.layout_check:
        return model
    same = str(WeightMap.parse(model.map_text)) == str(WeightMap.parse(str(made)))
    return replace(model, layout_check=record.get("layout_check")) if same else model


def refuse_foreign(folder: Path) -> None:
    """Refuse a directory whose only weights are an adapter's, or in a format that is not read.

    Raises:
        BadInputError: it is such a directory.
    """
    try:
        files = sorted(folder.iterdir()) if folder.is_dir() else []
    except OSError:
        return  # opening says what is wrong with it
    found = [path.name for path in files if path.suffix in FOREIGN]
    known = [path.name for path in files if path.name.endswith(tuple(FORMATS))]
    if known and not set(known).difference(ADAPTER_FILES):  # beside a config.json as well
        raise no_model(folder)
    if found and not known and not program_in(folder):
        raise BadInputError(
            f"{folder}: its weights are {FOREIGN[Path(found[0]).suffix]} ({found[0]}), which is not"
            " read; take the checkpoint in safetensors that they were made from"
        )


def with_adapter(model: Model, adapter: Adapter) -> Model:
    """Return MODEL with ADAPTER live on it, its updates under MODEL's own names.

    `modules_to_save` tensors of the adapter stand in for MODEL's own from here on, in their own dtypes;
    those of one with codes stay with the adapter, for what is merged into codes is planned with all it changes.

    Raises:
        MismatchError: the adapter is partial, or made for another model.
    """
    fitted = fitted_to(replace(model, adapter=None), adapter)
    spec = model.spec if model.adapter else f"{model.spec}+{adapter.path}"
    live = replace(model, spec=spec, adapter=fitted)
    return live if isinstance(model.tensors, Dequantized) else overlaid(live)


def overlaid(model: Model) -> Model:
    """Return MODEL with the ``modules_to_save`` tensors of its adapter among its own, as trained."""
    adapter = model.adapter
    if adapter is None or not adapter.saved:
        return model
    whole = ModulesToSave(model.checkpoint, adapter.saved)
    return replace(model, adapter=replace(adapter, saved={}), tensors=whole)


def fitted_to(model: Model, adapter: Adapter) -> Adapter:
    """Return ADAPTER under MODEL's own names, after checking that it fits.

    Those of ``modules_to_save`` that are the base's own are left out.

    Raises:
        MismatchError: it is partial, or made for another model.
    """
    side, fitted = aligned(model, adapter)
    updates, saved = side.back(fitted.updates, fitted.saved)
    return replace(fitted, updates=updates, saved=differing(saved, model.checkpoint))


def aligned(model: Model, adapter: Adapter) -> tuple[Side, Adapter]:
    """Return how ADAPTER names MODEL's parameters, and ADAPTER with every update aligned with its own.

    An adapter of transformers 4 names experts one by one, as checkpoints still do. One of a port by
    hand, as ``.npz``, may keep the names of PyTorch.

    Raises:
        MismatchError: it fits neither way; the shorter list is given.
    """
    own = adapter.dialect == "npz" and adapter.updates.keys() <= model.checkpoint.headers.keys()
    side = side_of(model, model.framework if own else adapter.framework)
    try:
        return side, fit(adapter, side.headers, side.kinds, tied=side.tied)
    except MismatchError as error:
        older = side_of(model, adapter.framework, modules=False)
        if older.headers.keys() == side.headers.keys():
            raise
        try:
            return older, fit(adapter, older.headers)
        except MismatchError as other:
            raise min(error, other, key=lambda it: len(it.problems)) from None
