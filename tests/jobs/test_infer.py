"""An inferred map is done only once parity passes with it."""

import importlib
import json
import sys
from textwrap import dedent

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file

from tests.converters.maps.infer.scramble import scramble, state
from weighbridge.cli import main
from weighbridge.converters.maps import WeightMap
from weighbridge.converters.models import Model
from weighbridge.converters.models import open as open_model
from weighbridge.errors import BadInputError
from weighbridge.jobs.infer import infer_map
from weighbridge.jobs.options import Options

TORCH = "examples.ports.encoder:build"
FULL, NONE = Options(check="full"), Options(check="none")


@pytest.fixture(scope="module")
def source():
    return open_model(TORCH)


@pytest.fixture(scope="module")
def made():
    return scramble("encoder", 1)


@pytest.fixture
def code(made, tmp_path, monkeypatch):
    """Return MODULE:FUNCTION of the scrambled port."""
    (tmp_path / "scrambled_port.py").write_text(
        "from tests.converters.maps.infer.scramble import scramble\n"
        "def build():\n    return scramble('encoder', 1).module()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "scrambled_port:build"
    sys.modules.pop("scrambled_port", None)
    importlib.invalidate_caches()


@pytest.fixture
def held(source, made, tmp_path):
    """Return a file of converted weights that says of itself nothing but names and shapes."""
    stored = made.store(state(source.factory))
    save_file(
        {n: np.ascontiguousarray(a) for n, a in stored.items()}, tmp_path / "port.safetensors"
    )
    return tmp_path / "port.safetensors"


def test_a_native_module_with_random_weights_is_enough(source, made, code):
    found = infer_map(source, open_model(code), FULL)
    assert (found.status, found.done, found.guesses) == ("PASS", True, ())
    assert found.text.startswith("# done: parity with this map says PASS")
    weights = state(source.factory)
    plan = WeightMap.parse(found.text).bind(open_headers(source))
    assert plan.layout.keys() == made.store(weights).keys()


def open_headers(model):
    from weighbridge.jobs.infer import side_of

    return side_of(model).headers


def test_values_prove_the_pairs_but_without_a_module_it_is_not_done(source, held):
    found = infer_map(source, open_model(held), FULL)
    assert found.proofs == {"value": 52}
    assert not found.done
    assert found.status == "UNVERIFIED"
    assert "--candidate-code" in found.text.splitlines()[0]


def test_values_and_a_module_are_done(source, held, code):
    found = infer_map(source, open_model(held), Options(check="quick", candidate_code=code))
    assert found.proofs == {"value": 52}
    assert found.done


def test_an_archive_of_numpy_is_a_candidate_too(source, made, tmp_path):
    np.savez(tmp_path / "port.npz", **made.store(state(source.factory)))
    assert infer_map(source, open_model(tmp_path / "port.npz"), NONE).proofs == {"value": 52}


def test_it_is_not_done_where_parity_was_not_asked(source, code):
    found = infer_map(source, open_model(code), NONE)
    assert found.guesses == ()
    assert not found.done
    assert "--check none" in found.text.splitlines()[0]


def test_a_port_that_computes_something_else_is_not_done(source):
    import mlx.core as mx
    from mlx import nn

    inner = scramble("encoder", 2).module()  # nothing fused, so few arrangements to try

    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.update_from(inner.parameters())

        def update_from(self, tree) -> None:
            for key, value in tree.items():
                self[key] = value

        def __call__(self, **inputs) -> mx.array:
            inner.update(self.parameters())
            return inner(**inputs) + 0.01

    wrong = Model("wrong", "mlx", None, {}, factory=Other())
    found = infer_map(source, wrong, Options(check="quick"))
    assert found.status == "DIFFERS"
    assert found.text.startswith("# NOT DONE")
    assert found.proofs["outputs"] == 0


def test_inputs_of_a_user_stand_in_for_a_signature(made, tmp_path):
    module, _ = made.port.build()
    bare = Model("bare", "torch", None, {}, factory=module)
    candidate = Model("port", "mlx", None, {}, factory=made.module())
    without = infer_map(bare, candidate, FULL)
    assert "--inputs" in without.text.splitlines()[0]
    ids = np.random.default_rng(0).integers(0, 60, (2, 9))
    np.savez(tmp_path / "inputs.npz", input_ids=ids, attention_mask=np.ones_like(ids))
    found = infer_map(bare, candidate, Options(check="full", inputs=tmp_path / "inputs.npz"))
    assert found.done


@pytest.mark.parametrize(
    ("torch_spec", "candidate_spec", "says"),
    [
        (TORCH, TORCH, "is torch, but a candidate is a port to MLX"),
        ("examples.ports.encoder:build_mlx", TORCH, "must be torch's"),
        (TORCH, "examples.ports.experts:build_mlx", "cannot be the same model"),
    ],
)
def test_sides_that_cannot_be_are_refused_in_one_line(torch_spec, candidate_spec, says):
    with pytest.raises(BadInputError) as error:
        infer_map(open_model(torch_spec), open_model(candidate_spec), NONE)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_module_that_does_not_fit_the_candidate_is_refused(source, held):
    options = Options(check="quick", candidate_code="examples.ports.encoder:build_mlx")
    with pytest.raises(BadInputError, match="its weights are not those of"):
        infer_map(source, open_model(held), options)


def test_code_that_is_not_mlx_is_refused(source, held):
    with pytest.raises(BadInputError, match=r"no mlx\.nn\.Module"):
        infer_map(source, open_model(held), Options(candidate_code=TORCH))


def test_a_directory_without_weights_is_refused(source, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(BadInputError, match="no tensor files"):
        infer_map(source, open_model(tmp_path), NONE)


def test_files_that_say_they_are_torchs_are_no_candidate(source, held, tmp_path):
    save_file({"w": np.zeros((2, 3), np.float32)}, tmp_path / "pt.safetensors", {"format": "pt"})
    with pytest.raises(BadInputError, match="is torch"):
        infer_map(source, open_model(tmp_path / "pt.safetensors"), NONE)


EXPERTS = """
    import mlx.core as mx
    import mlx.nn
    import torch
    from weighbridge.converters.models import Port, Signature

    PORTS = [Port(name, "float32", ("batch", 8, 10), "hidden", (("batch", 4),)) for name in "xy"]
    SIGNATURE = Signature((PORTS[0],), (PORTS[1],))
    COUNT, WIDTH, INNER = 3, 10, 14

    class Expert(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.up, self.down = (
                torch.nn.Linear(*sizes, bias=False)
                for sizes in ((WIDTH, INNER), (WIDTH, INNER), (INNER, WIDTH))
            )

        def forward(self, x):
            return self.down(torch.nn.functional.silu(self.gate(x)) * self.up(x))

    class Apart(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.router = torch.nn.Linear(WIDTH, COUNT, bias=False)
            self.experts = torch.nn.ModuleList(Expert() for _ in range(COUNT))

        def forward(self, x):
            shares = self.router(x).softmax(-1)
            return sum(shares[..., n : n + 1] * it(x) for n, it in enumerate(self.experts))

    class Stacked(mlx.nn.Module):
        def __init__(self):
            super().__init__()
            self.router = mlx.nn.Linear(WIDTH, COUNT, bias=False)
            self.gate_up = mx.random.normal((COUNT, WIDTH, 2 * INNER))
            self.down = mx.random.normal((COUNT, INNER, WIDTH))

        def expert(self, n, x):
            both = x @ self.gate_up[n]
            gate, up = both[..., 0::2], both[..., 1::2]
            return (gate * mx.sigmoid(gate) * up) @ self.down[n]

        def __call__(self, x):
            shares = mx.softmax(self.router(x), -1)
            return sum(shares[..., n : n + 1] * self.expert(n, x) for n in range(COUNT))

    def build():
        return Apart(), SIGNATURE

    def build_port():
        return Stacked(), SIGNATURE
"""


def test_experts_stacked_transposed_and_interleaved_are_paired_and_pass(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "expert_ports.py").write_text(dedent(EXPERTS))
    pair = ["expert_ports:build", "expert_ports:build_port"]
    result = CliRunner().invoke(main, ["map", "infer", *pair, str(tmp_path / "m.wmap"), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["status"] == "PASS"


def test_where_no_pairing_was_found_that_is_what_is_said(source):
    other = Model("other", "mlx", None, {}, factory=scramble("encoder", 2).module())
    weights = dict(other.factory.parameters())
    other.factory.update(weights)
    other.factory.__class__ = type(
        "Other", (type(other.factory),), {"__call__": negated(other.factory)}
    )
    found = infer_map(source, other, NONE)
    assert "no pairing was found" in found.text
    assert "however" not in found.text


def negated(module):
    plain = type(module).__call__
    return lambda self, **inputs: -plain(self, **inputs)
