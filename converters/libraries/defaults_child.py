"""Run as a file, by ``defaults.py``: print what transformers' config class makes of a config.

PyTorch is hidden from transformers, which reads configurations without it: a third of the time, a
fifth of the memory. Nothing of this package is imported, for the same reason.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Mapping
from typing import Any

REFUSED = "refused"  # key of an answer that says why there is no other


def answer(config: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of the config object for CONFIG, or why there is none."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = str(config.get("model_type"))
    if kind not in CONFIG_MAPPING:
        return {REFUSED: ""}
    cls = CONFIG_MAPPING[kind]
    try:
        return attributes(cls.from_dict(config))
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        return {REFUSED: f"config.json does not fit transformers' {cls.__name__}: {reason}"}


def attributes(config: Any) -> dict[str, Any]:
    """Return what CONFIG has, as far as JSON can hold it; what a property makes is marked as derived."""
    found: dict[str, Any] = {}
    own = vars(config)
    names = {*own, *getattr(config, "attribute_map", ()), *properties(type(config))}
    for name in names:
        if name.startswith("_"):
            continue
        try:
            value = getattr(config, name)
        except Exception:  # noqa: S112  # one that differs by layer has no single value
            continue
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            found[name] = {"config": attributes(value)}
        elif is_plain(value):
            found[name] = {"value": value}
        if name in found and name not in own:
            found[name]["derived"] = True
    return found


def properties(cls: type) -> list[str]:
    """Return the names of the properties of CLS."""
    return [name for name in dir(cls) if isinstance(getattr(cls, name, None), property)]


def is_plain(value: Any) -> bool:
    """Say whether JSON has a form for VALUE."""
    if isinstance(value, Mapping):
        return all(map(is_plain, value.values()))
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


if __name__ == "__main__":
    gc.disable()  # this process ends before garbage could matter
    sys.modules["torch"] = None  # type: ignore[assignment]
    document = json.load(sys.stdin)
    output, sys.stdout = sys.stdout, sys.stderr  # what a library prints is no part of the answer
    json.dump(answer(document), output)
    gc.freeze()
