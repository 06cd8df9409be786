"""Packages made to harm are refused in one line, before they take memory."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from tests.converters.captures.mlprogram.test_package import MODEL, WEIGHTS, rewrite
from tests.hostile import refused
from weighbridge.converters.captures.mlprogram.toolkit import quiet

with quiet():
    from coremltools.converters.mil.mil import Builder as mb  # noqa: N813

WEIGHT = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
OTHER = np.random.default_rng(1).standard_normal((8, 16)).astype(np.float32)


@pytest.fixture(scope="module")
def original(tmp_path_factory, build_package):
    """Two weights in weight.bin, and a fill whose shape is a constant."""

    def body(x):
        grown = mb.add(
            x=mb.matmul(x=x, y=WEIGHT, transpose_y=True), y=mb.fill(shape=[2, 8], value=1.5)
        )
        return mb.add(x=grown, y=mb.matmul(x=x, y=OTHER, transpose_y=True), name="y")

    path = tmp_path_factory.mktemp("packages") / "layer.mlpackage"
    return build_package(path, body, [mb.TensorSpec((2, 16))])


@pytest.fixture
def package(original, tmp_path):
    return shutil.copytree(original, tmp_path / "copy.mlpackage")


def block(spec):
    (found,) = spec.mlProgram.functions["main"].block_specializations.values()
    return found


def blobs(spec):
    """Return the constants that lie in weight.bin."""
    values = [op.attributes["val"] for op in block(spec).operations if "val" in op.attributes]
    return [value for value in values if value.WhichOneof("value") == "blobFileValue"]


def resize(value, *sizes):
    for dimension, size in zip(value.type.tensorType.dimensions, sizes, strict=True):
        dimension.constant.size = size


def declared(spec):
    return block(spec).operations[-1].outputs[0]


def at_another_place(offset):
    def change(spec):
        blobs(spec)[1].blobFileValue.offset = offset

    return change


def manifest_path(path):
    def change(package):
        manifest = json.loads((package / "Manifest.json").read_text())
        manifest["itemInfoEntries"][manifest["rootModelIdentifier"]]["path"] = path
        (package / "Manifest.json").write_text(json.dumps(manifest))

    return change


def manifest_with(**changes):
    """Change the manifest, or with ``item`` every item in it."""

    def change(package):
        manifest = json.loads((package / "Manifest.json").read_text())
        for item in manifest["itemInfoEntries"].values():
            item.update(changes.get("item", {}))
        manifest |= {key: value for key, value in changes.items() if key != "item"}
        (package / "Manifest.json").write_text(json.dumps(manifest))

    return change


def overlapping(package):
    """Let the second weight take the bytes of the first."""
    path = package / WEIGHTS / "weight.bin"
    data = bytearray(path.read_bytes())
    second = data.index((0xDEADBEEF).to_bytes(4, "little"), 128)
    first = data.index((0xDEADBEEF).to_bytes(4, "little"))
    data[second + 16 : second + 24] = data[first + 16 : first + 24]
    path.write_bytes(data)


def of_another_size(package):
    path = package / WEIGHTS / "weight.bin"
    data = bytearray(path.read_bytes())
    first = data.index((0xDEADBEEF).to_bytes(4, "little"))
    data[first + 8 : first + 16] = (64).to_bytes(8, "little")
    path.write_bytes(data)


def changed(change):
    return lambda package: rewrite(package, change)


HOSTILE = {
    "a path out of the package": manifest_path("../../../etc/passwd"),
    "an absolute path": manifest_path("/etc/passwd"),
    "a path that is a number": manifest_path(7),
    "an item without an author": manifest_with(item={"author": None}),
    "a version without end": manifest_with(fileFormatVersion=float("inf")),
    "a version that is a path": manifest_with(fileFormatVersion="../.."),
    "items that are a number": manifest_with(itemInfoEntries=7),
    "a path without end": manifest_path("a" * 5000),
    "a directory for a specification": manifest_path("com.apple.CoreML"),
    "half of a specification": lambda p: (p / MODEL).write_bytes((p / MODEL).read_bytes()[:-40]),
    "weights that overlap": overlapping,
    "a weight of another size": of_another_size,
    "a weight where none begins": changed(at_another_place(65)),
    "a weight beyond the end": changed(at_another_place(1 << 62)),
    "a weight with sizes without end": changed(lambda s: resize(blobs(s)[0], 1 << 40, 1 << 40)),
    "a weight of other sizes": changed(lambda s: resize(blobs(s)[0], 8, 8)),
    "an output without end": changed(lambda s: resize(declared(s), 1 << 40, 1 << 20)),
    "a weight in another file": changed(
        lambda s: setattr(blobs(s)[0].blobFileValue, "fileName", "../../secret.bin")
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_package_is_refused_by_name(package, tmp_path, case):
    (tmp_path / "secret.bin").write_bytes(bytes(4096))
    HOSTILE[case](package)
    line = refused("inspect", package)
    assert package.name in line


def test_a_tensor_that_is_filled_to_a_size_without_end_is_refused(package):
    def change(spec):
        fill = next(op for op in block(spec).operations if op.type == "fill")
        (name,) = (argument.name for argument in fill.inputs["shape"].arguments)
        shape = next(op for op in block(spec).operations if op.outputs[0].name == name)
        shape.attributes["val"].immediateValue.tensor.ints.values[:] = [1 << 20, 1 << 16]

    rewrite(package, change)
    assert package.name in refused("inspect", package)


def test_blocks_in_blocks_without_end_are_refused(package):
    def change(spec):
        inner = block(spec)
        for _ in range(300):
            inner = inner.operations.add(type="cond").blocks.add()

    rewrite(package, change)
    assert package.name in refused("inspect", package)
