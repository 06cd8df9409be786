"""A second process takes the recording of the first; whatever else differs is recorded again."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import mlx.core as mx
import numpy as np
import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.cohere import modeling_cohere
from transformers.models.llama import modeling_llama

from weighbridge.converters.captures import capture
from weighbridge.converters.captures.torch_to_mlx import capturing
from weighbridge.converters.captures.torch_to_mlx.earlier import stored
from weighbridge.converters.common import cache

INPUTS = {"input": torch.ones(2, 8)}
TEXT = {"input_ids": torch.ones(1, 5, dtype=torch.long)}
CHILD = (
    "from weighbridge.tests.converters.captures.torch_to_mlx.earlier import test_stored as it;"
    "it.{}()"
)


def network(width=8, eps=1e-5, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, width), nn.LayerNorm(width, eps=eps), nn.GELU()).eval()


def users_network():
    return nn.Sequential(*network(), Doubled(8, 8)).eval()


def tiny_llama():
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "vocab_size": 9}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2)).eval()


def outputs(module=None):
    captured = capture(module or network(), inputs=INPUTS, dynamic={"input": {0: "batch"}})
    return captured(input=mx.arange(24).reshape(3, 8).astype(mx.float32))


def scores():
    torch.manual_seed(0)
    return capture(tiny_llama(), inputs=TEXT)(input_ids=mx.arange(5)[None])["logits"]


class Doubled(nn.Linear):
    """A class of a user's."""

    def forward(self, input):  # noqa: A002
        return super().forward(input) * 2


@pytest.fixture
def recorded(monkeypatch, tmp_path):
    """Keep answers in a folder of their own; return a list that grows with every recording."""
    made, record = [], capturing.record
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "kept"))
    monkeypatch.setattr(capturing, "record", lambda *about: made.append(about) or record(*about))
    return made


ALL = (outputs, lambda: outputs(users_network()), scores)


def record_all():
    for work in ALL:
        work()


def outputs_by_what_is_kept():
    """Fail if anything is recorded, or a recording computes other bits."""
    for work in ALL:
        with mock.patch.object(capturing, "record", side_effect=AssertionError):
            found = work()
        with mock.patch.dict(os.environ, {cache.VARIABLE: ""}):
            assert mx.array_equal(found, work())


@pytest.mark.heavy
@pytest.mark.usefixtures("recorded")
def test_a_second_process_records_nothing_and_computes_the_same_bits():
    place = {"PYTHONPATH": str(Path(__file__).parents[6])}
    for seed, work in (("7", record_all), ("8", outputs_by_what_is_kept)):
        environment = os.environ | place | {"PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", CHILD.format(work.__name__)]
        subprocess.run(command, check=True, env=environment)


def test_weights_are_not_part_of_a_recording(recorded):
    first = outputs()
    module = network(seed=1)
    with torch.no_grad():
        wanted = module(torch.arange(24.0).reshape(3, 8))
    found = outputs(module)
    assert len(recorded) == 1
    assert not mx.array_equal(first, found)
    np.testing.assert_allclose(np.array(found), wanted.numpy(), rtol=1e-5, atol=1e-6)


def key(module=None, inputs=INPUTS, dynamic=None, passes=None):
    return stored.key_of(module or network(), inputs, dynamic or {}, passes)


@pytest.mark.usefixtures("recorded")
def test_whatever_the_graph_depends_on_makes_another_key(monkeypatch):
    monkeypatch.setattr(stored, "check_package", lambda _: None)  # it takes long
    frozen, tied = network(), network()
    frozen[0].weight.requires_grad_(False)
    tied.append(tied[0])
    keys = [
        key(),
        key(network(width=9)),
        key(network(eps=1e-6)),
        key(network().train()),
        key(network().bfloat16()),
        key(frozen),
        key(tied),
        key(nn.Sequential(*network()[:2], nn.GELU(approximate="tanh")).eval()),
        key(nn.Sequential(*network()[:2], nn.SiLU()).eval()),
        key(inputs={"input": torch.ones(3, 8)}),
        key(inputs={"input": torch.ones(2, 8).double()}),
        key(dynamic={"input": {0: "batch"}}),
        key(passes=("gelu",)),
    ]
    assert None not in keys
    assert len({*map(str, keys)}) == len(keys)
    assert key() == key()


@pytest.mark.usefixtures("recorded")
def test_a_library_with_a_function_of_users_in_it_has_no_key(monkeypatch):
    monkeypatch.setattr(nn.functional, "gelu", lambda x, **_: x)
    assert key() is None
    assert key(nn.Sequential(Doubled(8, 8))) is None


