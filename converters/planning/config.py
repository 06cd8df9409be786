"""The configuration of a target: translated, or put back as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .. import configs, libraries
from ..configs import Translation
from ..configs.special_tokens import reconciled
from ..configs.translation import difference
from ..models import Model
from ..models.config_fields import read_config
from ..models.model_files import KEY, write_model_file
from .manifest import manifest_of

CONFIG = "config.json"


def translated(model: Model, to: str, original: str | None = None) -> Translation | None:
    """Return MODEL's configuration as the framework TO reads it; ``None`` where the file stays as it is.

    On the way back to PyTorch what the manifest recorded is undone. A directory of another tool recorded
    nothing, and may have lost parts; then the configuration of the ORIGINAL is taken, if it is there.
    """
    if not model.config:
        return None
    if model.framework == to:
        return beside_another(model)
    if to == "mlx":
        target = libraries.find(model.config, model.reader)
        return asked(with_tokens(configs.to_mlx(model.config, target), model)) if target else None
    manifest = manifest_of(model)
    if manifest.get("source"):  # it says where it comes from, if only that nothing was changed
        return configs.to_torch(model.config, manifest.get("config") or {})
    theirs = read_config(Path(original)) if original else {}
    if theirs.get("model_type") == model.config.get("model_type"):
        return difference(model.config, theirs)
    return configs.to_torch(model.config)


def beside_another(model: Model) -> Translation | None:
    """Return what leads to MODEL's configuration from that in its directory, which may be one for MLX."""
    if model.path is None or not (model.path / CONFIG).is_file():
        return None
    there = read_config(model.path)
    return None if there == model.config else difference(there, dict(model.config))


def asked(translation: Translation) -> Translation:
    """Return TRANSLATION with the ``model.py`` that was asked for among what it added."""
    name = translation.config.get(KEY)
    return translation._replace(added={**translation.added, KEY: name}) if name else translation


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
    """Write the translated ``config.json`` into FOLDER; return what the manifest says of it.

    The file that lies there, copied from the source, stays byte for byte where it says the same already.
    """
    if translation is None:
        return {}
    write_model_file(folder, translation.config)
    recorded = {key: value for key, value in translation.recorded().items() if value}
    if recorded or read_config(folder) != translation.config:
        text = json.dumps(translation.config, indent=2) + "\n"
        (folder / CONFIG).write_text(text, encoding="utf-8")
    return recorded | ({"notes": list(translation.notes)} if translation.notes else {})
