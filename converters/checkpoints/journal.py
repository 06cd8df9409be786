"""What an interrupted run had finished: one line per tensor, beside the file it lies in."""

from __future__ import annotations

import json
from pathlib import Path

from ...errors import BadInputError
from ..documents import LINE, parse_object


class Journal:
    """Hashes of finished tensors, kept on disk until the checkpoint is whole.

    Lines are appended after the bytes they speak of. Nothing is synced to the disk: a reader
    hashes the bytes again, so a line that came to the disk before its bytes does no harm.
    """

    def __init__(self, path: Path, layout: str) -> None:
        self.path = path
        self.layout = layout

    def load(self) -> dict[str, str]:
        """Return name -> hash of an earlier run with the same layout; empty if there is none."""
        try:
            lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return {}
        entries = [entry for line in lines if (entry := _parse(line))]
        if not entries or entries[0] != {"layout": self.layout}:
            return {}
        return {entry["name"]: entry["hash"] for entry in entries if {"name", "hash"} <= set(entry)}

    def start(self, finished: dict[str, str]) -> None:
        """Start again with the FINISHED tensors; the old journal stays whole until the new one is."""
        entries = [{"layout": self.layout}]
        entries += [{"name": name, "hash": value} for name, value in finished.items()]
        fresh = self.path.with_name(self.path.name + ".new")
        fresh.write_bytes(b"".join(map(_line, entries)))
        fresh.replace(self.path)

    def add(self, name: str, value: str) -> None:
        """Note that tensor NAME is on disk and hashes to VALUE."""
        with self.path.open("ab", buffering=0) as file:
            file.write(_line({"name": name, "hash": value}))

    def remove(self) -> None:
        """Forget everything: the checkpoint is whole."""
        self.path.unlink(missing_ok=True)


def _line(entry: dict[str, str]) -> bytes:
    return json.dumps(entry).encode() + b"\n"


def _parse(line: bytes) -> dict[str, str]:
    """Return the entry on LINE; empty for a torn one."""
    try:
        entry = parse_object(line, "journal", LINE)
    except BadInputError:
        return {}
    return entry if all(isinstance(it, str) for it in entry.values()) else {}
