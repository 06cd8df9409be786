"""The text side is compared as users meet it: ids, special and stop ids, rendered templates."""

from __future__ import annotations

import json
import shutil

import pytest
from transformers import GenerationConfig

from weighbridge.parity.text import tokenizers
from weighbridge.parity.text.compare import compare_sides
from weighbridge.parity.text.files import generation
from weighbridge.parity.text.phrases import TEXTS
from weighbridge.parity.text.side import TextSide, read_text_side
from weighbridge.tests.support import text_faults
from weighbridge.tests.support.text_faults import CONTROLS, FAULTS, judged, planter
from weighbridge.tests.support.text_tokenizers import make

QUICK = {  # one fault of each part of the text side; benchmarks/text_faults.py plants them all
    "digits one by one": "at character",
    "two late merges swapped": "the merges of the tokenizer differ",
    "a score moved": "the scores of the tokenizer differ",
    "ids of two rare tokens swapped": "the vocabulary of the tokenizer differ",
    "merges used inside of known words": "tokens written out give other ids",
    "an added token takes the space after it": "inside text gives other ids",
    "a special token is none": "decoded without special tokens, differs at character",
    "decoder lost": "texts are decoded to others",
    "token type of the second text": "of a pair of texts, the types",
    "padding side": "padding_side: expected 'left', found 'right'",
    "truncation side": "truncation_side: expected 'left', found 'right'",
    "longest input": "model_max_length: expected",
    "cut to 16 tokens in the file": "truncation",
    "padding token": "special token pad: expected 0, found 4",
    "template: tools": "the chat template, tools, differs at character 21: expected",
    "template: generation prompt": "with generation prompt, differs at character",
    "template lost": "the candidate has no chat template",
    "a stop id lost": "generation, eos_token_id: expected",
    "temperature": "generation, temperature: expected 0.7, found none",
    "special_tokens_map: padding": "special_tokens_map.json, pad_token: expected '[PAD]'",
    "vocab.txt: two lines swapped": "vocab.txt holds other entries",
}


@pytest.fixture(scope="module")
def kinds(tmp_path_factory):
    places = make(tmp_path_factory.mktemp("kinds"))
    return {kind: (place, read_text_side(place)) for kind, place in places.items()}


@pytest.fixture
def copied(tiny_bert_dir, tmp_path):
    return shutil.copytree(tiny_bert_dir, tmp_path / "copy")


def compare(reference, candidate):
    side = read_text_side(reference)
    return compare_sides(side, read_text_side(candidate, side))


@pytest.mark.parametrize(("name", "told"), QUICK.items())
def test_a_fault_of_the_text_side_is_found_and_told(kinds, name, told):
    kind = next(kind for kind in FAULTS[name].kinds if kind in kinds)
    stage = judged(*kinds[kind], planter(FAULTS[name]))
    assert stage.status == "fail"
    assert any(told in problem for problem in stage.figures["problems"]), stage.figures["problems"]


@pytest.mark.heavy
@pytest.mark.parametrize("name", sorted(FAULTS.keys() - QUICK.keys()))
def test_every_other_fault_of_the_text_side_is_found(kinds, name):
    for kind in (kind for kind in FAULTS[name].kinds if kind in kinds):
        assert judged(*kinds[kind], planter(FAULTS[name])).status == "fail", kind


@pytest.mark.parametrize("name", CONTROLS)
def test_what_does_the_same_is_not_rejected(kinds, name):
    for place, side in kinds.values():
        stage = judged(place, side, CONTROLS[name])
        assert stage.status == "pass", stage.detail


def test_equal_bytes_ask_no_library(tiny_bert_dir, copied, monkeypatch):
    monkeypatch.setattr("weighbridge.parity.text.side.load_tokenizers", lambda folder: 1 / 0)
    stage = compare(tiny_bert_dir, copied)
    assert stage.status == "pass"
    assert "equal byte for byte" in stage.detail


def test_a_pass_says_what_was_compared(kinds):
    stage = judged(*kinds["byte-level"], text_faults.saved_again)
    assert f"{len(TEXTS)} texts and 6 tokens inside text" in stage.detail
    assert "chats rendered alike" in stage.detail
    assert set(stage.figures["lines"].values()) == {"equal"}


def test_a_side_without_a_tokenizer_fails(tiny_bert_dir, tmp_path):
    assert compare(tiny_bert_dir, tmp_path).status == "fail"
    assert compare(tmp_path, tiny_bert_dir).status == "fail"


def test_no_tokenizer_on_either_side_is_nothing_to_compare(tmp_path):
    assert compare(tmp_path, None).status == "skipped"


