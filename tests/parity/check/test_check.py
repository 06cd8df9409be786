"""Correct implementations pass; a mutated one is caught and named; what was not seen is not claimed."""

from __future__ import annotations

import copy
import json
import shutil
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
import torch
from torch import nn

import weighbridge
from weighbridge.converters.common.policy import Policy
from weighbridge.converters.models import Model
from weighbridge.converters.runtimes.mlx import MlxRunner
from weighbridge.converters.runtimes.torch import TorchRunner, build_module
from weighbridge.parity.check import check as checking
from weighbridge.parity.check import runs
from weighbridge.parity.check.check import check
from weighbridge.parity.goldens.golden import Golden
from weighbridge.parity.goldens.recorder import record

LAYER = "encoder.layer.1"


@pytest.fixture(scope="module")
def reference(tiny_bert_dir):
    return weighbridge.open(tiny_bert_dir)


@pytest.fixture(scope="module")
def golden(reference):
    return record(reference, precisions=("float16", "bfloat16"), level="blame")


def test_mlx_computes_on_the_cpu_while_it_is_checked_whatever_its_device_is(reference, monkeypatch):
    cpu, gpu = mx.Device(mx.cpu), mx.Device(mx.gpu)  # a build without one has the name all the same
    now, seen = [gpu], []
    monkeypatch.setattr(mx, "default_device", lambda: now[0])
    monkeypatch.setattr(mx, "set_default_device", lambda it: now.__setitem__(0, it))
    run = MlxRunner._call

    def watched(self, feed):
        seen.append(now[0])
        return run(self, feed)

    monkeypatch.setattr(MlxRunner, "_call", watched)
    assert check(reference, reference, runtime="mlx", quick=True).status == "PASS"
    assert seen
    assert all(it == cpu for it in seen)
    assert now == [gpu]


def candidate(reference, mutate=None, **changes):
    """Return the reference as a live module that MUTATE has changed, beside the same text side."""
    module = copy.deepcopy(build_module(reference))
    if mutate:
        with torch.no_grad():
            module = mutate(module) or module
    return LiveModel(
        spec="candidate",
        framework="torch",
        path=None,
        config={},
        factory=module,
        declared=reference.signature,
        **changes,
    )


class LiveModel(Model):
    """A live module."""


@pytest.fixture(autouse=True)
def _live_modules_have_no_text_side(monkeypatch):
    """Compare computations only: the text side has tests of its own."""
    from weighbridge.parity.check.verdict import Stage

    text = checking.Check.text

    def skip(self):
        live = isinstance(self.candidate.model, LiveModel)
        return Stage("text", "skipped", "a live module") if live else text(self)

    monkeypatch.setattr(checking.Check, "text", skip)


