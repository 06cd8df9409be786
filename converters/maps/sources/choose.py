"""Which map holds between a model's torch and MLX names: given, tabled, or learned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ....errors import BadInputError, MismatchError
from ...checkpoints import Header
from ...checkpoints.base import different
from ...common import cache
from ...libraries import Target
from ...libraries.defaults import key_of, takes_long
from ...libraries.floats import document_of
from ...models import Model
from ..binding.weightmap import WeightMap
from ..headers import listed, unlisted
from .learned import get_ready, learned, revision
from .variants import table_of

if TYPE_CHECKING:
    from ...libraries.transformers import Layout

Headers = Mapping[str, Header]


def map_of(model: Model) -> WeightMap | None:
    """Return the map between MODEL's torch and MLX names; ``None`` where there is no way to one.

    The user's own file or the manifest's text comes first, then the table of the family, then what
    the class of the MLX library does to the tensors that are there.

    Raises:
        BadInputError: the map cannot be read.
        MismatchError: no checkpoint that transformers knows becomes what an MLX directory holds;
            all that differs is listed.
        UnsupportedError: the class does more to the tensors than a map can say.
    """
    return model.once("map", lambda: chosen_map(model))


def chosen_map(model: Model) -> WeightMap | None:
    """Return the map between MODEL's torch and MLX names, found out now; raises as ``map_of``."""
    if model.map_text:
        return WeightMap.parse(model.map_text, model.map_name or f"{model.spec} (map)")
    if model.family is None:
        return None
    if model.family.map:
        return table_of(model.family)
    return learned_map(model, model.library) if model.library and model.path else None


def known_map(model: Model) -> WeightMap:
    """Return the map between MODEL's torch and MLX names.

    Raises:
        BadInputError: neither a family nor a map file says how the names correspond.
    """
    found = map_of(model)
    if found is None:
        raise BadInputError(f"{model.spec}: no map is known for it; give one with --map FILE.wmap")
    return found


def learned_map(model: Model, target: Target) -> WeightMap:
    """Return the map that TARGET's own code is, for the checkpoint of MODEL.

    Raises:
        MismatchError: an MLX directory holds something else than the class makes of a checkpoint.
        UnsupportedError: the class does more to the tensors than a map can say.
    """
    if model.framework == "mlx":
        return origin_and_map(model, target)[1]
    from ...configs import to_mlx

    if takes_long(model.config):
        get_ready()
    config = to_mlx(model.config, target).config
    found = learned(target, config, model.checkpoint.headers)
    return WeightMap.parse(found.text, f"{target} (learned)")


def map_from(model: Model, headers: Headers) -> WeightMap:
    """Return the map of an MLX directory that was made from a checkpoint with these HEADERS.

    Raises:
        BadInputError: the class that reads the directory makes something else of them.
        UnsupportedError: it does more to them than a map can say.
    """
    target = model.library
    found = learned(target, model.config, headers) if target else None
    if found is None or list(different(found.layout, model.checkpoint.headers)):
        raise BadInputError(
            f"{model.spec} does not hold what {target} makes of this checkpoint; check that it was"
            " made from it, or give its map: --map FILE.wmap"
        )
    return WeightMap.parse(found.text, f"{target} (learned)")


def origin_of(model: Model) -> Mapping[str, Header]:
    """Return the headers of the checkpoint that an MLX directory must have been made from.

    Raises:
        MismatchError: no checkpoint that transformers knows becomes what the directory holds.
    """
    if model.library is None:
        raise BadInputError(
            f"{model.spec}: no MLX library that is installed reads its model_type, so what it was"
            " made from is not known; give its map: --map FILE.wmap"
        )
    return origin_and_map(model, model.library)[0]


def origin_and_map(model: Model, target: Target) -> tuple[Mapping[str, Header], WeightMap]:
    """Return what an MLX directory must have been made from, headers only, and by which map.

    Each layout in which transformers may have written such a model is tried: the one out of which
    TARGET makes this directory's names and shapes is taken to be its origin.
    """
    differences: list[str] = []
    for headers in origins(model):
        found = learned(target, model.config, headers)
        differences = list(different(found.layout, model.checkpoint.headers))
        if not differences:
            return headers, WeightMap.parse(found.text, f"{target} (learned)")
    raise MismatchError(
        f"{model.spec} is not what {target} makes of a checkpoint with its config.json; if the class"
        " that reads it is your own, give its map: --map FILE.wmap",
        differences,
    )


def origins(model: Model) -> Iterator[dict[str, Header]]:
    """Yield the checkpoints, headers only, that MODEL's directory may have been made from."""
    from ...configs import to_torch

    config: dict[str, Any] = to_torch(model.config, model.config_changes or None).config
    dtypes = [head.dtype for head in model.checkpoint.headers.values()]
    usual = max(sorted(set(dtypes)), key=dtypes.count, default="F32")
    first = written(config, usual, "saved")
    yield first
    other = written(config, usual, "hub")
    if other != first:
        yield other


def written(config: Mapping[str, Any], dtype: str, layout: Layout) -> dict[str, Header]:
    """Return what ``hub_headers`` does; kept between runs, since it takes PyTorch to find out."""
    key = [*key_of(document_of(config)), dtype, layout, revision()]
    kept = cache.recall("checkpoint", key)
    if kept is not None:
        return unlisted(kept)
    from ...libraries.transformers import hub_headers

    found = hub_headers(config, dtype, layout)
    cache.keep("checkpoint", key, listed(found))
    return found
