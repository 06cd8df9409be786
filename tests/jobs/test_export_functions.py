"""Modules that compute by functions of torch: without submodules, without weights, with integers among outputs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

from weighbridge.cli import main
from weighbridge.converters.checkpoints.formats.coreai.asset import Asset
from weighbridge.tests.support.coreml.assets import with_weights

CODE = """
import math, torch
from torch import nn
from torch.nn import functional


class Bare(nn.Module):
    def forward(self, x):
        return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(1 + 0.1 * torch.randn(16))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.w


class Many(nn.Module):
    def __init__(self, best=torch.argmax):
        super().__init__()
        self.best = best
        self.t, self.g = nn.Parameter(torch.tensor(0.07)), nn.Parameter(torch.tensor(0.05))
        self.k = nn.Parameter(torch.tensor(0.4999))  # float16 has one number for its inverse and 2
        self.h, self.w = nn.Parameter(torch.rand(16)), nn.Parameter(1 + torch.rand(16))

    def forward(self, x):
        counts = torch.arange(1, x.shape[1] + 1).view(1, -1, 1)
        values, places = x.topk(3, -1)
        return {
            "best": self.best(x, -1),
            "above": x > 0,
            "places": places,
            "values": values.softmax(-1),
            "means": x.cumsum(1) / counts,
            "sharp": x / self.t,
            "gated": x / (1 + self.h) + x * (1 - self.g) + torch.exp(-self.g * x**2) + x / self.w,
            "bent": self.k * x**3 + x**2,
            "pooled": functional.avg_pool1d(functional.max_pool1d(x, 2), 2),
        }


class Tanh(nn.Module):
    def forward(self, x):
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.g, self.t = nn.Parameter(torch.rand(16)), nn.Parameter(torch.tensor(0.3))

    def forward(self, x):
        return x * torch.exp(self.g) + x**2 * (1 + torch.exp(self.g)) + x / (1 + torch.exp(self.t))


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.g = nn.Parameter(torch.randn(8, 16)), nn.Parameter(torch.rand(8))

    def forward(self, x):
        rows = functional.normalize(self.w, dim=-1) * self.g.exp().unsqueeze(-1)
        return functional.linear(x, rows)


class Distances(nn.Module):
    def forward(self, x):
        boxes = x.reshape(2, 1, 2, 6, 8)
        return {
            "apart": torch.cdist(x, x[:, :3], p=1.0),
            "near": torch.cdist(x, x[:, 1:]),
            "boxes": functional.max_pool3d(boxes, 2),
            "overlapping": functional.max_pool3d(boxes, (2, 3, 3), (1, 2, 1), (1, 1, 0), ceil_mode=True),
        }


class Almost(nn.Module):
    def __init__(self):
        super().__init__()
        self.g, self.t = nn.Parameter(torch.full((16,), 0.9998)), nn.Parameter(torch.tensor(0.9998))
        self.k, self.layer = nn.Parameter(torch.full((512,), 1e-9)), nn.Linear(16, 512)

    def forward(self, x):
        return self.layer(x * self.g) * self.t * 1.0002 + self.k


class ByHand(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.b = nn.Parameter(torch.rand(16)), nn.Parameter(torch.rand(16))

    def forward(self, x):
        centred = x - x.mean(-1, keepdim=True)
        variance = centred.pow(2).mean(-1, keepdim=True)
        root = x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-2) * self.w
        return (x - x.mean(-1, keepdim=True)) / torch.sqrt(variance + 1e-2) * self.w + self.b, root


class Near(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 4)
        with torch.no_grad():
            self.layer.weight[1] = self.layer.weight[0] * (1 + 1e-6)
            self.layer.bias[1] = self.layer.bias[0]

    def forward(self, x):
        scores = self.layer(x)
        return {"best": (scores[..., 0] > scores[..., 1]), "scores": scores}


class Chosen(nn.Module):  # nothing but integers
    def __init__(self, more=0.0):
        super().__init__()
        self.layer = nn.Linear(16, 4)
        self.layer.bias.data[1] += more

    def forward(self, x):
        scores = self.layer(x)
        return {"best": scores.argmax(-1), "above": scores > 0.1, "order": scores.argsort(-1)}


class Shares(nn.Module):
    def forward(self, x):
        many = x.abs().unsqueeze(-1) * (1 + torch.arange(16) / 7)
        return {"shares": x / many.sum(), "apart": x - many.mean()}


