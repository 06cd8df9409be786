"""Class code runs in a process of its own: what hangs, allocates, prints or ends there is one line here."""

from __future__ import annotations

import re
import signal
import subprocess
import sys

import pytest

from weighbridge.converters.checkpoints.base import Header
from weighbridge.converters.libraries import user_target
from weighbridge.converters.maps.learn import Limits, learn, process, trace
from weighbridge.errors import BadInputError, UnsupportedError

CODE = """
import mlx.core as mx
import mlx.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = mx.zeros((3, 2))

    def sanitize(self, weights):
        {body}
        return {{name: array.T for name, array in weights.items()}}
"""
HEADERS = {"w": Header("F32", (2, 3))}


@pytest.fixture
def port(tmp_path, monkeypatch):
    """Return a function that makes a target of a class whose sanitize does BODY first."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made = []

    def target(body):
        name = f"port_{tmp_path.name.replace('-', '_')}_{len(made)}"
        (tmp_path / f"{name}.py").write_text(CODE.format(body=body))
        made.append(name)
        return user_target(f"{name}:Model")

    return target


def test_a_map_comes_back_the_same_as_in_this_process(port):
    target = port("pass")
    assert learn(target, {}, HEADERS) == trace(target, {}, HEADERS)


def test_what_a_class_prints_is_no_answer(port):
    target = port("import os; print('{\"learned\": 1}', flush=True); os.write(1, b'noise')")
    assert learn(target, {}, HEADERS).text.endswith("w [a b] <-> [b a]")


def test_a_map_is_learned_once(port, monkeypatch):
    target = port("pass")
    first = learn(target, {}, HEADERS)
    monkeypatch.setattr(process, "ask", None)
    assert learn(target, {}, dict(HEADERS)) is first


@pytest.fixture
def started(monkeypatch):
    """Return the processes that were started since."""
    found, start = [], process.start
    monkeypatch.setattr(process, "_waiting", [])
    monkeypatch.setattr(process, "start", lambda: found.append(start()) or found[-1])
    return found


def refusal(target, limits):
    """Return the one line in which a class is refused."""
    with pytest.raises(UnsupportedError) as caught:
        learn(target, {}, HEADERS, limits)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("body", "ends"),
    [  # of the loop, time and processor time are up at the same moment
        ("while True: pass", {-signal.SIGKILL, -signal.SIGXCPU}),
        ("import time; time.sleep(600)", {-signal.SIGKILL}),
    ],
)
def test_a_class_that_does_not_finish_is_ended(port, started, body, ends):
    assert "does not finish within 2 s" in refusal(port(body), Limits(seconds=2))
    [child] = started
    assert child.returncode in ends


def test_a_class_that_computes_too_long_is_ended_by_its_processor_time(port, started, monkeypatch):
    popen = process.start
    monkeypatch.setattr(process, "start", lambda: patient(popen()))
    assert "does not finish within 2 s" in refusal(port("while True: pass"), Limits(seconds=2))
    assert [each.returncode for each in started] == [-signal.SIGXCPU]


def patient(child):
    """Return CHILD, waited for as long as it lives."""
    communicate = child.communicate

    def wait(request=None, timeout=None):
        return communicate(request)

    child.communicate = wait
    return child


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("hoard = bytearray(1 << 40)", "takes more memory than a map may need"),
        ("import sys; sys.exit(3)", "ends the process with status 3"),
        ("import os; os._exit(7)", "ends the process with status 7"),
        ("import os; os.abort()", "ends the process by signal SIGABRT"),
        ("weights['w'].sum().item()", "reads values of tensors"),
        ("raise KeyError('lost')", "fails on these tensors (KeyError: 'lost')"),
    ],
)
def test_whatever_a_class_does_is_one_line(port, body, says):
    assert says in refusal(port(body), Limits(seconds=600))  # starting may take long


ADDRESSES_TAKEN = """
import mmap

taken = mmap.mmap(-1, 20 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ)
from weighbridge.converters.maps.learn.__main__ import limit
from weighbridge.converters.maps.learn.messages import Request

limit(Request(None, {}, {}, None, None, 600, 1 << 30))
bytearray(1 << 29)
try:
    bytearray(1 << 31)
except MemoryError:
    print("limited")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere addresses are not limited")
def test_addresses_that_are_taken_before_count_for_nothing():  # CUDA takes more than any limit
    found = subprocess.run(
        [sys.executable, "-c", ADDRESSES_TAKEN], capture_output=True, text=True, check=False
    )
    assert (found.stdout, found.stderr) == ("limited\n", "")


def test_a_config_that_the_class_does_not_take_is_bad_input():
    from weighbridge.converters.libraries import find

    config = {"model_type": "llama"}
    with pytest.raises(BadInputError, match="hidden_size"):
        learn(find(config), config, HEADERS)


def test_a_mixture_of_many_experts_is_learned_from_a_few_and_held_against_all(
    monkeypatch, model_of
):
    small = model_of("mixtral")
    config = {**small.config, "num_local_experts": 40}
    headers = {
        name.replace(".experts.0.", f".experts.{e}."): header
        for name, header in small.headers.items()
        for e in (range(40) if ".experts.0." in name else (0,))
        if ".experts." not in name or ".experts.0." in name
    }
    headers = {
        name: Header(h.dtype, (40, 48)) if name.endswith("moe.gate.weight") else h
        for name, h in headers.items()
    }
    asked = []
    original = process.ask
    monkeypatch.setattr(process, "ask", lambda *a: asked.append(len(a[0].headers)) or original(*a))
    found = learn(small.target, config, headers)
    assert asked == [len(headers) - 3 * 3 * 36]
    assert (
        found.layout["model.layers.0.block_sparse_moe.switch_mlp.gate_proj.weight"].shape[0] == 40
    )
    assert "where e = num_local_experts" in found.text


def test_a_class_that_sorts_experts_as_text_is_traced_with_all_of_them(tmp_path, monkeypatch):
    """Four experts lie in order even so; twelve do not, and no few speak for all."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "port_by_text.py").write_text(SORTED)
    headers = {f"mlp.experts.{e}.w": Header("F32", (2, 3)) for e in range(32)}
    asked = []
    original = process.ask
    monkeypatch.setattr(process, "ask", lambda r: asked.append(len(r.headers)) or original(r))
    target = user_target("port_by_text:Model")
    text = learn(target, {"num_experts": 32}, headers).text
    assert asked == [4, 12, 32]
    order = re.findall(r"#(\d+)", text)
    assert "{e}" not in text
    assert order == sorted(map(str, range(32)))


SORTED = """
import mlx.core as mx
import mlx.nn as nn


class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.w = mx.zeros((config["num_experts"], 2, 3))

    def sanitize(self, weights):
        return {"w": mx.stack([weights[name] for name in sorted(weights)])}
"""
