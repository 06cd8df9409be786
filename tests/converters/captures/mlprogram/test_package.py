"""Packages whole, damaged and of other kinds."""

from __future__ import annotations

import json
import shutil
import struct

import numpy as np
import pytest

from weighbridge.converters.captures.mlprogram import load_program, messages, read_signature
from weighbridge.converters.captures.mlprogram.package import census, functions, read_package
from weighbridge.converters.captures.mlprogram.toolkit import quiet
from weighbridge.errors import BadInputError, UnsupportedError

with quiet():
    from coremltools.converters.mil.mil import Builder as mb  # noqa: N813

WEIGHT = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
MODEL, WEIGHTS = "Data/com.apple.CoreML/model.mlmodel", "Data/com.apple.CoreML/weights"


@pytest.fixture(scope="module")
def original(tmp_path_factory, build_package):
    def body(x):
        return mb.linear(x=x, weight=WEIGHT, name="y")

    path = tmp_path_factory.mktemp("packages") / "layer.mlpackage"
    return build_package(path, body, [mb.TensorSpec((2, 16))])


@pytest.fixture
def package(original, tmp_path):
    """Return a copy to damage."""
    return shutil.copytree(original, tmp_path / "copy.mlpackage")


def rewrite(package, change):
    """Change the specification of PACKAGE."""
    spec = messages.Model_pb2.Model()
    spec.ParseFromString((package / MODEL).read_bytes())
    change(spec)
    (package / MODEL).write_bytes(spec.SerializeToString())


def cut(path, size):
    path.write_bytes(path.read_bytes()[:size])


DAMAGES = {
    "no such package": shutil.rmtree,
    "it has no Manifest.json": lambda path: (path / "Manifest.json").unlink(),
    "Manifest.json: not JSON": lambda path: cut(path / "Manifest.json", 40),
    r"model.mlmodel is missing": lambda path: (path / MODEL).unlink(),
    r"model.mlmodel is damaged": lambda path: (path / MODEL).write_bytes(b"\xff" * 64),
    r"model.mlmodel is empty": lambda path: cut(path / MODEL, 0),
    r"weights/weight.bin is missing": lambda path: shutil.rmtree(path / WEIGHTS),
    r"weight.bin: damaged or cut short \(300 bytes": lambda path: cut(
        path / WEIGHTS / "weight.bin", 300
    ),
}


@pytest.mark.parametrize("message", DAMAGES)
def test_damage_is_refused_in_one_line_that_names_it(message, package):
    DAMAGES[message](package)
    with pytest.raises(BadInputError, match=message) as caught:
        load_program(package)
    assert "\n" not in str(caught.value)
    assert package.name in str(caught.value)


def test_overwritten_blob_metadata_is_noticed(package):
    file = package / WEIGHTS / "weight.bin"
    content = bytearray(file.read_bytes())
    content[64:68] = b"\0\0\0\0"
    file.write_bytes(content)
    with pytest.raises(BadInputError, match="no whole blob at 64"):
        load_program(package)


@pytest.mark.parametrize("more", [b"\1", b"\0" * 64, b"\xef\xbe\xad\xde" + b"\xff" * 200])
def test_bytes_that_belong_to_no_weight_are_refused(more, package):
    file = package / WEIGHTS / "weight.bin"
    padded = file.read_bytes().ljust(-(-file.stat().st_size // 64) * 64, b"\0")
    file.write_bytes(padded + more)
    with pytest.raises(BadInputError, match=f"{len(more)} bytes after the last weight"):
        load_program(package)


@pytest.mark.parametrize("size", [1, 64, 100])
def test_a_weight_that_no_operation_uses_may_follow_the_others(size, package):
    file = package / WEIGHTS / "weight.bin"
    padded = file.read_bytes().ljust(-(-file.stat().st_size // 64) * 64, b"\0")
    unused = struct.pack("<IIQQ", 0xDEADBEEF, 1, size, len(padded) + 64).ljust(64, b"\0")
    file.write_bytes(padded + unused + b"\1" * size)
    load_program(package)


def test_a_file_is_no_package(tmp_path):
    path = tmp_path / "model.mlpackage"
    path.write_text("text")
    with pytest.raises(BadInputError, match=r"not an \.mlpackage, it is a file"):
        load_program(path)


@pytest.mark.parametrize("kind", ["neuralNetwork", "pipeline"])
def test_other_kinds_of_models_are_refused_by_name(kind, package):
    def change(spec):
        spec.ClearField("mlProgram")
        getattr(spec, kind).SetInParent()

    rewrite(package, change)
    with pytest.raises(UnsupportedError, match=f"only ML programs are read, this is a {kind}"):
        load_program(package)


def test_an_operation_nobody_knows_is_refused_by_name(package):
    def change(spec):
        block = spec.mlProgram.functions["main"].block_specializations["CoreML7"]
        next(op for op in block.operations if op.type == "linear").type = "custom_layer"

    rewrite(package, change)
    with pytest.raises(UnsupportedError, match=r"custom_layer \(1\)"):
        load_program(package)


def test_a_whole_package_is_read(package):
    read = read_package(package)
    assert functions(read) == ("main",)
    assert census(read, "main") == {"linear": 1}


def test_the_signature_of_a_foreign_package_is_its_description(package):
    signature = read_signature(package)
    (port,), (result,) = signature.inputs, signature.outputs
    assert (port.name, port.dtype, port.shape, port.role) == ("x", "float32", (2, 16), "array")
    assert result.name == "y"


def test_an_item_that_is_not_there_is_refused(package):
    manifest = json.loads((package / "Manifest.json").read_text())
    root = manifest["rootModelIdentifier"]
    next(it for key, it in manifest["itemInfoEntries"].items() if key != root)["path"] = "weights"
    (package / "Manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BadInputError, match="weights is missing"):
        load_program(package)


def test_the_manifest_may_name_no_file_outside(package):
    manifest = json.loads((package / "Manifest.json").read_text())
    for entry in manifest["itemInfoEntries"].values():
        entry["path"] = "../../elsewhere"
    (package / "Manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BadInputError, match="its specification lies outside"):
        load_program(package)
