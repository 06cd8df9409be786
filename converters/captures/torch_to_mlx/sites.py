"""Sites: which node of the graph is the output of which submodule.

``torch.export`` notes for every node the stack of modules that were running. The output of a module is
the last floating-point value computed in it that is used outside of it; of several of one shape, such
as cosines and sines, the first. So these are not visible:

- modules that compute nothing (``nn.Identity``, containers that are only iterated over),
- modules whose output is not a floating-point tensor, and all but one value of a tuple,
- modules whose value chosen so is not what they return (none in the models tested),
- modules whose computation does not reach an output of the captured module.

A module that is called again has another site per call: ``shared``, ``shared@1``, ...
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Final

import torch
from torch.fx import Node

_ROOTS: Final = ("L['self'].", "L__self__.", "self.")


def clean(path: str) -> str:
    """Return a module path without the noise of the tracer.

    >>> clean("L['self'].encoder.layer.slice(None, 2, None).0")
    'encoder.layer.0'
    """
    for root in _ROOTS:
        path = path.removeprefix(root)
    return ".".join(part for part in path.split(".") if not part.startswith("slice("))


def module_stack(node: Node) -> list[str]:
    """Return the sites of the modules in which NODE was computed, outermost first."""
    stack: list[str] = []
    for key, (path, _) in node.meta.get("nn_module_stack", {}).items():
        _, called, count = key.rpartition("@")
        name = clean(path)
        if name and name not in ("L['self']", "_empty_nn_module_stack_from_metadata_hook"):
            stack.append(f"{name}@{count}" if called and count.isdigit() else name)
    return stack


def module_path(node: Node) -> str:
    """Return the path of the innermost module of NODE, empty for the captured module itself."""
    return (module_stack(node) or [""])[-1]


def _floating(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype.is_floating_point


def _output(site: str, members: list[Node], live: set[Node]) -> Node | None:
    """Return the node that is the output of SITE."""
    leaving = [
        node
        for node in members
        if _floating(node)
        and any(user in live and site not in module_stack(user) for user in node.users)
    ]
    if not leaving:
        return None
    last = leaving[-1]
    if last.target is operator.getitem:  # of several results of one operation, the first
        return next(node for node in leaving if node.args[:1] == last.args[:1])
    return next(node for node in leaving if _alike(node, last))


def _alike(one: Node, other: Node) -> bool:
    """Say whether both have the same shape, as the values of a pair such as cosines and sines have."""
    return bool(one.meta["val"].shape == other.meta["val"].shape)


def find_sites(nodes: Iterable[Node]) -> dict[str, tuple[str, ...]]:
    """Return node name -> sites of which it is the output, innermost first."""
    ordered = list(nodes)
    live = set(ordered)
    members: dict[str, list[Node]] = {}
    depth: dict[str, int] = {}
    for node in ordered:
        for level, site in enumerate(module_stack(node)):
            members.setdefault(site, []).append(node)
            depth[site] = max(level, depth.get(site, 0))
    found: dict[str, list[str]] = {}
    for site in sorted(members, key=lambda site: -depth[site]):
        node_or_none = _output(site, members[site], live)
        if node_or_none is not None:
            found.setdefault(node_or_none.name, []).append(site)
    return {name: tuple(sites) for name, sites in found.items()}


def mark_sites(nodes: Iterable[Node]) -> None:
    """Note in every node of which sites it is the output: passes change what could be found later."""
    ordered = list(nodes)
    found = find_sites(ordered)
    for node in ordered:
        node.meta["sites"] = found.get(node.name, ())


def sites_of(node: Node) -> tuple[str, ...]:
    """Return the sites of which NODE was marked as the output, innermost first."""
    marked: tuple[str, ...] = node.meta.get("sites", ())
    return marked
