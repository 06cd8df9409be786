"""Show the map of a model, whatever it comes from."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ..converters.common.system import writing
from ..converters.maps import WeightMap
from ..converters.models import Model
from ..converters.planning.conversion import conversion_of
from ..converters.planning.opening import open as open_model
from ..converters.planning.prefetch import prefetch
from ..errors import BadInputError
from .pipeline import Target, Written, publish


class Shown(NamedTuple):
    """A map to be printed.

    Attributes:
        spec: the model.
        origin: where the map comes from.
        tensors: how many tensors the model has.
        text: the map.
    """

    spec: str
    origin: str
    tensors: int
    text: str

    def document(self) -> str:
        """Return the text of the map with what is known of it as comments on top."""
        return f"# {self.spec}: {self.tensors} tensors, map {self.origin}\n{self.text}"


def show_map(spec: str, *, map_name: str | None = None, trust_code: str | None = None) -> Shown:
    """Return the map of the model SPEC between torch and MLX names.

    Raises:
        BadInputError: no map is known for it.
    """
    prefetch(spec, map_name, trust_code)
    model = open_model(spec, map=map_name, trust_code=trust_code)
    table = conversion_of(model, "mlx").map
    if table is None:
        kind = model.config.get("model_type", "(none)")
        raise BadInputError(
            f"{spec}: model_type {kind} is known to no MLX library installed here; give a map with"
            " --map FILE.wmap, or make one (weighbridge map infer --help)"
        )
    return Shown(spec, origin(model, table), len(model.checkpoint.headers), str(table))


def origin(model: Model, table: WeightMap) -> str:
    """Say where TABLE, the map of MODEL, comes from."""
    if model.map_text:
        return "as recorded with the model, or given"
    if model.family and model.family.map:
        return f"table {model.family.map}"
    target = model.library
    return f"learned from {target.library} {target.version}" if target else f"{table.name}"


def write_map(text: str, target: Target) -> None:
    """Write TEXT to the file TARGET, whole or not at all.

    Raises:
        TargetExistsError: something is there that force, or its absence, protects.
        WeighbridgeError: it cannot be written.
    """

    def write(path: Path) -> Written:
        with writing(target.path):
            path.write_text(text, encoding="utf-8")
        return Written({})

    publish(target, "", write)
