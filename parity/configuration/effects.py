"""What a setting does to the outputs of its source: measured, with other values in its place."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final

from ...converters.common.memory import pass_on_shortage
from ...converters.configs.to_mlx import known
from ...converters.models import Model, Signature
from ...converters.values import Array
from ...errors import MismatchError
from ..check.distances import Distance, distance
from ..probes.probes import Probe, masks_of
from .reads import parts, read_as
from .settings import unread, value_at, with_agreed_ids

Effects = dict[str, list[float]]  # key -> change of the whole outputs, and of the worst token
NOTHING: Final = 2.0**-40  # a smaller change is float64's own rounding
ENOUGH: Final = 2.0**-10  # a larger one is seen in any float32, so no further value is tried
LARGE: Final = 100_000_000  # parameters of a model of which one block of each kind is run
LAYERS: Final = frozenset({"full_attention", "sliding_attention"})  # differ by a window alone
IMPOSSIBLE: Final = Distance(math.inf, math.inf)  # no other value goes with these weights
COUNTS: Final = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")


def others(value: Any) -> Iterator[Any]:
    """Yield other values of a setting, of the same kind.

    >>> list(others(True)), list(others(8)), list(others(1e-6)), list(others("silu"))
    ([False], [16, 4, 9], [1e-05, 1e-07], ['relu', 'other'])
    >>> list(others({"rope_theta": 10.0, "rope_type": "default"}))
    [{'rope_theta': 100.0, 'rope_type': 'default'}]
    """
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (2 * value, value // 2, value + 1)
    elif isinstance(value, float):
        plain = value != 0 and math.isfinite(value)
        yield from ((float(f"{value * 10:.9g}"), float(f"{value / 10:.9g}")) if plain else (1.0,))
    elif isinstance(value, str):
        yield from ("relu" if value != "relu" else "gelu", "other")
    elif are_layers(value):
        yield from ([it] * len(value) for it in sorted(LAYERS) if {it} != {*value})
    elif isinstance(value, list | tuple) and value:
        yield [next(others(it), it) for it in value]
    elif isinstance(value, Mapping) and value:
        yield {
            key: it if isinstance(it, str) else next(others(it), it) for key, it in value.items()
        }


def are_layers(value: Any) -> bool:
    """Say whether VALUE names, layer by layer, which attention it has.

    >>> are_layers(["full_attention", "sliding_attention"]), are_layers([]), are_layers([{}])
    (True, False, False)
    """
    named = isinstance(value, list | tuple) and bool(value)
    return named and all(isinstance(it, str) and it in LAYERS for it in value)


def block_count(config: Any) -> int:
    """Return how many blocks a model with CONFIG has; 0 where that is not known."""
    part = vars(config).get("text_config", config)
    return next((int(getattr(part, key)) for key in COUNTS if hasattr(part, key)), 0)


class Source:
    """A source that is run with other settings than its own.

    Attributes:
        model: the source.
        signature: its inputs and outputs.
        probe: what it is run on.
        config: its configuration, transformers' object.
        outputs: what it computes with its own settings.
    """

    def __init__(
        self,
        model: Model,
        signature: Signature,
        probe: Probe,
        config: Any,
        recorded: Mapping[str, Array] | None = None,
    ) -> None:
        self.model, self.signature, self.probe, self.config = model, signature, probe, config
        sizes = (math.prod(it.shape) for it in model.checkpoint.headers.values())
        self.large = sum(sizes) > LARGE
        self.masks = masks_of(signature, probe)
        self.outputs = self.run() if recorded is None or self.large else recorded

    def run(self) -> Mapping[str, Array]:
        """Return its float64 outputs; of a large one those of one block of each kind."""
        from ...converters.runtimes.blocks.torch import one_of_each_kind
        from ..reference.reference import float64_outputs, stored_as

        module = stored_as(self.model, "float64", "stored")
        with ExitStack() as stack:
            if self.large:
                stack.enter_context(one_of_each_kind(module, block_count(self.config)))
            [found] = float64_outputs(module, self.signature, [self.probe])
        return found

    def with_value(self, key: str, value: Any) -> Mapping[str, Array]:
        """Return its outputs where its code reads VALUE for the dotted KEY."""
        place, dot, leaf = key.rpartition(".")
        kinds = {at: kind for kind, at in parts(self.config).items()}
        with read_as(kinds[place + dot], leaf, value):
            return self.run()

    def change(self, found: Mapping[str, Array]) -> Distance:
        """Return how far FOUND is from its own outputs: the largest change of any."""
        rows = [
            distance(found[name], wanted, self.masks.get(name))
            for name, wanted in self.outputs.items()
            if wanted.dtype.kind == "f" and found[name].shape == wanted.shape
        ]
        whole, worst = (max((row[i] for row in rows), default=math.inf) for i in (0, 1))
        return Distance(whole, worst) if math.isfinite(whole + worst) else IMPOSSIBLE

    def effect(self, key: str, values: Collection[Any] = ()) -> Distance | None:
        """Return the largest change by VALUES for KEY; infinite where none goes with the weights.

        ``None`` where it cannot be told: the source's code does not run with what was tried.
        """
        own = value_at(self.config, key)
        found, refused = list[Distance](), False
        for value in values or others(own):
            try:
                found.append(self.change(self.with_value(key, value)))
            except MismatchError:
                continue
            except Exception as error:
                pass_on_shortage(error)
                refused = True
                continue
            if found[-1].whole > ENOUGH:
                break
        if found:
            return max(found)
        tried_all = not values and (isinstance(own, int) or are_layers(own))
        return None if refused and not tried_all else IMPOSSIBLE


def measured(
    model: Model,
    signature: Signature,
    probes: Sequence[Probe],
    config: Any,
    keys: Collection[str] | Mapping[str, Sequence[Any]],
    recorded: Sequence[Mapping[str, Array]] = (),
) -> Effects:
    """Return what each of KEYS does to the outputs of MODEL on the smallest of PROBES.

    Keys of which that cannot be told are left out.

    Args:
        model: the source, at hand.
        signature: its inputs and outputs.
        probes: one is chosen.
        config: transformers' object.
        keys: dotted; a mapping gives the values to try.
        recorded: the float64 outputs of MODEL for each of PROBES, where they are known.
    """
    if not keys:
        return {}
    try:
        chosen = smallest(probes)
        known_outputs = recorded[chosen] if recorded else None
        source = Source(model, signature, probes[chosen], config, known_outputs)
    except Exception as error:
        pass_on_shortage(error)
        return {}
    values = keys if isinstance(keys, Mapping) else {}
    rows = {key: source.effect(key, values.get(key, ())) for key in keys}
    return {key: [*found] for key, found in rows.items() if found is not None}


def of_unread(
    model: Model, signature: Signature, probes: Sequence[Probe], reads: Collection[str]
) -> Effects:
    """Return what those keys of READS do in MODEL that a class of an MLX library for it does not read.

    Where none is installed here, another machine may have one: then what each key does.
    """
    if model.family is None or model.family.map or not model.config:
        return {}
    wanted, target = with_agreed_ids(model), model.library
    keys = [*reads] if target is None else unread(target, wanted, reads)
    return measured(model, signature, probes, known(wanted), keys)


def smallest(probes: Sequence[Probe]) -> int:
    """Return the number of that of PROBES which has the fewest numbers."""
    sizes = [sum(array.size for array in it.inputs.values()) for it in probes]
    return sizes.index(min(sizes))
