"""What travels beside the weights."""

import json

from weighbridge.converters.sidefiles import copy_side_files


def test_everything_but_the_weights_travels_byte_for_byte(tmp_path):
    source, target = tmp_path / "a", tmp_path / "b"
    (source / "1_Pooling").mkdir(parents=True)
    (source / "onnx").mkdir()
    (source / ".cache").mkdir()
    target.mkdir()
    files = {
        "config.json": b"{}",
        "tokenizer.json": b"\x00\xff",
        "1_Pooling/config.json": b"[1]",
        "LICENSE": b"MIT",
    }
    weights = (
        "model.safetensors",
        "model.safetensors.index.json",
        "pytorch_model.bin",
        "onnx/model.onnx",
    )
    for name, content in files.items():
        (source / name).write_bytes(content)
    for name in (*weights, ".cache/download"):
        (source / name).write_bytes(b"weights")
    side = copy_side_files(source, target)
    copied = {
        path.relative_to(target).as_posix(): path.read_bytes()
        for path in target.rglob("*")
        if path.is_file()
    }
    assert copied == files
    assert side.left_out == ("onnx/model.onnx",)


def test_the_head_of_a_sentence_transformer_keeps_its_weights(tmp_path):
    source, target = tmp_path / "a", tmp_path / "b"
    (source / "2_Dense").mkdir(parents=True)
    target.mkdir()
    (source / "modules.json").write_text(json.dumps([{"path": ""}, {"path": "2_Dense"}]))
    (source / "2_Dense" / "model.safetensors").write_bytes(b"dense")
    (source / "model.safetensors").write_bytes(b"encoder")
    copy_side_files(source, target)
    assert (target / "2_Dense" / "model.safetensors").read_bytes() == b"dense"
    assert not (target / "model.safetensors").exists()
