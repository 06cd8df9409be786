"""The configuration of a target: translated, or put back as it was."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..converters import configs, libraries
from ..converters.configs import Translation
from ..converters.models import Model
from ..converters.special_tokens import reconciled
from .manifest import manifest_of

CONFIG = "config.json"


def translated(model: Model, to: str) -> Translation | None:
    """Return MODEL's configuration as the framework TO reads it; ``None`` where it stays as it is."""
    if model.framework == to or not model.config:
        return None
    if to == "mlx":
        target = libraries.find(model.config)
        return with_tokens(configs.to_mlx(model.config, target), model) if target else None
    return configs.to_torch(model.config, manifest_of(model).get("config"))


def with_tokens(translation: Translation, model: Model) -> Translation:
    """Return TRANSLATION with the ids of special tokens that MODEL's files agree on."""
    if model.path is None:
        return translation
    config = translation.config
    changes = reconciled(config, model.path)
    changed = {key: (config[key], value) for key, value in changes.items() if key in config}
    added = {key: value for key, value in changes.items() if key not in config}
    return translation._replace(
        config=config | changes,
        added=translation.added | added,
        changed=translation.changed | changed,
    )


def rewrite_config(folder: Path, translation: Translation | None) -> dict[str, Any]:
    """Write the translated ``config.json`` into FOLDER; return what the manifest says of it."""
    if translation is None or not (said := record(translation)):
        return {}  # byte for byte as it was
    (folder / CONFIG).write_text(json.dumps(translation.config, indent=2) + "\n", encoding="utf-8")
    return said


def record(translation: Translation) -> dict[str, Any]:
    """Return what undoes TRANSLATION, as JSON."""
    parts: Mapping[str, Any] = translation._asdict()
    return {key: parts[key] for key in ("added", "changed", "removed") if parts[key]}
