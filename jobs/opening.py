"""Open models for a job: maps found, adapters fitted and named like the model's own weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ..converters.adapters import Adapter, fit, read_adapter
from ..converters.checkpoints.open import FORMATS
from ..converters.maps import WeightMap, choose
from ..converters.models import Model
from ..converters.models import open as open_model
from ..converters.models.specs import ADAPTER_FILES
from ..converters.values import LowRank
from ..errors import BadInputError

map_of = choose.map_of
FOREIGN = {".gguf": "GGUF", ".h5": "Keras", ".msgpack": "Flax", ".onnx": "ONNX"}
IDENTITY = "weighbridge map 1\n{**} <-> same\n"


def open(spec: str, *, trust_code: str | None = None, map: str | None = None) -> Model:  # noqa: A001, A002
    """Open what SPEC names; see ``converters.models.open``. An adapter is fitted to its base.

    Raises:
        BadInputError: SPEC names nothing, or not what it claims to be.
        MismatchError: the adapter is partial, or made for another model.
        UntrustedError: the directory asks to run code that TRUST_CODE does not name.
    """
    refuse_foreign(Path(spec))
    model = open_model(spec, trust_code=trust_code, map=map)
    return with_adapter(model, model.adapter) if model.adapter else model


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
        raise BadInputError(
            f"{folder} is an adapter, not a model. Name its base too: BASE+{folder},"
            f" or convert mlx-to-torch BASE OUT --adapter {folder}"
        )
    if found and not known:
        raise BadInputError(
            f"{folder}: its weights are {FOREIGN[Path(found[0]).suffix]} ({found[0]}), which is not"
            " read; take the checkpoint in safetensors that they were made from"
        )


def with_adapter(model: Model, adapter: Adapter) -> Model:
    """Return MODEL with ADAPTER live on it, its updates under MODEL's own names.

    Raises:
        MismatchError: the adapter is partial, or made for another model.
    """
    bare = replace(model, adapter=None)
    fitted = replace(adapter, updates=fitted_updates(bare, adapter))
    spec = model.spec if model.adapter else f"{model.spec}+{adapter.path}"
    return replace(model, spec=spec, adapter=fitted)


def add_adapter(model: Model, path: Path) -> Model:
    """Return MODEL with the adapter at PATH live on it."""
    return with_adapter(model, read_adapter(path))


def fitted_updates(model: Model, adapter: Adapter) -> Mapping[str, LowRank]:
    """Return ADAPTER's updates under MODEL's own names, after checking that they fit."""
    headers = model.checkpoint.headers
    if (adapter.dialect == "mlx") == (model.framework == "mlx"):
        fit(adapter, headers)
        return adapter.updates
    there = directed_map(model, "mlx" if adapter.dialect == "mlx" else "torch")
    plan = there.bind(headers, config=model.config, sizes=model.sizes)
    fit(adapter, plan.layout)
    back = there.inverse()
    return back.rename_updates(
        adapter.updates, plan.layout, config=model.config, sizes={**model.sizes, **plan.sizes}
    )


def directed_map(model: Model, to: str) -> WeightMap:
    """Return MODEL's map from its own names to TO's; the identity where they are the same.

    Raises:
        BadInputError: no map is known for it.
    """
    if model.framework == to:
        return WeightMap.parse(IDENTITY, "identity")
    forward = map_of(model)
    if forward is None:
        if not model.factory:
            model.signature  # noqa: B018  # raises, and says what is unknown
        raise BadInputError(f"{model.spec}: no map is known for it; give one with --map FILE.wmap")
    return forward if to == "mlx" else forward.inverse()
