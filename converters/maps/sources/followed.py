"""What transformers does to a checkpoint when it loads it: followed once, written as a map and proved."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ....errors import MismatchError, UnsupportedError, WeighbridgeError
from ...checkpoints.base import Header
from ...libraries.modules import Modules, describe
from ...libraries.transformers import hub_headers
from ...values import Array
from ..binding.actions import rearrange
from ..binding.plan import Plan, Step
from ..binding.weightmap import WeightMap
from ..headers import unlisted
from ..learn.drops import drop_rules
from ..learn.rules.drafting import pairing
from ..learn.rules.writing import Drafts, written
from ..learn.trace.components import components
from ..learn.trace.forms import Form, whole
from ..learn.trace.pieces import Unfit
from ..learn.trace.recording import Trace
from ..learn.trace.reduction import Mixture

Config = Mapping[str, Any]
Headers = Mapping[str, Header]
MOST_NUMBERS: Final = 1 << 24  # of one instance of a rule; a larger one is not compared
IDENTITY: Final = "weighbridge map 1\n{**} <-> same"


def answer(
    config: Config, rows: Mapping[str, list[Any]], name: str, partial: bool
) -> str:  # JSON has no keywords
    """Return the text of the map, found out now; ROWS are the headers as JSON."""
    return written_map(config, unlisted(rows), name, partial=partial)


def written_map(config: Config, headers: Headers, name: str, *, partial: bool) -> str:
    """Return the text of the map, found out now and compared with the class.

    Of a mixture of many equal experts a few are followed first; their map must fit them all.
    """
    known = describe(config, name)
    for few, order in Mixture(config, headers).attempts():
        if order is not None:
            continue  # so few that experts sorted as text would not be found out
        try:
            alike = hub_headers(few.config)  # with the sizes that go with so few, routers' too
            if alike.keys() != few.headers.keys():
                continue
            text = followed_map(few.config, alike, name)
            plan = WeightMap.parse(text).bind(headers, config=config)
            check_layout(plan, known, partial=partial)
        except WeighbridgeError:
            continue  # the few do not speak for all
        return text
    text = followed_map(config, headers, name)
    try:
        plan = WeightMap.parse(text).bind(headers, config=config)
    except MismatchError as error:
        raise UnsupportedError(
            f"{known.name}: what loading does to this checkpoint has no map: {error}"
        ) from error
    check_layout(plan, known, partial=partial)
    return text


def check_layout(plan: Plan, known: Modules, *, partial: bool) -> None:
    """Check that PLAN leads to parameters of the class that is KNOWN, to all unless PARTIAL.

    Raises:
        UnsupportedError: it does not.
    """
    shapes = {name: header.shape for name, header in known.headers.items()}
    for name, header in sorted(plan.layout.items()):
        if header.shape != shapes.get(name):
            raise UnsupportedError(
                f"{known.name} has no parameter {name} of shape {list(header.shape)}, as this"
                " checkpoint would give it; check that config.json is that of the checkpoint"
            )
    lacking = [] if partial else missing(plan.layout, known)
    if lacking:
        more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        raise UnsupportedError(
            f"{known.name}: the checkpoint has no tensor for {lacking[0]}{more}; where it is one"
            " without that head, name the class that it was saved from in config.json (architectures)"
        )


def missing(made: Iterable[str], known: Modules) -> list[str]:
    """Return the parameters of the class that is KNOWN which are neither MADE nor tied to one made."""
    there = {known.ties.get(name, name) for name in made}
    return sorted(
        name
        for name in known.headers
        if known.ties.get(name, name) not in there and name not in known.buffers
    )


def followed_map(config: Config, headers: Headers, name: str) -> str:
    """Return the text of the map that the loading of HEADERS is, proved on numbers.

    Raises:
        UnsupportedError: it is more than a map can express.
    """
    from .loading import follow

    found = follow(config, headers, name)
    forms = found.forms
    if identical(forms, headers):
        return IDENTITY
    trace = as_trace(forms, headers)
    drafts = drafted(found.name, forms, trace, config)
    text = str(written(drafts, trace, config).map)
    prove(WeightMap.parse(text).bind(headers, config=config), forms, found.name)
    return text


def identical(forms: Mapping[str, Form], headers: Headers) -> bool:
    """Return whether FORMS are the tensors of HEADERS as they are, under the same names."""
    return forms.keys() == headers.keys() and all(
        form == whole(name, headers[name].shape) for name, form in forms.items()
    )


def as_trace(forms: Mapping[str, Form], headers: Headers) -> Trace:
    """Return FORMS as what a function made of HEADERS; a parameter has the dtype of its sources."""
    layout = {
        name: Header(headers[form.pieces[0].source].dtype, form.shape)
        for name, form in forms.items()
    }
    return Trace(headers, {}, {}, layout, (), {})


def drafted(name: str, forms: Mapping[str, Form], trace: Trace, config: Config) -> Drafts:
    """Return one rule for each group of tensors that hang together in FORMS, by the class NAME.

    Raises:
        UnsupportedError: no rule expresses one.
    """
    found = components(trace, forms)
    dropped = [source for part in found if not part.targets for source in part.sources]
    drops = drop_rules(dropped, trace.headers, config)
    result = Drafts([], {}, dropped)
    for part in found:
        try:
            own = [pairing(part, trace.headers, trace.layout)] if part.targets else []
        except Unfit as why:
            raise UnsupportedError(
                f"{name}: what loading does to {part.targets[0]} has no rule in a map: {why}"
            ) from None
        result.rules.extend(own or [drops[at] for at in part.sources if at in drops])
    return result


def prove(plan: Plan, forms: Mapping[str, Form], name: str) -> None:
    """Check that PLAN moves every number to where FORMS of the class NAME have it.

    One instance of every rule is compared, on tensors that hold the number of each of their places.

    Raises:
        UnsupportedError: it does not.
    """
    seen = set()
    for step in plan.steps:
        size = sum(math.prod(plan.headers[source].shape) for source in step.source_names)
        if id(step.rule) in seen or size > MOST_NUMBERS:
            continue
        seen.add(id(step.rule))
        arrays = numbered(step, plan)
        made = rearrange(step, arrays, step.sizes)
        for target in step.target_names:
            if not np.array_equal(made[target], gathered(forms[target], arrays)):
                raise UnsupportedError(
                    f"{name}: the map of its loading fails on {target} (a fault of Weighbridge:"
                    " please report it with config.json)"
                )


def numbered(step: Step, plan: Plan) -> dict[str, Array]:
    """Return the sources of STEP, of the right shapes and without two equal numbers."""
    arrays, first = {}, 0
    for name in step.source_names:
        shape = plan.headers[name].shape
        size = math.prod(shape)
        arrays[name] = np.arange(first, first + size, dtype=np.int32).reshape(shape)
        first += size
    return arrays


def gathered(form: Form, arrays: Mapping[str, Array]) -> Array:
    """Return what FORM makes of ARRAYS."""
    result = np.full(math.prod(form.shape), -1, np.int32)
    for piece in form.pieces:
        sizes = [factor.size for factor in piece.factors]
        source = arrays[piece.source].reshape(-1)[piece.start :]
        target = result[piece.at :]
        here, there = (
            [getattr(factor, side) * result.itemsize for factor in piece.factors]
            for side in ("here", "there")
        )
        as_strided(target, sizes, there)[...] = as_strided(source, sizes, here)
    return result.reshape(form.shape)
