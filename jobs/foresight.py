"""Start early what takes long: a map is learned by two processes, while headers are read in this one."""

from __future__ import annotations

from pathlib import Path

from ..converters.libraries import find
from ..converters.libraries.defaults import ask_early, takes_long
from ..converters.maps.sources.learned import get_ready
from ..converters.models import FAMILIES, MANIFEST
from ..converters.models.config_fields import read_config
from ..converters.models.specs import exists
from ..errors import WeighbridgeError


def foresee(spec: str, map_name: str | None, trust_code: str | None) -> None:
    """Start what opening SPEC and finding its map will ask for, if it will; errors are for later."""
    path = Path(spec)
    if (
        map_name
        or trust_code
        or not exists(spec)
        or not path.is_dir()
        or (path / MANIFEST).exists()
    ):
        return
    try:
        config = read_config(path)
        known = config.get("model_type") in FAMILIES or find(config) is None
        if config and not known and takes_long(config):
            get_ready()
            ask_early(config)
    except WeighbridgeError:
        return
