"""Exported files without what an export of ours writes into them."""

from __future__ import annotations

from pathlib import Path

import onnx

from weighbridge.converters.captures.mlprogram import package
from weighbridge.converters.models.manifests import MANIFEST


def without_record(file: Path) -> Path:
    """Take the record of the export out of FILE; return it."""
    if file.suffix == ".onnx":
        proto = onnx.load(file)
        kept = [it for it in proto.metadata_props if it.key != MANIFEST]
        del proto.metadata_props[:]
        proto.metadata_props.extend(kept)
        onnx.save(proto, file)
        return file
    opened = package.read_package(file)
    del opened.spec.description.metadata.userDefined[package.MANIFEST]
    (model,) = file.rglob("*.mlmodel")
    model.write_bytes(opened.spec.SerializeToString())
    return file