def test_settings_of_generation_are_compared_without_a_tokenizer_too(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"eos_token_id": 2}))
    assert compare(one, other).status == "skipped"
    (one / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}))
    assert compare(one, other).status == "pass"  # config.json gives the same
    (one / "generation_config.json").write_text(json.dumps({"temperature": 0.7}))
    stage = compare(one, other)
    assert (stage.status, "temperature: expected 0.7, found none" in stage.detail) == ("fail", True)


def test_settings_written_as_they_are_without_any_differ_from_none_in_nothing(tmp_path):
    shown = ("output_attentions", "output_hidden_states", "output_logits")  # in what is returned
    written = GenerationConfig._get_default_generation_params() | dict.fromkeys(shown, False)
    (tmp_path / "generation_config.json").write_text(json.dumps(written))
    assert generation(tmp_path, {}) == {"eos_token_id": []}


def test_without_transformers_the_fast_tokenizer_reads_the_same_ids(tiny_bert_dir):
    expected = read_text_side(tiny_bert_dir).readings["transformers"]
    found = tokenizers._from_tokenizers(tiny_bert_dir)
    assert [found.encode(text) for text in TEXTS] == expected.ids
    assert found.special.items() <= expected.special.items()


def without_transformers(monkeypatch):
    monkeypatch.setattr(tokenizers, "_installed", lambda name: name != "transformers")


def test_without_transformers_a_template_is_not_compared_and_so_unverified(kinds, monkeypatch):
    place, side = kinds["byte-level"]
    assert "transformers" in side.readings
    without_transformers(monkeypatch)
    stage = judged(place, side, text_faults.template_in_a_file)
    assert stage.status == "unverified"
    assert "chat template, padding and truncation were not compared" in stage.detail


def test_sides_that_no_library_reads_are_compared_by_their_bytes(
    tiny_bert_dir, copied, monkeypatch
):
    monkeypatch.setattr(tokenizers, "_installed", lambda name: False)
    assert compare(tiny_bert_dir, copied).status == "pass"
    (copied / "tokenizer.json").write_text((copied / "tokenizer.json").read_text() + "\n")
    assert compare(tiny_bert_dir, copied).status == "unverified"


def test_a_recorded_side_tells_the_same_faults(kinds):
    place, side = kinds["byte-level"]
    recorded = TextSide.from_json(json.loads(json.dumps(side.to_json())))
    for name in ("template: tools", "an added token lost", "two late merges swapped"):
        assert judged(place, recorded, planter(FAULTS[name])).status == "fail"
    assert judged(place, recorded, text_faults.saved_again).status == "pass"


def test_a_side_recorded_by_an_older_version_is_unverified(tiny_bert_dir):
    older = TextSide.from_json({"ids": {}, "stop": [], "files": {"tokenizer.json": "xxh3:0"}})
    stage = compare_sides(older, read_text_side(tiny_bert_dir))
    assert stage.status == "unverified"
    assert "record the golden again" in stage.detail


def test_a_template_that_prints_the_date_is_the_same_on_every_day(kinds):
    def dated(folder):
        text_faults.template_in_a_file(folder)
        file = folder / "chat_template.jinja"
        file.write_text("{{ strftime_now('%d %b %Y %S') }}" + file.read_text())

    place, _ = kinds["byte-level"]
    stage = judged(place, read_text_side(place), dated)
    assert any("found '%d %b %Y %S" in problem for problem in stage.figures["problems"])


RARE = {
    "{% if messages | length > 7 %}!{% endif %}": "many turns",
    "{% if tools | length > 3 %}!{% endif %}": "many tools",
    "{% if enable_thinking %}<think>{% endif %}": "with enable_thinking",
    "{% if documents %}!{% endif %}": "with documents",
    "{% for m in messages %}{{ m.reasoning_content }}{% endfor %}": "thoughts",
}


@pytest.mark.parametrize("recorded", [False, True])
def test_what_only_some_chats_or_variables_ask_of_a_template_is_compared(kinds, recorded):
    def changed(folder):
        text_faults.template_in_a_file(folder)
        file = folder / "chat_template.jinja"
        file.write_text(file.read_text() + "".join(RARE))

    place, side = kinds["byte-level"]
    kept = TextSide.from_json(json.loads(json.dumps(side.to_json()))) if recorded else side
    problems = judged(place, kept, changed).figures["problems"]
    for words in RARE.values():
        assert any(f"{words}, differs" in problem for problem in problems), words


def test_chats_that_an_older_golden_lacks_are_not_compared(kinds, tmp_path):
    place, side = kinds["byte-level"]
    content = json.loads(json.dumps(side.to_json()))
    for it in content["readings"].values():
        it["chats"] = {k: v for k, v in it["chats"].items() if k in ("tools", "one question")}
    stage = judged(place, TextSide.from_json(content), text_faults.template_in_a_file)
    assert stage.status == "pass", stage.detail
