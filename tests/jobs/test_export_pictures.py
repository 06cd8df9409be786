"""Packages that take pictures and give class labels: exported by the verb, run with the processor's own numbers."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
import transformers
from click.testing import CliRunner
from PIL import Image

from weighbridge.cli import main
from weighbridge.converters.captures.mlprogram import load_program
from weighbridge.converters.captures.mlprogram.names import classes_of
from weighbridge.converters.captures.mlprogram.package import read_package
from weighbridge.converters.captures.mlprogram.signatures import read_signature
from weighbridge.converters.models.pictures import picture_of, processor_of
from weighbridge.errors import BadInputError, MismatchError, UnsupportedError
from weighbridge.tests.faults.commands import classifier_of_pictures

pytestmark = pytest.mark.filterwarnings("ignore")
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]  # of ImageNet, one a channel


def run(*arguments):
    """Run the command line; return the exit code, and what was said."""
    result = CliRunner().invoke(main, [*map(str, arguments)])
    return result.exit_code, result.stdout + result.stderr


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Return the directory of a small classifier, with its image processor."""
    return classifier_of_pictures(tmp_path_factory.mktemp("vit"))


@pytest.fixture(scope="module")
def package(source):
    """Return a package of it, in float32, that takes pictures and gives labels."""
    target = source.with_name("m.mlpackage")
    options = ("--image", "pixel_values", "--labels", "config", "--precision", "float32")
    code, told = run("export", "coreml", source, target, *options)
    assert code == 0, told
    return target


@pytest.fixture(scope="module")
def photograph():
    """Return a picture of three channels."""
    draw = np.random.default_rng(0)
    return Image.fromarray(draw.integers(0, 256, (12, 12, 3), dtype=np.uint8))


def test_a_picture_gives_what_the_processor_and_the_source_make_of_it(source, package, photograph):
    processor = transformers.ViTImageProcessorPil.from_pretrained(source)
    model = transformers.ViTForImageClassification.from_pretrained(source).eval()
    with torch.no_grad():
        expected = model(**processor(photograph, return_tensors="pt")).logits.numpy()
    planes = np.moveaxis(np.asarray(photograph), -1, 0)[None].astype(np.float32)
    found = load_program(package).run({"pixel_values": planes})["logits"]
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


def test_a_package_describes_a_picture_and_its_labels(package):
    described = read_package(package).spec.description
    (port,) = described.input
    image = port.type.imageType
    assert (image.width, image.height) == (12, 12)
    assert image.ColorSpace.Name(image.colorSpace) == "RGB"
    assert described.predictedFeatureName == "classLabel"
    kinds = {it.name: it.type.WhichOneof("Type") for it in described.output}
    assert kinds["classLabel"] == "stringType"
    assert kinds["classLabel_probs"] == "dictionaryType"


def test_labels_are_those_of_config_json_and_repeated_ones_are_told_apart(package):
    found = classes_of(load_program(package).body)
    assert found == ("cat", "dog", "crane (2)", "crane (3)")


def test_inspect_names_pictures_and_labels_and_how_to_run_them(package):
    code, told = run("inspect", package, "--json")
    facts = json.loads(told)
    assert code == 0
    assert facts["pictures"] == ["pixel_values: RGB of 12 x 12"]
    assert facts["labels"] == "classLabel: 4 (cat, dog, crane (2), crane (3))"
    assert "Image.new('RGB', (12, 12))" in told


def altered(package, target, change):
    """Write PACKAGE to TARGET, its specification CHANGED."""
    shutil.copytree(package, target)
    file = next(target.rglob("*.mlmodel"))
    spec = read_package(target).spec
    change(spec)
    file.write_bytes(spec.SerializeToString())
    return target


def other_mean(spec):
    function = next(iter(spec.mlProgram.functions.values()))
    block = function.block_specializations[function.opset]
    constants = {out.name: it for it in block.operations for out in it.outputs}
    value = constants["view"].attributes["val"].immediateValue.tensor.floats.values
    value[1] *= 1.01


def other_mean_and_record(spec):
    function = next(iter(spec.mlProgram.functions.values()))
    block = function.block_specializations[function.opset]
    constants = {out.name: it for it in block.operations for out in it.outputs}
    values = constants["view"].attributes["val"].immediateValue.tensor.floats.values
    values[0] -= 1
    other_record(spec)


def other_record(spec):
    metadata = spec.description.metadata.userDefined
    metadata["weighbridge"] = metadata["weighbridge"].replace("123.675", "122.675")


def other_order(spec):
    image = spec.description.input[0].type.imageType
    image.colorSpace = image.ColorSpace.Value("BGR")


def other_size(spec):
    spec.description.input[0].type.imageType.width = 24


def other_label(spec):
    function = next(iter(spec.mlProgram.functions.values()))
    block = function.block_specializations[function.opset]
    last = next(it for it in block.operations if it.type == "classify")
    labels = last.inputs["classes"].arguments[0].value.immediateValue.list.values
    labels[0].immediateValue.tensor.strings.values[0] = "horse"


