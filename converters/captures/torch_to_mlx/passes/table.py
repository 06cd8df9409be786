"""The passes by name, in the order in which they act."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Final

from .....errors import BadInputError
from .channels import keep_channels_last
from .common import merge_common
from .constants import fold_constants
from .copies import remove_copies
from .draft import Draft
from .fused.activations import fuse_gelu
from .fused.attention import fuse_attention
from .fused.norms import fuse_layer_norm, fuse_rms_norm
from .fused.rope import fuse_rope
from .integers import narrow_integers
from .lookups import shorten_lookups
from .targets import count_every_target

PASSES: Final[dict[str, Callable[[Draft], None]]] = {
    "copies": remove_copies,
    "attention": fuse_attention,
    "gelu": fuse_gelu,
    "rms_norm": fuse_rms_norm,
    "layer_norm": fuse_layer_norm,
    "rope": fuse_rope,
    "common": merge_common,
    "constants": fold_constants,
    "channels_last": keep_channels_last,
    "lookups": shorten_lookups,
    "targets": count_every_target,
    "integers": narrow_integers,
    "dead_code": Draft.remove_dead_code,
}


def apply(draft: Draft, names: Iterable[str] | None = None) -> None:
    """Rewrite DRAFT by the passes NAMES, in the order of the table; by all if ``None``.

    Raises:
        BadInputError: a name is that of no pass.
    """
    chosen = set(PASSES if names is None else check_names(names))
    for name, rewrite in PASSES.items():
        if name in chosen:
            rewrite(draft)
    draft.graph.lint()


def check_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return NAMES of passes, refused if one is not known."""
    given = (names,) if isinstance(names, str) else tuple(names)
    for name in given:
        if name not in PASSES:
            near = get_close_matches(name, PASSES, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(PASSES)}"
            raise BadInputError(f"no pass is called {name!r}: {hint}")
    return given