class WithoutMask(nn.Module):
    """Runs a module and loses its mask."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, input_ids, attention_mask):
        return self.module(input_ids=input_ids, attention_mask=torch.ones_like(attention_mask))

    def state_dict(self, *args, **kwargs):
        return self.module.state_dict(*args, **kwargs)


def tanh_gelu(module):
    module.get_submodule(LAYER).intermediate.intermediate_act_fn = nn.GELU(approximate="tanh")


def wide_epsilon(module):
    for child in module.modules():
        if isinstance(child, nn.LayerNorm):
            child.eps = 1e-5


def zero_bias(module):
    module.get_submodule(f"{LAYER}.output.dense").bias.zero_()


def zero_key_bias(module):
    module.get_submodule(f"{LAYER}.attention.self.key").bias.zero_()


def lost_row(module):
    module.embeddings.word_embeddings.weight[4] = 0


def nan_weight(module):
    module.get_submodule(f"{LAYER}.output.dense").bias[0] = float("nan")


def infinite_weight(module):
    module.get_submodule(f"{LAYER}.output.LayerNorm").bias[0] = float("inf")


def sdpa(module):
    module.set_attn_implementation("sdpa")


def eager(module):
    module.set_attn_implementation("eager")


FAULTS = {  # mutation -> stages that must catch it
    "GELU tanh for erf": (tanh_gelu, {"structure"}),
    "norm epsilon 1e-5 for 1e-12": (wide_epsilon, {"structure"}),
    "mask dropped": (WithoutMask, {"structure", "batch"}),
    "bias zeroed": (zero_bias, {"fingerprints", "structure"}),
    "key bias zeroed, which no output shows": (zero_key_bias, {"fingerprints"}),
    "embedding row at the edge": (lost_row, {"fingerprints", "reach"}),
    "NaN": (nan_weight, {"fingerprints", "outputs"}),
    "infinity": (infinite_weight, {"fingerprints", "outputs"}),
}


@pytest.mark.parametrize("mutate", [None, sdpa, eager], ids=["same", "sdpa", "eager"])
def test_a_correct_implementation_passes(reference, golden, mutate):
    verdict = check(golden, candidate(reference, mutate))
    assert verdict.status == "PASS", verdict.stages
    assert verdict.exit_code() == 0


def test_with_other_kernels_it_passes_too(reference, golden):
    torch._C._set_mkldnn_enabled(False)  # the public context warns of TF32, and warnings are errors
    try:
        assert check(golden, candidate(reference)).status == "PASS"
    finally:
        torch._C._set_mkldnn_enabled(True)


@pytest.mark.parametrize(("mutate", "stages"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_caught_where_it_shows(reference, golden, mutate, stages):
    verdict = check(golden, candidate(reference, mutate))
    assert verdict.status == "DIFFERS"
    assert verdict.exit_code(["UNVERIFIED"]) == 1
    assert {stage.name for stage in verdict.stages if stage.status == "fail"} == stages


def test_blame_names_the_site(reference, golden):
    verdict = check(golden, candidate(reference, tanh_gelu))
    assert [fault.site for fault in verdict.faults] == [f"{LAYER}.intermediate.intermediate_act_fn"]


def test_blame_works_from_a_golden_on_disk(reference, golden, tmp_path):
    golden.save(tmp_path)
    verdict = check(Golden.load(tmp_path), candidate(reference, tanh_gelu))
    assert [fault.site for fault in verdict.faults] == [f"{LAYER}.intermediate.intermediate_act_fn"]


def test_a_directory_passes_against_itself_in_every_stage(reference):
    verdict = check(reference, reference)
    assert verdict.status == "PASS"
    assert {stage.name: stage.status for stage in verdict.stages} == {
        "text": "pass",
        "configuration": "pass",
        "fingerprints": "pass",
        "auxiliary": "pass",
        "outputs": "pass",
        "structure": "pass",
        "reach": "pass",
        "batch": "pass",
        "precision": "skipped",
    }


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_weights_kept_in_16_bits_are_judged_twice(reference, golden, dtype):
    narrow = candidate(reference, lambda module: module.to(getattr(torch, dtype)))
    verdict = check(golden, narrow)
    assert verdict.status == "PASS", verdict.stages
    assert verdict.stage("precision").figures["dtype"] == dtype
    assert verdict.provenance["candidate"]["shipped"] == dtype


def test_narrow_weights_do_not_hide_a_fault_of_structure(reference, golden):
    def mutate(module):
        tanh_gelu(module)
        module.to(torch.float16)

    verdict = check(golden, candidate(reference, mutate))
    assert verdict.stage("structure").status == "fail"


def test_the_precision_of_the_policy_is_asked_for(reference, golden):
    verdict = check(golden, candidate(reference), policy=Policy(compute="bfloat16"))
    assert verdict.status == "PASS"
    assert verdict.stage("precision").figures["dtype"] == "bfloat16"


def test_a_key_that_nobody_studied_is_unverified(reference, golden, monkeypatch):
    monkeypatch.setattr(runs, "floor", lambda *key, **_: None)
    verdict = check(golden, candidate(reference))
    assert verdict.status == "UNVERIFIED"
    assert verdict.exit_code() == 4
    assert "no null study for torch/cpu/float32/float32" in verdict.stage("structure").detail


def test_a_runtime_without_float32_is_precision_only(reference, golden, monkeypatch):
    monkeypatch.setattr(checking.Candidate, "structure", None)
    verdict = check(golden, candidate(reference), policy=Policy(compute="float16"))
    assert verdict.status == "PASS-PRECISION-ONLY"
    assert verdict.exit_code() == 4
    assert verdict.exit_code("PASS-PRECISION-ONLY") == 0


def test_our_evaluator_is_not_the_vendors_runtime(reference, golden, monkeypatch):
    monkeypatch.setattr(
        checking.Candidate, "load", lambda self, policy: EvaluatorRunner(self.model, policy)
    )
    assert check(golden, candidate(reference), runtime="reference").status == "PASS-REFERENCE"


class EvaluatorRunner(TorchRunner):
    """Runs in torch and says that it is the evaluator."""

    def describe(self):
        return super().describe() | {"runtime": "reference"}


def test_a_golden_without_the_candidates_storage_is_unverified(reference):
    narrow = candidate(reference, lambda module: module.to(torch.float16))
    verdict = check(record(reference, precisions=()), narrow)
    assert verdict.status == "UNVERIFIED"
    assert "no recording with float16 weights" in verdict.stage("structure").detail


def test_an_ignored_input_fails_before_anything_runs(reference, golden):
    signature = replace(reference.signature, inputs=reference.signature.inputs[:1])
    deaf = replace(candidate(reference), declared=signature)
    verdict = check(golden, deaf)
    assert "attention_mask (attention_mask) is not an input" in verdict.stage("auxiliary").detail
    assert verdict.stage("structure") is None


def test_outputs_of_another_shape_fail_before_errors_are_measured(reference, golden):
    class Pooled(WithoutMask):
        """Averages over tokens."""

        def forward(self, input_ids, attention_mask):
            states = self.module(input_ids=input_ids, attention_mask=attention_mask)[0]
            return states.mean(1)

    verdict = check(golden, candidate(reference, Pooled))
    assert "has shape" in verdict.stage("outputs").detail
    assert verdict.stage("structure") is None


@pytest.fixture(scope="module")
def exported(reference, tmp_path_factory):
    """Return a function that exports the reference, changed or not, to an ML program."""
    from weighbridge.converters.coreml.export import export_coreml

    def export(compute, mutate=None):
        module = copy.deepcopy(build_module(reference))
        if mutate:
            mutate(module)
        target = tmp_path_factory.mktemp("exported") / "model.mlpackage"
        export_coreml(module, reference.signature, target, compute=compute)
        return weighbridge.open(target)

    return export


@pytest.mark.heavy
def test_a_float16_program_is_judged_on_structure_and_on_precision(golden, exported):
    verdict = check(golden, exported("float16"), runtime="reference")
    assert verdict.status == "PASS-REFERENCE", verdict.stages
    assert verdict.stage("structure").status == "pass"  # with its constants as they were
    assert verdict.stage("precision").figures["dtype"] == "float16"


@pytest.mark.heavy
def test_rounded_constants_do_not_hide_a_fault_in_a_float16_program(golden, exported):
    verdict = check(golden, exported("float16", wide_epsilon), runtime="reference")
    assert verdict.stage("structure").status == "fail"
    assert verdict.stage("precision").status == "pass"


def test_quick_runs_one_small_probe(reference):
    verdict = check(reference, candidate(reference), quick=True)
    assert verdict.status == "PASS"
    assert verdict.provenance["level"] == "quick"
    assert verdict.provenance["probes"] == ["small"]


def test_quick_runs_one_probe_of_a_golden_that_holds_more(reference, golden):
    assert len(golden.probes) > 1
    verdict = check(golden, reference, quick=True)
    assert verdict.provenance["probes"] == [golden.probes[0].name]


def test_the_same_weights_beside_another_tokenizer_differ(golden, tiny_bert_dir, tmp_path):
    other = shutil.copytree(tiny_bert_dir, tmp_path / "other")
    file = other / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    words = tokenizer["model"]["vocab"]
    words["the"], words["of"] = words["of"], words["the"]
    file.write_text(json.dumps(tokenizer))
    verdict = check(golden, weighbridge.open(other), quick=True)
    assert verdict.status == "DIFFERS"
    assert [stage.name for stage in verdict.stages if stage.status == "fail"] == ["text"]


def test_quick_still_catches_what_one_probe_shows(reference):
    assert check(reference, candidate(reference, WithoutMask), quick=True).status == "DIFFERS"


def test_a_shorter_candidate_is_probed_within_its_sizes(reference):
    inputs = tuple(
        replace(port, shape=(1, 32), upper=port.upper) for port in reference.signature.inputs
    )
    fixed = replace(candidate(reference), declared=replace(reference.signature, inputs=inputs))
    assert check(reference, fixed).status == "PASS"


def test_probes_that_do_not_fit_are_said_to_be_left_out(reference, golden):
    upper = (("sequence", 70), ("vocabulary", 500))
    inputs = tuple(replace(port, upper=upper) for port in reference.signature.inputs)
    short = replace(candidate(reference), declared=replace(reference.signature, inputs=inputs))
    verdict = check(golden, short)
    assert verdict.status == "PASS"
    assert any("larger than the candidate takes" in it for it in verdict.provenance["not_checked"])


def test_a_map_that_promised_another_weight_is_contradicted(reference, golden):
    expected = {"embeddings.LayerNorm.weight": "embeddings.LayerNorm.bias"}
    verdict = check(golden, candidate(reference), expected=expected)
    assert "the map says embeddings.LayerNorm.bias" in verdict.stage("fingerprints").detail


def test_a_candidate_is_not_changed_by_being_judged(reference, golden):
    module = candidate(reference, lambda it: it.to(torch.float16))
    check(golden, module)
    assert module.factory.embeddings.word_embeddings.weight.dtype is torch.float16


def test_the_verdict_is_plain_json(reference, golden):
    verdict = check(golden, candidate(reference, tanh_gelu))
    assert json.loads(json.dumps(verdict.to_json()))["status"] == "DIFFERS"


def test_the_report_says_what_no_probe_reached(reference, golden):
    missed = check(golden, candidate(reference)).provenance["not_checked"]
    assert any("vocabulary rows" in line for line in missed)
    assert any("positions" in line for line in missed)
    assert np.isfinite([len(line) for line in missed]).all()


@pytest.mark.heavy
@pytest.mark.parametrize("compute", ["float32", "float16"])
def test_the_pretrained_model_passes_in_mlx(minilm_dir, compute):
    model = weighbridge.open(minilm_dir)
    verdict = check(model, model, runtime="mlx", policy=Policy(compute=compute))
    assert verdict.status == "PASS", verdict.stages