class Windowed(nn.Module):
    def forward(self, x):
        return torch.view_as_real(torch.stft(x.flatten(1), 8, window=torch.hann_window(8), return_complex=True))


class Ranked(nn.Module):
    def forward(self, x):
        return torch.quantile(x, 0.3, dim=-1)


class Drawn(nn.Module):
    def forward(self, x):
        return torch.rrelu(x, training=True)


class Wide(nn.Module):
    def forward(self, x):
        if x.dtype == torch.float16 and not torch.compiler.is_exporting():
            raise NotImplementedError("float16 is too narrow for this")
        return x.cumsum(-1)


class Turned(nn.Module):
    def forward(self, x):
        return torch.fft.rfft(x)


def seeded(kind, *more):
    torch.manual_seed(0)
    return kind(*more).eval()


def bare(): return seeded(Bare)
def norm(): return seeded(Norm)
def many(): return seeded(Many)
def least(): return seeded(Many, torch.argmin)
def tanh(): return seeded(Tanh)
def gated(): return seeded(Gated)
def scaled(): return seeded(Scaled)
def distances(): return seeded(Distances)
def drawn(): return seeded(Drawn)
def wide(): return seeded(Wide)
def almost(): return seeded(Almost)
def by_hand(): return seeded(ByHand)
class Far(nn.Module):
    def __init__(self):
        super().__init__()
        self.near, self.far = nn.Linear(16, 4), nn.Linear(16, 4)
    def forward(self, x):
        return torch.where(x.sum(-1, keepdim=True) > 1e4, self.far(x), self.near(x))

def far(): return seeded(Far)
def near(): return seeded(Near)
def chosen(): return seeded(Chosen)
def always(): return seeded(Chosen, 100.0)
def tied():
    found = seeded(Chosen)
    found.layer.weight.data[1:] = found.layer.weight.data[:1] * (1 + 1e-8 * torch.randn(3, 16))
    found.layer.bias.data.fill_(0.1)
    return found
def unlike():
    found = seeded(Chosen)
    found.layer.weight.data[2] *= 1.1
    return found
