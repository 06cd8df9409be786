"""Search the text of a folder by meaning and by words.

    python examples/search.py MODEL FOLDER "how to read a file" [--top 5] [--share 0.7]

MODEL is a directory of transformers with a tokenizer, such as what ``weighbridge merge`` makes of a run of the
recipe ``xtr``. Every paragraph of the ``.py``, ``.md`` and ``.txt`` files below FOLDER is embedded, token by token,
once: the index is kept in FOLDER/.search.npz until a file changes.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import xxhash

from weighbridge.errors import WeighbridgeError
from weighbridge.trainers.data.hybrid import DENSE, lexical_scores, mixed
from weighbridge.trainers.data.pairs import load_tokenizer
from weighbridge.trainers.objectives.embedding import TokenEmbedding
from weighbridge.trainers.objectives.maxsim import MaxSim

SUFFIXES = (".md", ".py", ".txt")
TOKENS, WIDTH, BATCH = 48, 32, 32
INDEX = ".search.npz"
WORDS = 4  # a paragraph of fewer is a heading


class Hit(NamedTuple):
    """A paragraph that was found."""

    score: float
    file: str
    text: str


class Encoder:
    """Texts to embeddings of their tokens, zeros behind the last one, ``(texts, TOKENS, WIDTH)``."""

    def __init__(self, folder: Path, width: int = WIDTH) -> None:
        from transformers import AutoModelForTextEncoding

        try:
            model = AutoModelForTextEncoding.from_pretrained(folder, local_files_only=True).eval()
        except (OSError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            raise SystemExit(f"{folder} has no text encoder of transformers: {reason}") from None
        self._tokenize = load_tokenizer(folder)
        self._embed = TokenEmbedding(model, width)

    @torch.no_grad()
    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """Return the embeddings of TEXTS."""
        parts = [self._batch(texts[at : at + BATCH]) for at in range(0, len(texts), BATCH)]
        return np.concatenate(parts)

    def _batch(self, texts: Sequence[str]) -> np.ndarray:
        ids, mask = torch.zeros(2, len(texts), TOKENS, dtype=torch.int64)
        for row, found in enumerate(self._tokenize(texts)):
            cut = found if len(found) <= TOKENS else [*found[: TOKENS - 1], found[-1]]
            ids[row, : len(cut)], mask[row, : len(cut)] = torch.tensor(cut), 1
        return self._embed(ids, mask).numpy()


class Index(NamedTuple):
    """The paragraphs of a folder with their files and embeddings."""

    files: list[str]
    texts: list[str]
    embeddings: np.ndarray

    @classmethod
    def of(cls, folder: Path, encoder: Encoder, model: Path) -> Index:
        """Return the index of FOLDER: the one that was kept, or a new one where a file changed."""
        found = [(file, text) for file in paragraph_files(folder) for text in paragraphs(file)]
        files = [str(file.relative_to(folder)) for file, _ in found]
        texts = [text for _, text in found]
        if not texts:
            raise SystemExit(
                f"{folder} has no paragraph of {WORDS} words in {', '.join(SUFFIXES)} files"
            )
        digest = xxhash.xxh3_64_hexdigest(
            "\0".join([str(model.resolve()), *files, *texts]).encode()
        )
        kept = folder / INDEX
        if kept.is_file() and (stored := np.load(kept))["digest"].item() == digest:
            return cls(files, texts, stored["embeddings"])
        embeddings = encoder(texts)
        np.savez_compressed(kept, digest=np.array(digest), embeddings=embeddings)
        return cls(files, texts, embeddings)

    def search(self, query: str, encoder: Encoder, top: int, share: float = DENSE) -> list[Hit]:
        """Return the TOP paragraphs for QUERY, SHARE of the score being meaning, the rest words."""
        dense = MaxSim(torch.nn.Identity()).scored(encoder([query]), self.embeddings)
        scores = mixed(dense, lexical_scores([query], self.texts), share)[0]
        best = np.argsort(-scores, kind="stable")[:top]
        return [Hit(float(scores[row]), self.files[row], self.texts[row]) for row in best]


def paragraph_files(folder: Path) -> list[Path]:
    """Return the files below FOLDER that hold text."""
    return sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES and path.is_file())


def paragraphs(file: Path) -> list[str]:
    """Return the paragraphs of FILE that have a few words."""
    parts = re.split(r"\n\s*\n", file.read_text(encoding="utf-8", errors="replace"))
    return [part.strip() for part in parts if len(part.split()) >= WORDS]


def folder_named(text: str) -> Path:
    """Return the folder that TEXT names; a name that is none would be asked of a model hub."""
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text} is no folder")
    return Path(text)


def main() -> None:
    """Search as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=folder_named)
    parser.add_argument("folder", type=folder_named)
    parser.add_argument("query")
    parser.add_argument("--top", type=int, default=5)
    parser.add_argument("--share", type=float, default=DENSE, help="of meaning, the rest is words")
    args = parser.parse_args()
    try:
        encoder = Encoder(args.model)
    except WeighbridgeError as error:
        raise SystemExit(str(error)) from None
    index = Index.of(args.folder, encoder, args.model)
    for hit in index.search(args.query, encoder, args.top, args.share):
        line = " ".join(hit.text.split())
        print(f"{hit.score:.3f}  {hit.file}  {line[:90]}")


if __name__ == "__main__":
    main()
