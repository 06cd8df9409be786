"""Files as llama.cpp's own writer would have made them, read back number by number."""

from __future__ import annotations

import tracemalloc

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.converters.gguf.models import kind_of, tensors
from tests.converters.gguf.toys import checkpoint, like, normal
from weighbridge.converters.checkpoints import open_checkpoint
from weighbridge.converters.gguf import TYPES, GgufFile, plan_export, read_back, write
from weighbridge.errors import MismatchError


def exported(made, path, kind, **options):
    source = open_checkpoint(made.tuned)
    plan = plan_export(source, GgufFile(made.like(kind)), where="tuned", **options)
    write(path, plan, source)
    return plan, source


@pytest.mark.parametrize("kind", TYPES)
def test_the_numbers_are_those_that_llama_cpp_would_write(any_family, kind, tmp_path):
    exported(any_family, tmp_path / "a.gguf", kind)
    want = tensors(any_family.family, any_family.tuned)
    reader = gguf.GGUFReader(tmp_path / "a.gguf")
    assert {tensor.name for tensor in reader.tensors} == set(want)
    for tensor in reader.tensors:
        array = want[tensor.name]
        stored = gguf.GGMLQuantizationType[kind_of(tensor.name, array, kind)]
        assert tensor.tensor_type == stored
        assert np.array_equal(tensor.data, gguf.quantize(array, stored).view(tensor.data.dtype))


@pytest.mark.parametrize("kind", TYPES)
def test_the_file_is_the_one_that_the_librarys_writer_makes(any_family, kind, tmp_path):
    path = tmp_path / "a.gguf"
    exported(any_family, path, kind)
    whole = any_family.like(kind).read_bytes()
    start = int(gguf.GGUFReader(path).data_offset)
    assert path.read_bytes()[:start] == whole[:start]
    assert path.stat().st_size == len(whole)


@pytest.mark.parametrize("kind", TYPES)
def test_reading_back_says_what_was_rounded(any_family, kind, tmp_path):
    seen = read_back(tmp_path / "a.gguf", *exported(any_family, tmp_path / "a.gguf", kind))
    assert seen.problems == ()
    assert (seen.rounded > 0) == (kind in ("F16", "Q8_0"))  # bfloat16 has smaller numbers
    assert seen.worst < 0.01


@pytest.fixture(scope="module")
def written(llama, tmp_path_factory):
    path = tmp_path_factory.mktemp("written") / "a.gguf"
    return (path, *exported(llama, path, "Q8_0"), path.read_bytes())


@settings(max_examples=30)
@given(data=st.data())
def test_no_changed_byte_of_a_number_goes_unseen(written, data):
    path, plan, source, whole = written
    reader = gguf.GGUFReader(path)
    floats = [tensor for tensor in reader.tensors if tensor.tensor_type.name == "F32"]
    tensor = data.draw(st.sampled_from(floats))
    place = tensor.data_offset + data.draw(st.integers(0, tensor.n_bytes - 1))
    changed = bytearray(whole)
    changed[place] ^= data.draw(st.integers(1, 255))
    path.with_name("changed.gguf").write_bytes(changed)
    seen = read_back(path.with_name("changed.gguf"), plan, source)
    assert seen.problems == (f"{tensor.name} is not what was written",)


def test_a_code_two_steps_away_is_seen(written):
    path, plan, source, whole = written
    reader = gguf.GGUFReader(path)
    tensor = next(t for t in reader.tensors if t.tensor_type.name == "Q8_0")
    changed = bytearray(whole)
    place = tensor.data_offset + 2 + 5  # behind the scale of the first block
    changed[place] = (changed[place] + 2) % 256
    path.with_name("changed.gguf").write_bytes(changed)
    assert read_back(path.with_name("changed.gguf"), plan, source).problems


def test_a_changed_field_is_seen(written):
    path, plan, source, whole = written
    path.with_name("changed.gguf").write_bytes(whole.replace(b"The base", b"The case"))
    seen = read_back(path.with_name("changed.gguf"), plan, source)
    assert seen.problems == ("metadata general.name differs",)


@pytest.mark.parametrize(("number", "kind"), [(70000.0, "F16"), (np.nan, "F32"), (np.inf, "BF16")])
def test_numbers_that_a_type_does_not_have_are_named(tmp_path, number, kind):
    array = normal(6, 32)
    file = like(tmp_path / "a.gguf", {"token_embd.weight": array}, kind=kind)
    ours = array.copy()
    ours[3, 3] = number
    base = checkpoint(tmp_path / "base", {"model.embed_tokens.weight": array})
    source = checkpoint(tmp_path / "a", {"model.embed_tokens.weight": ours})
    plan = plan_export(source, file, where="a", base=base)
    with pytest.raises(MismatchError, match=rf"model\.embed_tokens\.weight has .* no {kind}"):
        write(tmp_path / "b.gguf", plan, source)


def test_another_alignment_is_kept(tmp_path):
    arrays = {"token_embd.weight": normal(3, 5), "output_norm.weight": normal(7)}
    path = tmp_path / "wide.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_custom_alignment(256)
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    names = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
    }
    source = checkpoint(tmp_path / "a", {name: arrays[there] for name, there in names.items()})
    plan = plan_export(source, GgufFile(path), where="a")
    write(tmp_path / "b.gguf", plan, source)
    assert (tmp_path / "b.gguf").read_bytes() == path.read_bytes()


def test_memory_does_not_grow_with_the_file(tmp_path):
    arrays = {f"model.layers.{i}.mlp.up_proj.weight": normal(512, 1024) for i in range(12)}
    there = {f"blk.{i}.ffn_up.weight": array for i, array in enumerate(arrays.values())}
    file, source = like(tmp_path / "a.gguf", there), checkpoint(tmp_path / "a", arrays)
    plan = plan_export(source, file, where="a")
    tracemalloc.start()
    write(tmp_path / "b.gguf", plan, source)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12 * 2**20  # the file has 24 MiB