def shares(): return seeded(Shares)
def windowed(): return seeded(Windowed)
def ranked(): return seeded(Ranked)
def turned(): return seeded(Turned)
"""


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "by_functions.py").write_text(CODE)
    x = np.random.default_rng(0).normal(size=(2, 6, 16)).astype(np.float32)
    np.savez("inputs.npz", x=x)

    def run(*words):
        return CliRunner().invoke(main, [*map(str, words), "--inputs", "inputs.npz"])

    return run


def tensors_of(asset):
    found = Asset(Path(asset))
    return {name: found.read(name) for name in found.headers}


def verdict_of(result):
    found = json.loads(result.stdout)
    return found.get("verdict", found)


def details(verdict):
    return {stage["name"]: (stage["status"], stage["detail"]) for stage in verdict["stages"]}


@pytest.mark.parametrize(
    ("kind", "target"), [("coreml", "a.mlpackage"), ("onnx", "a.onnx"), ("coreai", "a.aimodel")]
)
def test_integers_folded_numbers_and_pools_pass_in_every_format(invoke, kind, target):
    if kind == "coreai":
        pytest.importorskip("coreai_torch")
    result = invoke("export", kind, "by_functions:many", target, "--json")
    assert result.exit_code == 0, result.output
    assert verdict_of(result)["status"] in ("PASS", "PASS-REFERENCE")


@pytest.mark.parametrize(
    ("kind", "target"), [("coreml", "a.mlpackage"), ("onnx", "a.onnx"), ("coreai", "a.aimodel")]
)
def test_distances_and_pools_of_boxes_pass_in_every_format(invoke, kind, target):
    if kind == "coreai":
        pytest.importorskip("coreai_torch")
    words = ("export", kind, "by_functions:distances", target, "--precision", "fp32", "--json")
    assert verdict_of(invoke(*words))["status"] in ("PASS", "PASS-REFERENCE")


def test_what_pytorch_lacks_in_float16_is_judged_by_its_rounded_results(invoke):
    words = ("export", "onnx", "by_functions:distances", "a.onnx", "--precision", "fp16", "--json")
    found = details(verdict_of(invoke(*words)))
    assert found["precision"][0] == "pass"


def test_a_module_that_pytorch_cannot_run_in_float16_is_exported_and_unverified(invoke):
    words = ("export", "onnx", "by_functions:wide", "a.onnx", "--precision", "fp16", "--json")
    result = invoke(*words)
    assert result.exit_code == 4, result.output
    found = details(verdict_of(result))
    assert found["structure"][0] == "pass"
    status, detail = found["precision"]
    assert status == "unverified"
    assert "in float16 does not run" in detail
    assert "float16 is too narrow for this" in detail


@pytest.mark.parametrize(
    ("kind", "target"), [("coreml", "a.mlpackage"), ("onnx", "a.onnx"), ("coreai", "a.aimodel")]
)
def test_slopes_that_are_drawn_are_refused_by_name(invoke, kind, target, tmp_path):
    if kind == "coreai":
        pytest.importorskip("coreai_torch")
    result = invoke("export", kind, "by_functions:drawn", target)
    assert result.exit_code == 3, result.output
    assert "rrelu draws its slopes in training: call it with training=False" in result.output
    assert not (tmp_path / target).exists()


def test_another_integer_differs(invoke):
    assert invoke("export", "onnx", "by_functions:least", "a.onnx").exit_code == 0
    result = invoke("parity", "check", "by_functions:many", "a.onnx", "--json")
    assert result.exit_code == 1
    assert "best differs in 12 of 12 integers" in details(verdict_of(result))["outputs"][1]


@pytest.mark.parametrize("precision", ["mixed", "fp32"])
def test_a_module_without_weights_passes_in_core_ml(invoke, precision):
    words = ("export", "coreml", "by_functions:bare", "a.mlpackage", "--precision", precision)
    verdict = verdict_of(invoke(*words, "--json"))
    assert verdict["status"] == "PASS-REFERENCE"
    found = details(verdict)
    assert found["fingerprints"] == ("pass", "neither side has weights")
    assert "would have caught: the output of the whole off by" in found["structure"][1]


def test_a_mixed_package_may_keep_all_of_it_in_float32(invoke):
    result = invoke("export", "coreml", "by_functions:norm", "a.mlpackage", "--json")
    assert result.exit_code == 0, result.output
    assert details(verdict_of(result))["precision"][0] == "skipped"


@pytest.mark.parametrize("precision", ["fp16", "mixed"])
def test_numbers_that_float16_alone_makes_1_or_0_stay_in_a_package(invoke, precision):
    words = ("export", "coreml", "by_functions:almost", "a.mlpackage", "--precision", precision)
    verdict = verdict_of(invoke(*words, "--json"))
    assert verdict["status"] == "PASS-REFERENCE"
    kinds = verdict["stages"]
    (kinds,) = (it["figures"]["kinds"] for it in kinds if it["name"] == "fingerprints")
    assert kinds.keys() <= {"cast", "made", "transposed"}


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_norms_written_by_hand_load_in_onnxruntime(invoke, precision):
    words = ("export", "onnx", "by_functions:by_hand", "a.onnx", "--precision", precision)
    assert verdict_of(invoke(*words, "--json"))["status"] == "PASS"


@pytest.mark.parametrize("name", ["bare", "tanh"])
@pytest.mark.parametrize(("kind", "target"), [("onnx", "a.onnx"), ("coreai", "a.aimodel")])
def test_a_module_without_weights_passes_in_float16(invoke, kind, target, name):
    if kind == "coreai":
        pytest.importorskip("coreai_torch")
    words = ("export", kind, f"by_functions:{name}", target, "--precision", "fp16", "--json")
    verdict = verdict_of(invoke(*words))
    assert verdict["status"] == "PASS"
    assert verdict["provenance"]["candidate"]["shipped"] == "float16"


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_what_is_computed_of_weights_ahead_of_time_passes_and_a_change_to_it_differs(
    invoke, precision
):
    pytest.importorskip("coreai_torch")
    words = ("export", "coreai", "by_functions:gated", "a.aimodel", "--precision", precision)
    assert verdict_of(invoke(*words, "--json"))["status"] == "PASS"
    sums = {n: it for n, it in tensors_of("a.aimodel").items() if it.shape == (16,) and it[0] > 2}
    ((name, array),) = sums.items()
    array[3] *= 1 + 2.0**-8
    other = with_weights(Path("a.aimodel"), Path("b.aimodel"), {name: array})
    verdict = verdict_of(invoke("parity", "check", "by_functions:gated", other, "--json"))
    assert verdict["status"] == "DIFFERS"
    assert "differs from add(g) in 1 of 16 numbers" in details(verdict)["fingerprints"][1]


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_what_is_computed_ahead_of_time_in_another_order_is_unverified_and_named(invoke, precision):
    pytest.importorskip("coreai_torch")
    words = ("export", "coreai", "by_functions:scaled", "a.aimodel", "--precision", precision)
    result = invoke(*words, "--json")
    assert result.exit_code == 4, result.output
    status, detail = details(verdict_of(result))["fingerprints"]
    assert status == "unverified"
    assert "may be computed from g ahead of time" in detail


def test_a_weight_that_was_replaced_differs_though_no_probe_reaches_it(invoke):
    assert verdict_of(invoke("export", "onnx", "by_functions:far", "a.onnx", "--json"))
    model = onnx.load("a.onnx")
    (weight,) = (it for it in model.graph.initializer if it.name == "far.weight")
    other = np.random.default_rng(1).normal(size=tuple(weight.dims)).astype(np.float32)
    weight.CopyFrom(onnx.numpy_helper.from_array(other, weight.name))
    onnx.save(model, "b.onnx")
    verdict = verdict_of(invoke("parity", "check", "by_functions:far", "b.onnx", "--json"))
    assert verdict["status"] == "DIFFERS"
    status, detail = details(verdict)["fingerprints"]
    assert status == "fail"
    assert "far.weight" in detail


def test_integers_that_rounding_chooses_are_unverified_and_not_wrong(invoke):
    result = invoke("export", "coreml", "by_functions:near", "a.mlpackage", "--json")
    assert result.exit_code == 4, result.output
    found = details(verdict_of(result))
    assert found["structure"][0] == "pass"
    status, detail = found["precision"]
    assert status == "unverified"
    assert "integers; rounding may choose otherwise" in detail


@pytest.mark.parametrize(
    ("kind", "target"), [("coreml", "a.mlpackage"), ("onnx", "a.onnx"), ("coreai", "a.aimodel")]
)
def test_integers_that_a_small_fault_would_change_are_a_proof(invoke, kind, target):
    if kind == "coreai":
        pytest.importorskip("coreai_torch")
    verdict = verdict_of(invoke("export", kind, "by_functions:chosen", target, "--json"))
    assert verdict["status"] in ("PASS", "PASS-REFERENCE")
    (structure,) = (it for it in verdict["stages"] if it["name"] == "structure")
    assert structure["detail"].startswith(
        "108 integers equal; smallest fault that this stage would have"
    )
    assert 0 < structure["figures"]["smallest_fault"]["size"] <= 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("always", "best might be the same if all that layers give were off by as much as itself"),
        ("tied", "rounding alone decides"),
    ],
)
def test_integers_that_nothing_or_rounding_alone_changes_are_no_proof(invoke, name, words):
    result = invoke("export", "onnx", f"by_functions:{name}", "a.onnx", "--json")
    status, detail = details(verdict_of(result))["structure"]
    assert (result.exit_code, status) == (4, "unverified"), detail
    assert words in detail


def test_integers_of_a_file_of_another_module_differ(invoke):
    assert invoke("export", "onnx", "by_functions:chosen", "a.onnx").exit_code == 0
    result = invoke("parity", "check", "by_functions:unlike", "a.onnx", "--json")
    assert result.exit_code == 1
    assert details(verdict_of(result))["fingerprints"][0] == "fail"


def test_complex_outputs_are_refused_with_what_to_return(invoke):
    result = invoke("export", "onnx", "by_functions:turned", "a.onnx")
    assert result.exit_code == 3
    assert "output_0 is complex: return torch.view_as_real of it" in result.output


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "windowed",
            "no torch.stft in float16 that PyTorch can write: export it by --precision fp32",
        ),
        (
            "ranked",
            "either float or double dtype; if it needs float32 there, export it by --precision",
        ),
    ],
)
def test_what_has_no_form_in_float16_is_refused_with_what_to_do(invoke, name, words):
    result = invoke("export", "onnx", f"by_functions:{name}", "a.onnx", "--precision", "fp16")
    assert result.exit_code == 3
    assert words in result.output
    assert "Traceback" not in result.output
    assert invoke("export", "onnx", f"by_functions:{name}", "b.onnx").exit_code == 0


def test_sums_of_all_numbers_pass_in_a_runtime_that_adds_one_by_one(invoke):
    pytest.importorskip("coreai_torch")
    words = (
        "export",
        "coreai",
        "by_functions:shares",
        "a.aimodel",
        "--precision",
        "fp32",
        "--json",
    )
    assert verdict_of(invoke(*words))["status"] == "PASS"
