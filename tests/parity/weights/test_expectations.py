"""Weights that a class multiplies by a vector go back trained, and the check sees what they are."""

import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from weighbridge import jobs
from weighbridge.converters.planning.opening import open as open_model
from weighbridge.jobs.checking import expected_of
from weighbridge.parity.weights.expectations import with_programs
from weighbridge.parity.weights.reference_index import Explanation
from weighbridge.tests.support.atlas import row, tiny

MAP = """weighbridge map 1
layers.{n}.in.weight => layers.{n}.in.weight
    by a = Constant() float32 [3 1] [3.0 0.7 1.3];
       b = Broadcast(a) [3 50];
       $0 = Multiply(#0, b)
layers.{n}.out.weight <-> same
"""
FILE = "model.safetensors"


@pytest.fixture
def source(tmp_path):
    generator = np.random.default_rng(0)
    folder = tmp_path / "source"
    folder.mkdir()
    shapes = {
        "layers.0.in.weight": (3, 50),
        "layers.1.in.weight": (3, 50),
        "layers.0.out.weight": (2,),
    }
    tensors = {k: generator.normal(size=shape).astype(np.float32) for k, shape in shapes.items()}
    tensors["layers.1.out.weight"] = tensors["layers.0.out.weight"] * 2
    save_file(tensors, folder / FILE, metadata={"format": "pt"})
    (folder / "config.json").write_text("{}")
    (tmp_path / "own.wmap").write_text(MAP)
    return folder


def to_mlx(source, target):
    options = jobs.Options(check="none", map=str(source.with_name("own.wmap")))
    jobs.convert(str(source), target, "mlx", options=options)
    return target


def home(mlx, target, **chosen):
    options = jobs.Options(check="none", **chosen)
    return jobs.convert(str(mlx), target, "torch", options=options).facts


def train(folder, name):
    tensors = load_file(folder / FILE)
    tensors[name] = tensors[name] + np.float32(0.125)
    save_file(tensors, folder / FILE, metadata={"format": "mlx"})
    return tensors[name]


def test_untrained_weights_come_home_as_they_were(source, tmp_path):
    mlx = to_mlx(source, tmp_path / "mlx")
    home(mlx, tmp_path / "home")
    assert (tmp_path / "home" / FILE).read_bytes() == (source / FILE).read_bytes()


def test_trained_weights_lead_to_what_was_trained_but_for_those_that_are_counted(source, tmp_path):
    mlx, name = to_mlx(source, tmp_path / "mlx"), "layers.1.in.weight"
    trained = train(mlx, name)
    facts = home(mlx, tmp_path / "home")
    assert facts["trained"] == [name]
    again = load_file(to_mlx_again(source, tmp_path) / FILE)[name]
    missed = np.count_nonzero(again.view(np.uint32) != trained.view(np.uint32))
    assert missed == without_preimage(trained, np.float32([[3.0], [0.7], [1.3]]))
    assert missed > 0
    assert facts["missed"] == {name: missed}
    assert facts["notes"][0].startswith(
        f"{missed} of 150 numbers in 1 weights have no exact preimage"
    )
    other = "layers.0.in.weight"
    assert np.array_equal(
        load_file(tmp_path / "home" / FILE)[other], load_file(source / FILE)[other]
    )


def without_preimage(products, factors):
    """Count the PRODUCTS that no float32 gives, times its factor: the quotient's neighbours tell."""
    nearest = (products.astype(np.float64) / factors).astype(np.float32)
    reached = nearest * factors == products
    for end in (np.float32(np.inf), np.float32(-np.inf)):
        beside = np.nextafter(nearest, end)
        reached |= (beside * factors == products) | (
            np.nextafter(beside, end) * factors == products
        )
    return np.count_nonzero(~reached)


def to_mlx_again(source, tmp_path):
    options = jobs.Options(check="none", map=str(source.with_name("own.wmap")))
    return jobs.convert(str(tmp_path / "home"), tmp_path / "again", "mlx", options=options).target


def test_without_a_sidecar_the_weights_come_home_all_the_same(source, tmp_path):
    mlx = to_mlx(source, tmp_path / "mlx")
    (mlx / "weighbridge.sidecar").unlink()
    assert "missed" not in home(mlx, tmp_path / "home")
    again = to_mlx_again(source, tmp_path)
    assert row.read(again) == row.read(mlx)


@pytest.mark.parametrize("spoil", [False, True])
def test_the_check_explains_such_weights_by_value_and_only_where_they_agree(
    source, tmp_path, spoil
):
    mlx, name = to_mlx(source, tmp_path / "mlx"), "layers.0.in.weight"
    train(mlx, name)
    home(mlx, tmp_path / "home")
    if spoil:
        train(tmp_path / "home", name)
    expected = expected_of(open_model(str(mlx)), open_model(str(tmp_path / "home")))
    [told] = with_programs([Explanation(name, name, "unexplained", "", ok=False)], expected)
    assert (told.kind, told.ok) == (("inconclusive", False) if spoil else ("computed", True))


@pytest.mark.heavy
def test_a_trained_falcon_h1_comes_home_and_passes(tmp_path):
    """Without the two factors that mlx-lm does not fold in, so that both libraries agree."""
    own = {"key_multiplier": 1.0, "attention_in_multiplier": 1.0}
    folder = tiny.make("falcon_h1", tmp_path / "hub", own=own).folder
    to = jobs.convert(str(folder), tmp_path / "mlx", "mlx", options=jobs.Options())
    assert to.status == "PASS"
    shutil.copytree(tmp_path / "mlx", tmp_path / "trained")
    row.change(tmp_path / "trained")
    outcome = jobs.convert(
        str(tmp_path / "trained"), tmp_path / "home", "torch", options=jobs.Options()
    )
    assert outcome.status == "PASS"
    assert set(outcome.facts["missed"]) == {
        f"model.layers.{n}.mamba.in_proj.weight" for n in range(4)
    }
