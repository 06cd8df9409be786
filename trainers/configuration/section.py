"""What every section is: strict types, no unknown keys, immutable; and sections chosen by a name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Discriminator, Field

Fraction = Annotated[float, Field(ge=0, le=1)]
CUSTOM: Final = "custom"  # the tag of a section whose name is code: module:Class


class Section(BaseModel):
    """A part of the configuration: strict types, no unknown keys, immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def chosen_by(key: str, default: str | None = None) -> Discriminator:
    """Return what chooses the section by KEY, where ``module:Class`` means code of the user's."""
    return Discriminator(_tag_in(key, default))


def _tag_in(key: str, default: str | None) -> Callable[[Any], str | None]:
    def tag(value: Any) -> str | None:
        name = value.get(key, default) if isinstance(value, Mapping) else getattr(value, key, None)
        return CUSTOM if isinstance(name, str) and ":" in name else name

    return tag