@pytest.mark.usefixtures("recorded")
def test_what_torch_compiled_of_a_library_changes_no_key(monkeypatch):
    plain = key()
    compiled = torch.compiler.disable(torch.fx.symbolic_trace(network()).forward)
    monkeypatch.setattr(nn.functional, "__compiled_fn_1_0", compiled, raising=False)
    assert key() == plain is not None


@pytest.mark.usefixtures("recorded")
def test_a_function_of_a_library_in_the_place_of_another_makes_another_key(monkeypatch):
    monkeypatch.setattr(stored, "check_package", lambda _: None)
    module, llama = nn.Sequential(nn.Linear(8, 8), nn.ReLU()), tiny_llama()
    plain, text = key(module), key(llama, inputs=TEXT)
    assert None not in [plain, text]

    def other(module, places, inputs=INPUTS):
        with monkeypatch.context() as patched:
            for place in places:
                patched.setattr(*place)
            return key(module, inputs=inputs)

    wrapper = functools.partial(nn.functional.leaky_relu, negative_slope=0.3)
    keys = {
        str(plain),
        str(other(module, [(nn.ReLU, "forward", nn.Tanh.forward)])),
        str(other(module, [(nn.functional, "silu", wrapper)])),
        str(other(module, [(nn.functional, "silu", nn.functional.relu)])),
    }
    assert len(keys) == 4
    rotation = (modeling_llama, "apply_rotary_pos_emb", modeling_cohere.apply_rotary_pos_emb)
    assert other(llama, [rotation], TEXT) not in [None, text]
    assert (key(module), key(llama, inputs=TEXT)) == (plain, text)


@pytest.mark.usefixtures("recorded")
def test_settings_of_unknown_kinds_have_no_key():
    module = network()
    module[0].setting = object()
    assert key(module) is None


@pytest.mark.parametrize("damage", ["cut", "sealed nonsense"])
def test_a_damaged_recording_is_made_again(recorded, tmp_path, damage):
    first = outputs()
    (file,) = (tmp_path / "kept").glob("*.json")
    text = '{"graph": 1}'
    spoiled = f"{cache.fingerprint(text)}\n{text}" if damage != "cut" else file.read_text()[:-9]
    file.write_text(spoiled)
    assert mx.array_equal(first, outputs())
    assert len(recorded) == 2


def test_a_folder_that_cannot_be_written_is_no_error(recorded, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "file" / "kept"))
    assert mx.array_equal(outputs(), outputs())
    assert len(recorded) == 2


def test_a_full_disk_is_no_error(recorded, tmp_path, monkeypatch):
    def full(*_about, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    outputs()
    assert not [*(tmp_path / "kept").glob("*")]


@pytest.mark.usefixtures("recorded")
def test_a_model_of_transformers_is_told_by_its_configuration():
    from transformers import BertConfig, BertModel

    sizes = {"vocab_size": 17, "hidden_size": 8, "num_hidden_layers": 1, "intermediate_size": 9}

    def key_of_bert(**changes):
        module = BertModel(BertConfig(**{**sizes, "num_attention_heads": 2, **changes})).eval()
        return key(module, {"input_ids": torch.ones((2, 4), dtype=torch.long)})

    plain, other, eager = (
        key_of_bert(),
        key_of_bert(hidden_act="relu"),
        key_of_bert(attn_implementation="eager"),
    )
    assert None not in (plain, other, eager)
    assert len({*map(str, (plain, other, eager))}) == 3


def blocks():
    torch.manual_seed(0)
    lead = [nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Tanh()]
    return nn.Sequential(*lead, nn.Sequential(nn.Conv2d(4, 4, 1), nn.GELU(), nn.Conv2d(4, 4, 1)))


def test_a_recording_read_back_computes_again_and_takes_corrections_as_the_first(recorded):
    pictures = torch.ones(1, 2, 6, 6)
    correction = {"1": mx.random.normal((1, 4, 4, 4))}
    seen = []
    for _ in range(2):
        captured = capture(blocks(), inputs={"input": pictures})
        corrected, _ = captured.trace({"input": mx.ones((1, 2, 6, 6))}, correction)
        captured.checkpoint(["3"])
        graph = captured._wiring.graph(captured.recording)
        seen.append((np.array(corrected), [step.label for step in graph.steps]))
    assert len(recorded) == 1
    (first, own), (again, read) = seen
    assert np.array_equal(first, again)
    assert "segment in 3" in own
    assert read == own
