"""Request and answer of the process that learns: JSON, one object each way."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import astuple
from typing import Any, NamedTuple

from .... import errors
from ...checkpoints.base import Header
from ...documents import ANSWER, parse_object
from ...libraries import Target
from ..headers import listed, unlisted
from .learning import Learned
from .trace.reduction import Reduced


class Request(NamedTuple):
    """What to learn.

    Attributes:
        target: the class.
        config: of the model that is traced.
        headers: its tensors.
        asked: the config whose parameters are asked for, ``None`` if they are not.
        order: a model whose experts must lie in the same order, ``None`` if there is none.
        seconds: of processor time that may be used.
        memory: bytes of address space that may be used beyond those taken at the start.
    """

    target: Target
    config: Mapping[str, Any]
    headers: Mapping[str, Header]
    asked: Mapping[str, Any] | None
    order: Reduced | None
    seconds: int
    memory: int

    def dump(self) -> bytes:
        """Return the request as JSON."""
        target = self.target
        parts = list(astuple(target))
        fields = {**self._asdict(), "target": parts, "headers": listed(self.headers)}
        if self.order is not None:
            fields["order"] = [self.order.config, listed(self.order.headers)]
        return json.dumps(fields).encode()

    @classmethod
    def load(cls, text: bytes) -> Request:
        """Return the request that TEXT is."""
        fields = parse_object(text, "the request", ANSWER)
        library, version, kind, module, repaired = fields["target"]
        fields["target"] = Target(library, version, kind, module, tuple(repaired))
        fields["headers"] = unlisted(fields["headers"])
        if fields["order"] is not None:
            config, headers = fields["order"]
            fields["order"] = Reduced(config, unlisted(headers))
        return cls(**fields)


class Answer(NamedTuple):
    """What was learned.

    Attributes:
        learned: the map.
        parameters: those that were asked for.
    """

    learned: Learned
    parameters: dict[str, Header]

    def dump(self) -> bytes:
        """Return the answer as JSON."""
        learned = self.learned._replace(layout=listed(self.learned.layout))  # type: ignore[arg-type]
        fields = {**learned._asdict(), "parameters": listed(self.parameters)}
        return json.dumps({"learned": fields}).encode()


def dump_error(error: errors.WeighbridgeError) -> bytes:
    """Return ERROR as an answer."""
    return json.dumps({"error": type(error).__name__, "message": str(error)}).encode()


def load_answer(text: bytes) -> Answer:
    """Return the answer that TEXT is.

    Raises:
        WeighbridgeError: the answer is one.
    """
    answer = parse_object(text, "the answer of the class", ANSWER)
    if "error" in answer:
        kind = getattr(errors, answer["error"], errors.UnsupportedError)
        if issubclass(kind, errors.MismatchError):
            kind = errors.UnsupportedError
        raise kind(answer["message"])
    found = answer["learned"]
    parameters = unlisted(found.pop("parameters"))
    found["notes"], found["layout"] = tuple(found["notes"]), unlisted(found["layout"])
    return Answer(Learned(**found), parameters)
