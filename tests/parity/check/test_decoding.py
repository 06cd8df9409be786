"""A cache that is wrong differs although the texts read at once are right; a right one is never rejected."""

from __future__ import annotations

import json
from textwrap import dedent

import pytest
from click.testing import CliRunner

from weighbridge.cli import main
from weighbridge.errors import UnsupportedError
from weighbridge.tests.support.atlas.tiny import make
from weighbridge.tests.support.cache_faults import FAULTS, RIGHT, Standing

OWN = {"cohere2": {"sliding_window": 32}, "idefics3": {"text_config": {"head_dim": 12}}}
QUICK = {"Standing", "Sinks"}  # the others take as long and show no more of the code
CASES = [
    pytest.param(kind, fault, marks=() if fault in QUICK else pytest.mark.heavy)
    for kind, faults in FAULTS.items()
    for fault in faults
]
MODULE = """
    from pathlib import Path
    from weighbridge.tests.support.cache_faults import FAULTS, RIGHT, AtOnce, Closed, reader
    from weighbridge.tests.support.torch_caches import Forgetful, Stateful, read

    def fault():
        return reader(Path({folder!r}), FAULTS[{kind!r}][{fault!r}])

    def right():
        return reader(Path({folder!r}), RIGHT[{kind!r}])

    def without():
        return AtOnce(reader(Path({folder!r}), RIGHT[{kind!r}]))

    def closed():
        return Closed(reader(Path({folder!r}), RIGHT[{kind!r}]))

    def forgetful():
        return Forgetful(read(Path({folder!r}).parent / "source"))

    def stateful():
        return Stateful(read(Path({folder!r}).parent / "source"))
    """


def run(*arguments):
    result = CliRunner().invoke(main, [*map(str, arguments), "--json"])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, json.loads(result.stdout)


def stage(verdict, name="decoding"):
    return next((it for it in verdict["stages"] if it["name"] == name), None)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Return what gives the folders of a tiny model and of its conversion."""
    made = {}

    def pair(kind):
        if kind not in made:
            folder = tmp_path_factory.mktemp(kind)
            make(kind, folder / "source", own=OWN.get(kind))
            CliRunner().invoke(
                main,
                ["convert", "torch-to-mlx", f"{folder}/source", f"{folder}/mlx", "--check", "none"],
            )
            made[kind] = folder / "source", folder / "mlx"
        return made[kind]

    return pair


@pytest.fixture
def factory(pairs, tmp_path, monkeypatch):
    """Return what checks a factory's module against its source."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def check(kind, function, fault=None, *options):
        source, folder = pairs(kind)
        name = f"cached_{tmp_path.name}".replace("-", "_")
        text = MODULE.format(folder=str(folder), kind=kind, fault=fault)
        (tmp_path / f"{name}.py").write_text(dedent(text))
        return run("parity", "check", source, f"{name}:{function}", *options)

    return check


@pytest.mark.parametrize(("kind", "fault"), CASES)
def test_a_fault_of_the_cache_differs_and_says_from_which_token_on(kind, fault, factory):
    code, verdict = factory(kind, "fault", fault, "--quick")
    found = stage(verdict)
    assert stage(verdict, "structure")["status"] == "pass"
    assert (code, verdict["status"], found["status"]) == (1, "DIFFERS", "fail")
    assert "it parts from token" in found["detail"]
    assert found["figures"]["from_tokens"] > 1


@pytest.mark.parametrize(
    "kind", [pytest.param(it, marks=() if it == "llama" else pytest.mark.heavy) for it in RIGHT]
)
@pytest.mark.parametrize(
    "options", [pytest.param((), marks=pytest.mark.heavy, id="full"), ("--quick",)]
)
def test_a_right_cache_passes(kind, options, factory):
    code, verdict = factory(kind, "right", None, *options)
    assert (code, stage(verdict)["status"]) == (0, "pass"), stage(verdict)


def test_a_class_of_a_library_that_alone_is_wrong_with_its_cache_is_named(pairs, monkeypatch):
    for module in ("cache", "llama"):
        monkeypatch.setattr(f"mlx_lm.models.{module}.KVCache", Standing)
    code, verdict = run("parity", "check", *pairs("llama"), "--quick")
    assert (code, verdict["status"]) == (1, "DIFFERS")
    assert verdict["upstream"].startswith("mlx-lm")
    assert run("parity", "check", *pairs("llama"), "--quick", "--accept", "UPSTREAM")[0] == 0


def test_a_cache_that_raises_differs(pairs, monkeypatch):
    monkeypatch.delattr("mlx_lm.models.cache.KVCache.update_and_fetch")
    code, verdict = run("parity", "check", *pairs("llama"), "--quick")
    assert (code, verdict["status"]) == (1, "DIFFERS")
    assert "update_and_fetch" in stage(verdict)["detail"]


def refuse(*_, **__):
    raise UnsupportedError("this cache keeps no more")


@pytest.mark.parametrize("where", ["KVCache.update_and_fetch", "make_prompt_cache"])
def test_a_cache_that_refuses_differs_with_its_message(pairs, monkeypatch, where):
    monkeypatch.setattr(f"mlx_lm.models.cache.{where}", refuse)
    code, verdict = run("parity", "check", *pairs("llama"), "--quick")
    assert (code, verdict["status"], stage(verdict)["status"]) == (1, "DIFFERS", "fail")
    assert "this cache keeps no more" in stage(verdict)["detail"]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("closed", "neither make_cache nor layers"),
        ("forgetful", "takes past_key_values and returns none"),
        ("stateful", "takes past_states"),
    ],
)
def test_a_cache_that_could_not_be_used_is_unverified(factory, function, said):
    code, verdict = factory("llama", function, None, "--quick")
    assert (code, verdict["status"]) == (4, "UNVERIFIED")
    assert stage(verdict)["status"] == "unverified"
    assert said in stage(verdict)["detail"]


@pytest.mark.heavy  # imports mlx-vlm
def test_the_cache_of_a_class_of_mlx_vlm_is_read(pairs):
    _, verdict = run("parity", "check", *pairs("idefics3"), "--quick")
    assert stage(verdict)["status"] == "pass"


@pytest.mark.heavy
def test_a_fault_in_the_cache_of_a_class_of_mlx_vlm_differs(pairs, monkeypatch):
    monkeypatch.setattr("mlx_vlm.models.cache.KVCache", Standing)
    code, verdict = run("parity", "check", *pairs("idefics3"), "--quick")
    assert (code, stage(verdict)["status"]) == (1, "fail")
    assert verdict["upstream"].startswith("mlx-vlm")


def test_a_candidate_without_a_cache_says_so_and_may_pass(factory):
    code, verdict = factory("llama", "without", None, "--quick")
    assert (code, stage(verdict)["status"]) == (0, "skipped")
    assert stage(verdict)["detail"] == "not checked: the candidate has no cache"


def test_transformers_own_code_is_not_compared_with_itself(pairs):
    source, _ = pairs("llama")
    code, verdict = run("parity", "check", source, source, "--quick")
    assert (code, stage(verdict)["status"]) == (0, "skipped")
    assert "the same code" in stage(verdict)["detail"]
