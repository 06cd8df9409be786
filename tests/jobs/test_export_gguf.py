"""GGUF files as a user makes them: whole or not at all, and those of llama.cpp's own scripts.

Tests with its scripts need a checkout of llama.cpp: WEIGHBRIDGE_LLAMA_CPP names the folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.converters.gguf.models import FAMILIES, like_file, module, saved, tuned
from weighbridge.errors import (
    BadInputError,
    MismatchError,
    TargetExistsError,
    UnsupportedError,
    WeighbridgeError,
)
from weighbridge.jobs.export_gguf import export_gguf
from weighbridge.jobs.options import Options

LLAMA_CPP = os.environ.get("WEIGHBRIDGE_LLAMA_CPP")
needs_llama_cpp = pytest.mark.skipif(
    not LLAMA_CPP, reason="WEIGHBRIDGE_LLAMA_CPP does not name a checkout of llama.cpp"
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    saved(module("llama").to(torch.bfloat16), folder / "base")
    saved(tuned("llama"), folder / "tuned")
    like_file(folder / "base.gguf", "llama", folder / "base")
    return folder


def test_a_file_appears_with_what_was_checked(made, tmp_path):
    outcome = export_gguf(
        str(made / "tuned"), tmp_path / "a.gguf", like=made / "base.gguf", base=str(made / "base")
    )
    assert outcome.target == tmp_path / "a.gguf"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.gguf", "a.gguf.weighbridge.json"]
    assert outcome.target.is_file()
    assert outcome.facts["proof"]["near"] == 0
    assert outcome.plan[-1].startswith("29 tensors and the metadata read back: 29 exact")


def test_the_same_twice_is_the_same_file(made, tmp_path):
    for name in ("a", "b"):
        export_gguf(str(made / "tuned"), tmp_path / f"{name}.gguf", like=made / "base.gguf")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_the_base_itself_gives_the_like_file_again(made, tmp_path):
    export_gguf(str(made / "base"), tmp_path / "a.gguf", like=made / "base.gguf")
    assert (tmp_path / "a.gguf").read_bytes() == (made / "base.gguf").read_bytes()


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - {"llama"}))
def test_a_base_of_each_family_gives_the_like_file_again(family, tmp_path):
    saved(module(family).to(torch.bfloat16), tmp_path / "base")
    like_file(tmp_path / "base.gguf", family, tmp_path / "base")
    export_gguf(str(tmp_path / "base"), tmp_path / "a.gguf", like=tmp_path / "base.gguf")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "base.gguf").read_bytes()


def test_a_dry_run_says_what_would_be_written(made, tmp_path):
    outcome = export_gguf(
        str(made / "tuned"),
        tmp_path / "a.gguf",
        like=made / "base.gguf",
        options=Options(dry_run=True),
    )
    assert "heads interleaved" in "\n".join(outcome.plan)
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_there_is_replaced_only_when_asked(made, tmp_path):
    target = tmp_path / "a.gguf"
    export_gguf(str(made / "base"), target, like=made / "base.gguf")
    with pytest.raises(TargetExistsError):
        export_gguf(str(made / "tuned"), target, like=made / "base.gguf")
    assert target.read_bytes() == (made / "base.gguf").read_bytes()
    export_gguf(str(made / "tuned"), target, like=made / "base.gguf", options=Options(force=True))
    assert target.read_bytes() != (made / "base.gguf").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.gguf", "a.gguf.weighbridge.json"]


def test_a_target_that_is_the_like_file_is_refused(made, tmp_path):
    export_gguf(str(made / "base"), tmp_path / "a.gguf", like=made / "base.gguf")
    force = Options(force=True)
    with pytest.raises(BadInputError, match="choose another target"):
        export_gguf(
            str(made / "tuned"), tmp_path / "a.gguf", like=tmp_path / "a.gguf", options=force
        )


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"target": "a.bin"}, "is named *.gguf"),
        ({"like": "absent.gguf"}, "no such file"),
        ({"like": "text.gguf"}, "not a whole GGUF file"),
        ({"source": "absent"}, "absent"),
        ({"kind": "Q4_K"}, "choose from"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(made, tmp_path, change, error):
    (tmp_path / "text.gguf").write_text("no GGUF at all, and long enough to be read")
    given = {"source": str(made / "tuned"), "target": "a.gguf", "like": made / "base.gguf"} | change
    with pytest.raises(WeighbridgeError) as caught:
        export_gguf(
            given.pop("source"),
            tmp_path / given.pop("target"),
            like=tmp_path / given.pop("like"),
            **given,
        )
    assert error in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["text.gguf"]


def test_a_file_read_back_otherwise_is_not_published(made, tmp_path, monkeypatch):
    from weighbridge.converters import gguf

    def damaged(path, *rest):
        write(path, *rest)
        data = bytearray(path.read_bytes())
        data[-40] ^= 64
        path.write_bytes(data)

    write = gguf.write
    monkeypatch.setattr(gguf, "write", damaged)
    with pytest.raises(MismatchError, match="read back is not what was to be written"):
        export_gguf(str(made / "tuned"), tmp_path / "a.gguf", like=made / "base.gguf")
    assert not list(tmp_path.iterdir())


def test_an_mlx_directory_says_what_to_do_first(made, tmp_path, monkeypatch):
    from dataclasses import replace

    job = sys.modules["weighbridge.jobs.export_gguf"]
    opened = job.Options.open
    monkeypatch.setattr(job.Options, "open", lambda *a: replace(opened(*a), framework="mlx"))
    with pytest.raises(UnsupportedError, match="weighbridge convert mlx-to-torch"):
        export_gguf(str(made / "tuned"), tmp_path / "a.gguf", like=made / "base.gguf")


def with_tokenizer(family: str, folder: Path) -> Path:
    """Return FOLDER with a tuned model and a SentencePiece tokenizer that llama.cpp reads."""
    import io

    import sentencepiece

    made = tuned(family)
    words = (f"{a}{b}{c}" for a in "abcdefgh" for b in "aeiou" for c in "klmnop")
    data = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([" ".join(words)] * 3),
        model_writer=data,
        vocab_size=50,
        model_type="bpe",
        hard_vocab_limit=False,
        minloglevel=2,
    )
    saved(made, folder)
    (folder / "tokenizer.model").write_bytes(data.getvalue())
    return folder


@needs_llama_cpp
@pytest.mark.heavy
@pytest.mark.parametrize(
    ("family", "kind"),
    [("llama", "q8_0"), ("qwen3", "f32"), ("gemma", "bf16"), ("mixtral", "f16")],
)
def test_the_file_is_what_llama_cpps_own_converter_makes(family, kind, tmp_path):
    ours = with_tokenizer(family, tmp_path / "tuned")
    base = tmp_path / "base" / "tuned"  # the converter writes a folder's name into the file
    shutil.copytree(ours, base)
    saved(module(family).to(torch.bfloat16), base)
    script = [sys.executable, str(Path(LLAMA_CPP) / "convert_hf_to_gguf.py"), "--outtype", kind]
    for folder, name in ((base, "base.gguf"), (ours, "want.gguf")):
        command = [*script, str(folder), "--outfile", str(tmp_path / name)]
        subprocess.run(command, check=True, capture_output=True)
    export_gguf(str(ours), tmp_path / "a.gguf", like=tmp_path / "base.gguf", base=str(base))
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "want.gguf").read_bytes()
