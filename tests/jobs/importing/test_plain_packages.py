"""Packages that plain coremltools made of traced modules, brought back by a configuration that the user names."""

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.numpy import load_file

from weighbridge.cli import main
from weighbridge.converters.models import open as open_model
from weighbridge.converters.runtimes.torch import build
from weighbridge.tests.support.coreml import modules
from weighbridge.tests.support.coreml.foreign import CAUSAL, Masked, converted
from weighbridge.tests.support.coreml.models import make

pytestmark = pytest.mark.filterwarnings("ignore")


def brought_back(package, folder, like, *options):
    """Return what is said of PACKAGE brought back to FOLDER, and the tensors found."""
    words = ("convert", "coreml-to-torch", package, folder / "back", "--like", like, *options)
    result = CliRunner().invoke(main, [*map(str, words)])
    assert result.exit_code == 0, result.output
    assert "PASS-REFERENCE" in result.output
    return result.output, load_file(folder / "back/model.safetensors")


def of_module(name, folder, precision="float32"):
    """Return the module NAME, and what is said and found of its package."""
    module, signature = getattr(modules, name)()
    package = converted(module, signature, folder / "m.mlpackage", precision, called=("x",))
    (folder / "like").mkdir()
    (folder / "like/config.json").write_text("{}")
    code = ("--trust-code", f"{modules.__name__}:{name}")
    return module, *brought_back(package, folder, folder / "like", *code)


def test_batch_norms_in_convolutions_come_back_as_what_computes_the_same(tmp_path):
    module, told, found = of_module("normed", tmp_path)
    assert "convolution and batch norm in one" in told
    assert "norms.0, norms.1" in told
    wanted = {name: it.numpy() for name, it in module.state_dict().items()}
    assert found.keys() == {name for name in wanted if not name.endswith("num_batches_tracked")}
    assert np.array_equal(found["head.weight"], wanted["head.weight"])
    other, image = modules.normed()[0].eval(), torch.rand(4, 3, 16, 16)
    other.load_state_dict({n: torch.from_numpy(it) for n, it in found.items()}, strict=False)
    assert torch.allclose(other(image), module.eval()(image), rtol=1e-5, atol=1e-5)


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_recurrent_layers_come_back(name, tmp_path):
    module, _, found = of_module(name, tmp_path)
    assert found.keys() == module.state_dict().keys() - {"norm.num_batches_tracked"}


@pytest.mark.heavy
def test_weights_without_telling_names_come_back_by_the_order_of_operations(tmp_path):
    source = make("GPT-2", tmp_path / "source")
    model = open_model(str(source))
    module = Masked(build(model, "float32")[0], CAUSAL["GPT-2"])
    package = converted(
        module, model.signature, tmp_path / "m.mlpackage", "float32", called=("tokens",), most=96
    )
    _, found = brought_back(package, tmp_path, source)
    wanted = load_file(source / "model.safetensors")
    assert found.keys() == wanted.keys()
    assert all(found[name].tobytes() == wanted[name].tobytes() for name in wanted)


@pytest.mark.heavy
def test_rows_that_a_package_of_fixed_size_lacks_are_named_with_a_way_out(tmp_path):
    source = make("BERT", tmp_path / "source")
    model = open_model(str(source))
    module = Masked(build(model, "float32")[0], None)
    names = ("input_ids", "attention_mask")
    package = converted(module, model.signature, tmp_path / "m.mlpackage", called=names)
    words = ("convert", "coreml-to-torch", package, tmp_path / "back", "--like", source)
    result = CliRunner().invoke(main, [*map(str, words)])
    assert result.exit_code == 3
    assert "embeddings.position_embeddings.weight went into position_embeddings_1" in result.output
    assert "RangeDim" in result.output
