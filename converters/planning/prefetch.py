"""Start early what takes long: a map is learned by two processes, while headers are read in this one."""

from __future__ import annotations

from pathlib import Path

from ...errors import WeighbridgeError
from ..libraries import find
from ..libraries.defaults import ask_early, takes_long
from ..maps.sources.learned import get_ready
from ..models import FAMILIES, MANIFEST
from ..models.config_fields import read_config
from ..models.specs import exists


def prefetch(spec: str, map_name: str | None, trust_code: str | None) -> None:
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
