"""The way home is exact where something was kept, and training is never undone."""

import json
import shutil

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from weighbridge import jobs
from weighbridge.converters.sidefiles import SIDECAR
from weighbridge.errors import BadInputError, MismatchError

MAP = """weighbridge map 1
layers.{n}.norm.weight       <-> same + 1
layers.{n}.linear.weight     <-> same
tower.{**}                    -> original
"""


def write(folder, *, tower=(3, 5)):
    """Write a torch checkpoint in bfloat16, norms near zero, as `+ 1` norms are stored."""
    generator = np.random.default_rng(0)
    shapes = {"tower.patch.weight": tower}
    for n in range(2):
        shapes |= {f"layers.{n}.norm.weight": (7,), f"layers.{n}.linear.weight": (7, 5)}
    folder.mkdir(parents=True)
    tensors = {
        name: (generator.normal(size=shape) * 0.05).astype(ml_dtypes.bfloat16)
        for name, shape in shapes.items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture
def options(tmp_path):
    path = tmp_path / "own.wmap"
    path.write_text(MAP)

    def choose(**chosen):
        return jobs.Options(check="none", map=str(path), **chosen)

    return choose


@pytest.fixture
def source(tmp_path):
    return write(tmp_path / "source")


def there(source, target, options, **chosen):
    return jobs.convert(str(source), target, "mlx", options=options(**chosen))


def home(mlx, target, **chosen):
    return jobs.convert(str(mlx), target, "torch", options=jobs.Options(check="none", **chosen))


def weights(folder):
    return {name: a.tobytes() for name, a in load_file(folder / "model.safetensors").items()}


def train(folder, name):
    """Change one weight of an MLX directory, as training would."""
    tensors = load_file(folder / "model.safetensors")
    tensors[name] = (tensors[name].astype(np.float32) * 1.25).astype(ml_dtypes.bfloat16)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "mlx"})
    return tensors[name]


def test_what_rounding_and_dropping_lose_comes_home_from_the_sidecar(source, options, tmp_path):
    there(source, tmp_path / "mlx", options)
    home(tmp_path / "mlx", tmp_path / "home")
    assert weights(tmp_path / "home") == weights(source)


def test_without_a_sidecar_the_rounding_shows(source, options, tmp_path):
    """The control of the test above: it would pass without a sidecar if nothing were lost."""
    there(source, tmp_path / "mlx", options, sidecar="none")
    home(tmp_path / "mlx", tmp_path / "home", original="none")
    assert (
        weights(tmp_path / "home")["layers.0.norm.weight"]
        != weights(source)["layers.0.norm.weight"]
    )


def test_mlx_loaders_do_not_take_the_sidecar_for_weights(source, options, tmp_path):
    there(source, tmp_path / "mlx", options)
    assert (tmp_path / "mlx" / SIDECAR).is_file()
    assert [path.name for path in (tmp_path / "mlx").glob("*.safetensors")] == ["model.safetensors"]


def test_training_is_never_undone(source, options, tmp_path):
    there(source, tmp_path / "mlx", options)
    trained = train(tmp_path / "mlx", "layers.1.norm.weight")
    outcome = home(tmp_path / "mlx", tmp_path / "home")
    assert outcome.facts["trained"] == ["layers.1.norm.weight"]
    there(tmp_path / "home", tmp_path / "again", options)
    again = load_file(tmp_path / "again" / "model.safetensors")["layers.1.norm.weight"]
    assert again.tobytes() == trained.tobytes()
    other = "layers.0.norm.weight"
    assert weights(tmp_path / "home")[other] == weights(source)[other]


def test_what_is_too_large_for_the_sidecar_comes_from_the_original(options, tmp_path):
    source = write(tmp_path / "large", tower=(700, 800))
    there(source, tmp_path / "mlx", options)
    with pytest.raises(MismatchError, match="--original") as refused:
        home(tmp_path / "mlx", tmp_path / "home")
    assert "tower.patch.weight BF16[700, 800]" in str(refused.value)
    assert not (tmp_path / "home").exists()
    home(tmp_path / "mlx", tmp_path / "home", original=str(source))
    assert weights(tmp_path / "home") == weights(source)
    home(tmp_path / "mlx", tmp_path / "less", original="none")
    assert weights(source).keys() - weights(tmp_path / "less").keys() == {"tower.patch.weight"}


def test_all_keeps_what_is_large_too(options, tmp_path):
    source = write(tmp_path / "large", tower=(700, 800))
    there(source, tmp_path / "mlx", options, sidecar="all")
    home(tmp_path / "mlx", tmp_path / "home")
    assert weights(tmp_path / "home") == weights(source)


BESIDE = """weighbridge map 1
layers.{n}.norm.weight   <-> same + 1
layers.{n}.linear.weight [a b] <-> [b a]
layers.{n}.mask          -> recomputed
head.weight == layers.0.linear.weight
other.weight == layers.1.norm.weight
tower.{**}               -> original
"""


