"""Commands that a message proposes, which run as they are printed, and counts in words."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from .repositories import origin


def command(*words: str | os.PathLike[str], program: str = "weighbridge") -> str:
    """Return the command of WORDS as a shell reads it.

    >>> command("merge", Path("my base"), "run", "merged")
    "weighbridge merge 'my base' run merged"
    """
    return shlex.join([program, *map(str, words)])


def dequantizing(spec: str) -> str:
    """Return the command that makes a PyTorch model with dense weights of the quantized model SPEC.

    Of a file, such as an ONNX file, that is the one that was given, with an option more.

    >>> dequantizing("llama-4bit")
    'weighbridge convert mlx-to-torch llama-4bit llama-4bit-dense --dequantize bf16'
    """
    if Path(spec).exists() and not (Path(spec) / "config.json").exists():
        return "the same command with --dequantize bf16"
    words = ("mlx-to-torch", spec, unused(spec, "-dense"), "--dequantize", "bf16")
    return command("convert", *words)


def unused(path: str | os.PathLike[str], ending: str) -> str:
    """Return a name in the current directory for what is made of PATH; nothing is there yet.

    >>> unused("models/bert", "-mlx")
    'bert-mlx'
    """
    found = origin(path)
    name = Path(found.name if found else Path(os.path.realpath(path))).name
    names = (f"{name}{number}{ending}" for number in ("", *(f"-{n}" for n in range(2, 1000))))
    return next(it for it in names if not os.path.lexists(it))


def counted(count: int, noun: str) -> str:
    """Return COUNT of what NOUN names in words.

    >>> counted(1, "weight"), counted(2000, "weight")
    ('1 weight', '2,000 weights')
    """
    return f"{count:,} {noun}{'s' * (count != 1)}"
