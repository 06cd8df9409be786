"""The text side of a directory, compared or kept in a golden; libraries are asked only if the bytes of files differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from .files import documents, file_hashes, generation, vocabulary_hashes
from .reading import Reading, read
from .tokenizers import TOKENIZER_FILES, has_tokenizer, load_tokenizers, reading


@dataclass(frozen=True)
class TextSide:
    """What a directory does with text.

    Attributes:
        files: hashes of the bytes of every file of the text side.
        vocabularies: hashes of what vocabulary files hold, by name of the file.
        documents: settings in files that only some libraries read.
        recorded: readings and settings of generation, where they come from a golden.
        folder: the directory, where they do not.
        sought: tokens that the other side has, to look for inside text.
    """

    files: dict[str, str]
    vocabularies: dict[str, str]
    documents: dict[str, dict[str, Any]]
    recorded: tuple[dict[str, Reading], dict[str, Any] | None] = ({}, None)
    folder: Path | None = None
    sought: tuple[str, ...] = ()

    @cached_property
    def readings(self) -> dict[str, Reading]:
        """What each library makes of the tokenizer, by the library's name.

        Raises:
            BadInputError: the tokenizer's files are damaged.
        """
        return _read(self.folder, self.sought) if self.folder else self.recorded[0]

    @cached_property
    def generation(self) -> dict[str, Any] | None:
        """Settings of generation, stop ids among them; ``None`` where nobody recorded them."""
        if not self.folder:
            return self.recorded[1]
        first = next(iter(self.readings.values()), None)
        return generation(self.folder, first.special if first else {})

    @property
    def has_tokenizer(self) -> bool:
        """Whether there is a tokenizer among the files; older recordings have one and no files."""
        return not self.files or any(name in self.files for name in TOKENIZER_FILES)

    @property
    def tokens(self) -> tuple[str, ...]:
        """Tokens that were looked for inside text."""
        return tuple(dict.fromkeys(t for it in self.readings.values() for t in it.tokens))

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "readings": {name: it._asdict() for name, it in self.readings.items()},
            "generation": self.generation,
            "vocabularies": self.vocabularies,
            "documents": self.documents,
            "files": self.files,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> TextSide:
        """Return what :meth:`to_json` wrote; without readings, if an older version recorded it."""
        readings = {name: Reading(**it) for name, it in content.get("readings", {}).items()}
        return cls(
            dict(content.get("files", {})),
            dict(content.get("vocabularies", {})),
            dict(content.get("documents", {})),
            (readings, content.get("generation")),
        )


def read_text_side(folder: Path | None, other: TextSide | None = None) -> TextSide | None:
    """Return what FOLDER does with text; ``None`` where it is no directory of a model.

    Args:
        folder: a model's directory.
        other: what it will be compared with; its tokens are looked for too.

    Raises:
        BadInputError: a file of the text side is damaged.
    """
    if folder is None or not (has_tokenizer(folder) or (folder / "config.json").is_file()):
        return None
    files = file_hashes(folder)
    sought = other.tokens if other and other.files != files else ()
    return TextSide(files, vocabulary_hashes(folder), documents(folder), ({}, None), folder, sought)


def _read(folder: Path, tokens: tuple[str, ...]) -> dict[str, Reading]:
    found = {}
    for tokenizer in load_tokenizers(folder) if has_tokenizer(folder) else ():
        with reading(folder):
            found[tokenizer.library] = read(tokenizer, tokens)
    return found
