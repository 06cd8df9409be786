"""What will be written is decided before: types, metadata, and every reason not to."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from tests.converters.gguf.models import like_file
from tests.converters.gguf.toys import checkpoint, like, normal
from weighbridge.converters.checkpoints import open_checkpoint
from weighbridge.converters.gguf import TYPES, GgufFile, plan_export
from weighbridge.errors import BadInputError, MismatchError, UnsupportedError


def planned(made, there="BF16", **options):
    return plan_export(
        open_checkpoint(made.tuned), GgufFile(made.like(there)), where="tuned", **options
    )


@pytest.mark.parametrize("kind", TYPES)
def test_types_and_metadata_are_those_of_the_like_file(any_family, kind):
    plan = planned(any_family, kind)
    assert {name: made.stored for name, made in plan.made.items()} == plan.like.tensors
    assert list(plan.made) == list(plan.like.tensors)
    assert plan.fields == plan.like.fields
    assert plan.changed_fields == []


@pytest.mark.parametrize("there", ["F32", "BF16", "Q4_0"])
@pytest.mark.parametrize("kind", TYPES)
def test_a_type_of_its_own_is_laid_out_as_llama_cpp_does(any_family, there, kind):
    plan = planned(any_family, there, kind=kind)
    want = GgufFile(any_family.like(kind))
    assert {name: made.stored for name, made in plan.made.items()} == want.tensors
    assert plan.fields == want.fields


def test_what_a_quantizer_said_of_its_file_is_not_repeated(llama, tmp_path):
    said = like_file(
        tmp_path / "q4.gguf",
        "llama",
        llama.base,
        "Q4_0",
        extra=lambda writer: writer.add_string("quantize.imatrix.file", "calibration.dat"),
    )
    source = open_checkpoint(llama.tuned)
    plan = plan_export(source, GgufFile(said), where="tuned", kind="F16")
    assert set(plan.changed_fields) == {"quantize.imatrix.file", "general.file_type"}
    assert "quantize.imatrix.file" not in plan.fields


def test_types_that_are_not_written_say_what_to_do(llama):
    with pytest.raises(UnsupportedError, match=r"(?s)Q4_0.*--type F16.*llama-quantize"):
        planned(llama, "Q4_0")


def test_a_type_that_does_not_exist_is_refused(llama):
    with pytest.raises(BadInputError, match="choose from F32, F16, BF16, Q8_0"):
        planned(llama, kind="F8")


def test_integers_in_the_like_file_are_refused(tmp_path):
    path = tmp_path / "int.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("token_embd.weight", np.ones((2, 32), np.int8))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    source = checkpoint(tmp_path / "a", {"model.embed_tokens.weight": normal(2, 32)})
    with pytest.raises(UnsupportedError, match="type I8 are not read"):
        plan_export(source, GgufFile(path), where="a")


def test_rows_that_no_block_fits_become_float16(tmp_path):
    odd = normal(6, 40)
    source = checkpoint(tmp_path / "a", {"model.embed_tokens.weight": odd})
    file = like(tmp_path / "a.gguf", {"token_embd.weight": odd})
    plan = plan_export(source, file, where="a", kind="Q8_0")
    assert str(plan.made["token_embd.weight"].stored) == "F16[6, 40]"


def test_the_base_says_that_it_proved_the_rules(llama):
    plan = planned(llama, base=open_checkpoint(llama.base))
    assert plan.reference == "--base"
    assert any("4 equal" in line or "equal, 0 within" in line for line in plan.lines())


def test_a_base_that_is_not_the_files_is_refused(llama):
    with pytest.raises(MismatchError, match="is not the file of --base: 7 problems"):
        planned(llama, base=open_checkpoint(llama.tuned))


def test_a_model_of_another_shape_is_refused_with_every_tensor(llama, tmp_path):
    headers = open_checkpoint(llama.tuned).headers
    arrays = {name: normal(*header.shape) for name, header in headers.items()}
    arrays |= {"model.embed_tokens.weight": normal(51, 64), "lm_head.weight": normal(49, 64)}
    with pytest.raises(MismatchError) as caught:
        plan_export(
            checkpoint(tmp_path / "a", arrays),
            GgufFile(llama.like()),
            where="a",
            base=open_checkpoint(llama.base),
        )
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "output.weight",
        "token_embd.weight",
    ]


@pytest.mark.parametrize("same", [True, False])
def test_a_head_that_the_file_ties_must_be_the_embedding(tmp_path, same):
    embedding = normal(6, 4)
    head = embedding if same else normal(6, 4, seed=2)
    arrays = {"model.embed_tokens.weight": embedding, "lm_head.weight": head}
    source = checkpoint(tmp_path / "a", arrays)
    file = like(tmp_path / "a.gguf", {"token_embd.weight": embedding})
    if same:
        assert list(plan_export(source, file, where="a").made) == ["token_embd.weight"]
    else:
        with pytest.raises(MismatchError, match=r"lm_head\.weight is not model\.embed_tokens"):
            plan_export(source, file, where="a")
