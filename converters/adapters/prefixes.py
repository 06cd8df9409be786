"""An adapter of the same model under another class: transformers puts a prefix before the names.

``AutoModel`` has ``layers.0.mlp``, ``AutoModelForCausalLM`` has ``model.layers.0.mlp``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from .adapter import Adapter

SAVE = "or save it again with PEFT from the class of the base"


def other_class(adapter: Adapter, parameters: Collection[str]) -> str:
    """Say what to do if one prefix is all that lies between ADAPTER's names and PARAMETERS.

    Returns:
        one line; empty if it is not so.
    """
    names = sorted({*adapter.updates, *adapter.saved})
    if not names or not set(names).isdisjoint(parameters):
        return ""
    for prefix in _lacking(names, parameters):
        return (
            f"adapter {adapter.path} was trained on a bare class (AutoModel), and the base is one with"
            f" a head: all {len(names)} names lack {prefix!r}. Rename its tensors from"
            f" base_model.model.X to base_model.model.{prefix}X, and full paths in"
            f" adapter_config.json likewise, {SAVE}"
        )
    for prefix in _having(names, parameters):
        return (
            f"adapter {adapter.path} was trained on a class with a head, and the base is a bare one"
            f" (AutoModel): all {len(names)} names begin with {prefix!r}. Name a base that was saved"
            f" with its head, or rename the tensors from base_model.model.{prefix}X to"
            f" base_model.model.X, and full paths in adapter_config.json likewise, {SAVE}"
        )
    return ""


def _lacking(names: list[str], parameters: Collection[str]) -> Iterator[str]:
    """Yield what makes parameters of all NAMES if it is put before them."""
    ending = f".{names[0]}"
    found = {name.removesuffix(names[0]) for name in parameters if name.endswith(ending)}
    there = set(parameters)
    return (it for it in sorted(found) if all(f"{it}{name}" in there for name in names))


def _having(names: list[str], parameters: Collection[str]) -> Iterator[str]:
    """Yield what makes parameters of all NAMES if it is taken away."""
    parts = names[0].split(".")
    found = [".".join(parts[:end]) + "." for end in range(1, len(parts))]
    there = set(parameters)
    for it in found:
        if all(name.startswith(it) and name.removeprefix(it) in there for name in names):
            yield it