@pytest.fixture
def beside(tmp_path, options):
    """Write a checkpoint that has what no MLX class reads: masks, and second names of a tensor."""
    (tmp_path / "own.wmap").write_text(BESIDE)
    folder = write(tmp_path / "beside")
    tensors = load_file(folder / "model.safetensors")
    tensors |= {f"layers.{n}.mask": np.tril(np.ones((5, 7), np.bool_)) for n in range(2)}
    tensors["head.weight"] = tensors["layers.0.linear.weight"]
    tensors["other.weight"] = tensors["layers.1.norm.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_masks_and_aliases_come_home_byte_for_byte(beside, options, tmp_path):
    there(beside, tmp_path / "mlx", options)
    home(tmp_path / "mlx", tmp_path / "home")
    file = "model.safetensors"
    assert (tmp_path / "home" / file).read_bytes() == (beside / file).read_bytes()


def test_masks_come_from_the_original_and_nobody_insists(beside, options, tmp_path):
    there(beside, tmp_path / "mlx", options, sidecar="none")
    home(tmp_path / "mlx", tmp_path / "home", original=str(beside))
    assert weights(tmp_path / "home") == weights(beside)
    home(tmp_path / "mlx", tmp_path / "less", original="none")
    gone = weights(beside).keys() - weights(tmp_path / "less").keys()
    assert gone == {"layers.0.mask", "layers.1.mask", "tower.patch.weight"}


def test_a_large_mask_is_not_kept_unasked(beside, options, tmp_path):
    tensors = load_file(beside / "model.safetensors")
    tensors["layers.1.mask"] = np.ones((1030, 1031), np.bool_)
    save_file(tensors, beside / "model.safetensors", metadata={"format": "pt"})
    there(beside, tmp_path / "mlx", options)
    home(tmp_path / "mlx", tmp_path / "home")
    found = weights(tmp_path / "home")
    assert not {"layers.0.mask", "layers.1.mask"} & found.keys()
    assert "tower.patch.weight" in found  # another group


def test_an_alias_is_the_trained_tensor(beside, options, tmp_path):
    there(beside, tmp_path / "mlx", options)
    for name in ("layers.0.linear.weight", "layers.1.norm.weight"):
        train(tmp_path / "mlx", name)
    home(tmp_path / "mlx", tmp_path / "home")
    found, before = weights(tmp_path / "home"), weights(beside)
    assert found["head.weight"] == found["layers.0.linear.weight"] != before["head.weight"]
    assert found["other.weight"] == found["layers.1.norm.weight"] != before["other.weight"]


def test_another_original_is_not_taken_for_the_right_one(source, options, tmp_path):
    there(source, tmp_path / "mlx", options, sidecar="none")
    other = tmp_path / "other"
    shutil.copytree(source, other)
    train(other, "layers.0.norm.weight")
    outcome = home(tmp_path / "mlx", tmp_path / "home", original=str(other))
    assert outcome.facts["trained"] == ["layers.0.norm.weight"]


def test_an_original_that_is_not_there_is_one_line(source, options, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    there(source, tmp_path / "mlx", options)
    with pytest.raises(BadInputError, match="--original no/such"):
        home(tmp_path / "mlx", tmp_path / "home", original="no/such")


def test_a_damaged_manifest_is_named(source, options, tmp_path):
    there(source, tmp_path / "mlx", options)
    path = tmp_path / "mlx" / "weighbridge.json"
    manifest = json.loads(path.read_text())
    manifest["source"]["tensors"]["layers.0.norm.weight"] = "BF16[x]"
    path.write_text(json.dumps(manifest))
    with pytest.raises(BadInputError, match=r"source\.tensors"):
        home(tmp_path / "mlx", tmp_path / "home")


def test_what_was_dropped_comes_home_only_if_it_is_what_was_there(options, tmp_path):
    source = write(tmp_path / "large", tower=(700, 800))
    there(source, tmp_path / "mlx", options)
    other = tmp_path / "other"
    shutil.copytree(source, other)
    train(other, "tower.patch.weight")
    with pytest.raises(MismatchError, match=r"tower\.patch\.weight of .* is not what the model"):
        home(tmp_path / "mlx", tmp_path / "home", original=str(other))
    assert not (tmp_path / "home").exists()


def test_a_sidecar_that_somebody_changed_is_refused(source, options, tmp_path):
    there(source, tmp_path / "mlx", options)
    kept = load_file(tmp_path / "mlx" / SIDECAR)
    kept["tower.patch.weight"] = -kept["tower.patch.weight"]
    save_file(kept, tmp_path / "mlx" / SIDECAR)
    with pytest.raises(MismatchError, match=r"tower\.patch\.weight"):
        home(tmp_path / "mlx", tmp_path / "home")


def test_a_lost_sidecar_is_said(source, options, tmp_path):
    there(source, tmp_path / "mlx", options)
    (tmp_path / "mlx" / SIDECAR).unlink()
    outcome = home(tmp_path / "mlx", tmp_path / "home", original="none")
    assert any("are not there any more" in note for note in outcome.facts["notes"])


def test_what_nobody_recorded_is_said_to_be_unverified(options, tmp_path):
    source = write(tmp_path / "large", tower=(700, 800))
    there(source, tmp_path / "mlx", options)
    manifest = json.loads((tmp_path / "mlx" / "weighbridge.json").read_text())
    del manifest["dropped_hashes"]
    (tmp_path / "mlx" / "weighbridge.json").write_text(json.dumps(manifest))
    outcome = home(tmp_path / "mlx", tmp_path / "home", original=str(source))
    assert any("nothing recorded says" in note for note in outcome.facts["notes"])


def test_an_original_with_a_tensor_of_another_shape_has_not_that_tensor(options, tmp_path):
    there(write(tmp_path / "large", tower=(700, 800)), tmp_path / "mlx", options)
    manifest = json.loads((tmp_path / "mlx" / "weighbridge.json").read_text())
    del manifest["dropped_hashes"]  # as before they were recorded
    (tmp_path / "mlx" / "weighbridge.json").write_text(json.dumps(manifest))
    other = write(tmp_path / "other", tower=(800, 700))
    with pytest.raises(MismatchError, match="alone") as refused:
        home(tmp_path / "mlx", tmp_path / "home", original=str(other))
    assert list(refused.value.problems) == [
        "tower.patch.weight BF16[700, 800] is in the original alone"
    ]
