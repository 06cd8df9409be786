"""A base, its GGUF file and a tuned model of every family, made once."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from tests.converters.gguf.models import FAMILIES, like_file, module, saved, tuned


class Made(NamedTuple):
    family: str
    base: Path
    tuned: Path
    folder: Path

    def like(self, kind: str = "BF16") -> Path:
        path = self.folder / f"{kind}.gguf"
        return path if path.exists() else like_file(path, self.family, self.base, kind)


def make(family: str, folder: Path) -> Made:
    base = saved(module(family).to(torch.bfloat16), folder / "base")
    return Made(family, base, saved(tuned(family), folder / "tuned"), folder)


@pytest.fixture(scope="session", params=list(FAMILIES))
def any_family(request, tmp_path_factory):
    return make(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="session")
def llama(tmp_path_factory):
    return make("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def mixtral(tmp_path_factory):
    return make("mixtral", tmp_path_factory.mktemp("mixtral"))
