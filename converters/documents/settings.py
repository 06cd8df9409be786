"""Settings that a person writes, in YAML or TOML, read within limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...errors import BadInputError
from .files import read_text
from .flaws import TOO_DEEP, flaws, name_of, refuse
from .kinds import SETTINGS


def read_settings(path: Path) -> dict[str, Any]:
    """Return the keys and values in the file at PATH: TOML if its name says so, else YAML.

    Raises:
        BadInputError: it is neither, too large, or holds what nobody means; says where.
        OSError: it cannot be read.
    """
    text = read_text(path, SETTINGS)
    content = parse_toml(text, path) if path.suffix == ".toml" else parse_yaml(text, path)
    if not isinstance(content, dict):
        raise BadInputError(f"{path}: expected keys and values, found {name_of(content)}")
    return content


def parse_toml(text: str, where: object) -> dict[str, Any]:
    """Return the TOML document that TEXT, from WHERE, is.

    Raises:
        BadInputError: it is not TOML, or holds what nobody means.
    """
    import tomllib

    try:
        value = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadInputError(f"{where}: not TOML ({error}); {SETTINGS.todo}") from None
    except ValueError:  # of int(), which has a limit of its own
        raise BadInputError(f"{where}: a number of too many digits; {SETTINGS.todo}") from None
    except RecursionError:
        raise BadInputError(f"{where}: {TOO_DEEP}; {SETTINGS.todo}") from None
    refuse(flaws(value, SETTINGS), where, SETTINGS)
    return value


def parse_yaml(text: str, where: object) -> Any:
    """Return the YAML value that TEXT, from WHERE, is.

    Raises:
        BadInputError: it is not YAML, or holds what nobody means: anchors that are used again, tags,
            keys that are not texts or named twice, numbers that are not finite.
    """
    from .yaml_text import parse

    value = parse(text, where)
    refuse(flaws(value, SETTINGS), where, SETTINGS)
    return value