@pytest.mark.parametrize(
    ("change", "exit_code", "said"),
    [
        (other_mean, 1, "DIFFERS"),
        (other_record, 1, "DIFFERS"),
        (other_mean_and_record, 3, "normalised otherwise than the source's image processor"),
        (other_order, 3, "about pixel_values: BGR of 12 x 12"),
        (other_size, 3, "about pixel_values: RGB of 24 x 12"),
        (other_label, 3, "labels are said to be those of config.json, and are others"),
    ],
)
def test_another_mean_or_label_is_found(source, package, tmp_path, change, exit_code, said):
    wrong = altered(package, tmp_path / "m.mlpackage", change)
    code, told = run("parity", "check", source, wrong, "--quick")
    words = " ".join(told.split())
    assert (code, said in words) == (exit_code, True), told


def test_a_package_of_pictures_without_a_record_is_refused_by_name(source, package, tmp_path):
    def forget(spec):
        spec.description.metadata.userDefined.clear()

    bare = altered(package, tmp_path / "m.mlpackage", forget)
    code, told = run("parity", "check", source, bare)
    assert (code, "pixel_values takes pictures, and no record says" in told) == (3, True), told


def test_a_package_that_gives_labels_alone_is_refused_by_name(package, tmp_path):
    def forget(spec):
        described = spec.description
        described.metadata.userDefined.clear()
        described.input[0].type.multiArrayType.shape.extend((1, 3, 12, 12))
        scores = next(it for it in described.output if it.name == "logits")
        described.output.remove(scores)

    bare = altered(package, tmp_path / "m.mlpackage", forget)
    with pytest.raises(UnsupportedError, match="class labels and no scores"):
        read_signature(bare)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--image", "pixels"), "no input pixels; there are pixel_values"),
        (
            ("--image", "pixel_values", "--image-mean", "0", "--image-std", "1"),
            "leave --image-mean, --image-std and --image-layout out",
        ),
        (("--image-mean", "0.5"), "name its input by --image"),
        (("--labels", "config", "--quantize", "int8"), "compresses no package that gives labels"),
        (("--labels", "config", "--stateful"), "takes no pictures, nor gives labels"),
    ],
)
def test_options_that_do_not_fit_are_refused_in_one_line(source, tmp_path, options, said):
    target = tmp_path / "m.mlpackage"
    code, told = run("export", "coreml", source, target, *options)
    assert (code, said in told, target.exists()) == (3, True, False), told


@pytest.mark.parametrize("verb", ["check", "export"])
def test_inputs_of_a_user_that_are_no_pictures_are_refused(source, package, tmp_path, verb):
    file = tmp_path / "numbers.npz"
    np.savez(file, pixel_values=np.full((1, 3, 12, 12), 0.3, np.float32))
    words = {
        "check": ("parity", "check", source, package, "--inputs", file),
        "export": (
            *("export", "coreml", source, tmp_path / "m.mlpackage", "--image", "pixel_values"),
            *("--activations", "int8", "--calibrate", file),
        ),
    }
    code, told = run(*words[verb])
    assert code == 3, told
    assert "give what the model's image processor makes of pictures" in " ".join(told.split())
    assert [*tmp_path.iterdir()] == [file]


def test_numbers_that_no_picture_has_are_refused():
    picture = picture_of([0.5], [0.25], 1)
    numbers = picture.numbers(np.arange(12.0).reshape(1, 1, 3, 4))
    assert np.array_equal(picture.picture("x", numbers).ravel(), np.arange(12))
    with pytest.raises(MismatchError, match="is no picture"):
        picture.picture("x", numbers + np.float32(1e-3))
    with pytest.raises(MismatchError, match="is no picture"):
        picture.picture("x", numbers * np.float32("nan"))


@pytest.mark.parametrize(
    "described",
    [
        {"do_rescale": True, "rescale_factor": 1 / 255, "image_mean": MEAN, "image_std": STD},
        {"do_rescale": False, "do_normalize": True, "image_mean": [127.5], "image_std": [127.5]},
        {"do_rescale": True, "rescale_factor": 1 / 127.5, "do_normalize": False},
    ],
)
def test_a_processors_file_is_read_as_transformers_applies_it(described, photograph, tmp_path):
    wide = {k: v * 3 if isinstance(v, list) and len(v) == 1 else v for k, v in described.items()}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(wide), encoding="utf-8")
    processor = transformers.ViTImageProcessorPil(do_resize=False, **wide)
    expected = processor(photograph, return_tensors="np")["pixel_values"]
    planes = np.moveaxis(np.asarray(photograph), -1, 0)[None]
    found = processor_of(tmp_path, 3).numbers(planes)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_what_a_processor_does_that_no_mean_and_std_do_is_refused(tmp_path):
    file = tmp_path / "preprocessor_config.json"
    file.write_text('{"rescale_factor": 0.0078, "rescale_offset": true}', encoding="utf-8")
    with pytest.raises(BadInputError, match="rescale_offset"):
        processor_of(tmp_path, 3)


@pytest.mark.parametrize("left", [{}, {"image_mean": MEAN}])
def test_a_processor_that_leaves_its_mean_or_std_to_its_class_is_refused(left, tmp_path):
    described = {"do_normalize": True, "rescale_factor": 1 / 255, **left}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(described), encoding="utf-8")
    with pytest.raises(BadInputError, match="add image_mean and image_std"):
        processor_of(tmp_path, 3)
