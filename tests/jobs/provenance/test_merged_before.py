"""An adapter is merged into a model once: a second time it is refused, in whatever form it comes back."""

from __future__ import annotations

import json
import shutil

import ml_dtypes
import numpy as np
import pytest
import torch  # here, where questions to transformers are answered then
from safetensors.numpy import load_file, save_file

from weighbridge.converters.common import repositories
from weighbridge.tests.support.adapters import cases, made
from weighbridge.tests.support.adapters.refused_merges import (
    TWICE,
    WHY,
    Bench,
    must,
    refused,
    run,
    twice,
)

MANIFEST = "weighbridge.json"


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:  # one model type, asked about once
        patch.setenv("WEIGHBRIDGE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield Bench(tmp_path_factory.mktemp("bench"))


@pytest.fixture(scope="module")
def merged(bench):
    """An adapter of PEFT's, and the base in torch with it merged."""
    adapter = bench.adapter("peft")
    return adapter, must(
        bench.folder / "m", "merge", bench.base("torch"), adapter, bench.folder / "m"
    )


def merge(base, adapter, target, *extra):
    return run("", target, "merge", base, adapter, target, *extra)


def twice_refused(tried):
    return refused(tried, WHY["twice"])


def edited(folder, target, **config):
    """Copy the adapter in FOLDER to TARGET with other values of its CONFIG."""
    shutil.copytree(folder, target)
    file = target / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    return target


def cast(folder, target, dtype):
    """Copy the adapter in FOLDER to TARGET in another DTYPE."""
    shutil.copytree(folder, target)
    file = target / "adapter_model.safetensors"
    save_file({name: it.astype(dtype) for name, it in load_file(file).items()}, file)
    return target


def undeclared(folder, target):
    """Copy the model in FOLDER to TARGET without its manifest."""
    shutil.copytree(folder, target)
    (target / MANIFEST).unlink()
    return target


def adapters_in(folder):
    return [it["spec"] for it in json.loads((folder / MANIFEST).read_text()).get("adapters", [])]


@pytest.mark.parametrize("way", TWICE, ids=[way.told for way in TWICE])
def test_a_second_merge_is_refused_in_every_form_of_the_adapter(bench, way):
    assert [it for it in twice(bench, way) if not twice_refused(it)] == []


def test_a_merged_model_takes_another_adapter_and_carries_both_on(bench, merged, tmp_path):
    first, base = merged
    second = bench.adapter("mlx", seed=3)
    both = must(tmp_path / "both", "merge", base, second, tmp_path / "both")
    there = must(tmp_path / "there", "convert", "torch-to-mlx", both, tmp_path / "there")
    home = must(tmp_path / "home", "convert", "mlx-to-torch", there, tmp_path / "home")
    for model in (both, there, home):
        assert adapters_in(model) == [str(first), str(second)]
        for adapter in (first, second):
            assert twice_refused(merge(model, adapter, tmp_path / "out"))


def test_the_unmerged_base_and_its_conversions_record_no_adapter(bench):
    assert "adapters" not in json.loads((bench.base("mlx") / MANIFEST).read_text())


def test_an_adapter_in_bfloat16_is_the_one_in_float32(merged, tmp_path):
    adapter, base = merged
    narrow = cast(adapter, tmp_path / "narrow", ml_dtypes.bfloat16)
    assert twice_refused(merge(base, narrow, tmp_path / "out"))


def test_an_adapter_of_another_scale_is_another(merged, tmp_path):
    adapter, base = merged
    assert (
        merge(base, edited(adapter, tmp_path / "half", lora_alpha=4.0), tmp_path / "out").code == 0
    )


def test_an_update_of_nothing_is_no_repeat(bench, tmp_path):
    adapter, base = shutil.copytree(bench.adapter("peft"), tmp_path / "zero"), bench.base("torch")
    file = adapter / "adapter_model.safetensors"
    zeros = {n: it * ("lora_B" not in n) for n, it in load_file(file).items()}
    save_file({name: it.astype(np.float32) for name, it in zeros.items()}, file)
    model = must(tmp_path / "m", "merge", base, adapter, tmp_path / "m")
    other = edited(adapter, tmp_path / "other", lora_alpha=4.0)
    assert merge(model, other, tmp_path / "out").code == 0


def test_force_does_not_merge_twice(merged, tmp_path):
    adapter, base = merged
    assert twice_refused(merge(base, adapter, tmp_path / "out", "--force"))


def test_a_checked_merge_is_refused_before_it_is_checked(merged, tmp_path):
    adapter, base = merged
    out = tmp_path / "out"
    assert twice_refused(run("", out, "merge", base, adapter, out, "--check", "full"))
    assert list(tmp_path.iterdir()) == []


def test_a_package_takes_no_adapter_a_second_time(merged, tmp_path):
    adapter, base = merged
    out = tmp_path / "m.mlpackage"
    assert twice_refused(run("", out, "export", "coreml", f"{base}+{adapter}", out))


@pytest.mark.parametrize("verb", ["merge", "convert"])
def test_two_adapters_at_once_are_refused(bench, merged, tmp_path, verb):
    first, second = merged[0], bench.adapter("peft", seed=3)
    both, out = f"{bench.base('torch')}+{first}", tmp_path / "out"
    arguments = {
        "merge": ("merge", both, second, out),
        "convert": ("convert", "torch-to-mlx", both, out, "--adapter", second),
    }
    tried = run("", out, *arguments[verb])
    assert (tried.code, tried.left) == (3, False)
    assert "one after the other" in tried.said


@pytest.mark.parametrize("damage", [5, [5], [{"hash": 1}], [{"updates": {"w": {"delta": [None]}}}]])
def test_a_damaged_record_is_refused_in_words(merged, tmp_path, damage):
    adapter, base = merged
    broken = shutil.copytree(base, tmp_path / "broken")
    facts = json.loads((broken / MANIFEST).read_text()) | {"adapters": damage}
    (broken / MANIFEST).write_text(json.dumps(facts))
    tried = merge(broken, adapter, tmp_path / "out")
    assert (tried.code, tried.left) == (3, False)
    assert "damaged (adapters)" in " ".join(tried.said.split())


def test_nothing_is_said_where_no_unmerged_model_is_at_hand(merged, tmp_path):
    adapter, base = merged
    bare = undeclared(base, tmp_path / "bare")
    assert merge(bare, adapter, tmp_path / "out").code == 0


@pytest.mark.parametrize("framework", ["torch", "mlx"])
def test_the_base_itself_has_no_update_in_it(bench, tmp_path, framework):
    adapter = edited(
        bench.adapter("peft"),
        tmp_path / "named",
        base_model_name_or_path=str(bench.base("mlx" if framework == "torch" else "torch")),
    )
    assert merge(bench.base(framework), adapter, tmp_path / "out").code == 0


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16"])
def test_an_update_is_found_among_others_and_below_rounding(bench, tmp_path, dtype):
    """Rounding and another adapter have moved the weights too; a third one is not found there."""
    base, chain = bench.base("torch", dtype), []
    for seed in (2, 3):
        chain.append(tmp_path / f"{seed}")
        must(chain[-1], "merge", base, bench.adapter("peft", seed=seed), chain[-1])
        base = chain[-1]
    bare, said = undeclared(base, tmp_path / "bare"), str(bench.base("torch", dtype))
    codes = {}
    for seed in (2, 3, 4):
        named = edited(
            bench.adapter("peft", seed=seed), tmp_path / f"n{seed}", base_model_name_or_path=said
        )
        codes[seed] = merge(bare, named, tmp_path / "out").code
    assert codes == {2: 3, 3: 3, 4: 0}


def test_the_repository_that_an_adapter_names_is_looked_for_in_the_cache(
    bench, merged, tmp_path, monkeypatch
):
    (adapter, base), where = merged, {"org/base": bench.base("torch")}
    monkeypatch.setattr(repositories, "cached", lambda name, _: where.get(name))
    bare = undeclared(base, tmp_path / "bare")
    for name, code in (("org/base", 3), ("org/unknown", 0)):
        named = edited(adapter, tmp_path / name, base_model_name_or_path=name)
        assert merge(bare, named, tmp_path / "out").code == code


def test_a_later_step_of_the_same_run_is_another_adapter_where_the_manifest_says_what_was_merged(
    bench, merged, tmp_path
):
    adapter, base = merged
    named = {"base_model_name_or_path": str(bench.base("torch"))}
    later = edited(adapter, tmp_path / "later", **named)
    file, noise = later / "adapter_model.safetensors", np.random.default_rng(4)
    tensors = {
        name: it + 0.1 * it.std() * noise.standard_normal(it.shape).astype(it.dtype)
        for name, it in load_file(file).items()
    }
    save_file(tensors, file)
    assert merge(base, later, tmp_path / "out").code == 0


def test_what_was_merged_before_adapters_were_recorded_is_found_by_its_source(merged, tmp_path):
    adapter, base = merged
    old = shutil.copytree(base, tmp_path / "old")
    facts = json.loads((old / MANIFEST).read_text())
    del facts["adapters"]
    (old / MANIFEST).write_text(json.dumps(facts))
    assert twice_refused(merge(old, adapter, tmp_path / "out"))


@pytest.mark.filterwarnings("ignore:fan_in_fan_out:UserWarning")  # PEFT, of every Conv1D
@pytest.mark.parametrize("name", ["GPT-2", "Qwen3-MoE", "T5, DoRA", "Llama, a module saved whole"])
def test_an_adapter_is_recognised_where_weights_lie_otherwise(tmp_path, name):
    case = cases.CASES[name]
    cases.adapted(cases.build(case, tmp_path / "base"), case, tmp_path / "peft")
    adapter, out = tmp_path / "peft", tmp_path / "out"
    model = must(tmp_path / "m", "merge", tmp_path / "base", adapter, tmp_path / "m")
    there = must(tmp_path / "there", "convert", "torch-to-mlx", model, tmp_path / "there")
    forms = [adapter]
    if "whole" not in name:  # mlx-lm has no form for that
        carried = tmp_path / "carried"
        must(carried, "convert", "peft-to-mlx", adapter, carried, "--base", tmp_path / "base")
        (carried / MANIFEST).unlink()
        forms.append(carried)
    for form in forms:
        for target in (model, there):
            assert twice_refused(merge(target, form, out))
    bare = undeclared(there, tmp_path / "bare")
    named = edited(adapter, tmp_path / "named", base_model_name_or_path=str(tmp_path / "base"))
    assert twice_refused(merge(bare, named, out))


def test_an_adapter_that_peft_merged_itself_is_found(tmp_path):
    case = cases.CASES["Llama, DoRA"]
    tuned = cases.adapted(cases.build(case, tmp_path / "base"), case, tmp_path / "peft")
    tuned.merge_and_unload().save_pretrained(tmp_path / "merged")
    named = edited(
        tmp_path / "peft", tmp_path / "named", base_model_name_or_path=str(tmp_path / "base")
    )
    assert twice_refused(merge(tmp_path / "merged", named, tmp_path / "out"))


def test_the_order_and_the_container_do_not_change_the_hash(bench, tmp_path):
    from weighbridge.converters.adapters import read_adapter

    source = bench.adapter("peft")
    pickled = shutil.copytree(source, tmp_path / "pickled")
    tensors = load_file(pickled / made.FILE["peft"])
    (pickled / made.FILE["peft"]).unlink()
    arrays = {name: torch.from_numpy(it) for name, it in reversed(tensors.items())}
    torch.save(arrays, pickled / "adapter_model.bin")
    found = {read_adapter(it).digest for it in (source, bench.adapter("peft", order=7), pickled)}
    assert len(found) == 1
    assert read_adapter(bench.adapter("peft", seed=3)).digest not in found
