"""Small modules as app developers write them, exported: what they ask for by name, and what exporters make of weights."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from weighbridge.cli import main

CODE = """
import torch
from torch import nn
from torch.nn import functional


class Islands(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(30, 8, padding_idx=0), nn.Linear(8, 4)
        self.kinds = nn.Linear(30, 4)
        self.register_buffer("window", torch.hann_window(5), persistent=False)

    def forward(self, ids):
        mask = (ids != 0).unsqueeze(-1).float()
        pooled = (self.embed(ids) * mask).sum(1) / mask.sum(1).clamp(min=1)
        kinds = self.kinds(functional.one_hot(ids, 30).float())
        return self.out(pooled), kinds * self.window[:, None], torch.ones(4) + kinds


class Pictures(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.4, 0.5, 0.6]).view(1, 3, 1, 1))
        self.register_buffer("image", torch.tensor([0.2, 0.3, 0.25]).view(1, 3, 1, 1))
        self.conv = nn.Conv2d(3, 8, 3, 2, 1)

    def forward(self, image):
        return self.conv((image / 255 - self.mean) / self.image).mean((2, 3))


class Slopes(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 8, 3))
        self.slopes, self.scale = nn.PReLU(8), nn.Parameter(torch.tensor(0.7))

    def forward(self, image):
        return self.slopes(self.conv(image / 255)) * self.scale.exp().clamp(max=100)


class Written(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
        self.square = nn.Parameter(torch.randn(16, 16) * 0.2)

    def forward(self, cat, mean):
        hidden = nn.Transformer.generate_square_subsequent_mask(6).to(cat.dtype)
        upper = self.square.triu(1)
        found = self.layer(torch.cat([cat, cat], 1)[:, :6], mean, tgt_mask=hidden)
        return found @ (upper - upper.T), torch.log10(found.abs() + 1e-3).mean(1)


class Looked(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("edges", torch.linspace(-2, 2, 9))
        self.embed = nn.Embedding(10, 6)

    def forward(self, cat, mean):
        return {
            "alike": functional.cosine_similarity(cat[:, :5], mean, dim=-1),
            "binned": self.embed(torch.bucketize(cat, self.edges)).mean(2),
            "middle": cat.median(-1).values,
            "place": mean.median(1, keepdim=True).indices,
            "whole": mean.median(),
            "windows": cat.unfold(1, 3, 1).amax(-1),
        }


class Reduced(nn.Module):  # over all, over some, and with what PyTorch takes where nothing is said
    def forward(self, cat, mean):
        low, high = torch.aminmax(cat)
        spread, middle = torch.std_mean(cat, -1)
        return {
            "scaled": (cat - low) / (high - low) + cat / cat.amax() - cat.amin(keepdim=True),
            "normed": (cat - cat.mean(1, keepdim=True)) / cat.std(1, keepdim=True),
            "spread": spread + middle + cat.std() + torch.var_mean(cat, dim=(0, 1))[0].mean(),
            "products": cat.prod(-1) + (1 + cat / 9).prod(),
            "whole": torch.trunc(4 * mean),
            "place": cat.argmax(),
        }


class Picked(nn.Module):
    def forward(self, cat, mean):
        highest, places = cat.cummax(1)
        return {
            "so_far": highest + cat.cummin(-1).values,
            "places": places,
            "third": cat.kthvalue(3, -1).values,
            "often": torch.round(cat).mode(-1).values,
            "signed": torch.copysign(cat, cat.flip(2)) + torch.copysign(cat, -1.0),
        }


class Small(nn.Module):  # what coremltools makes something else of, or stops at
    def forward(self, cat, mean):
        near = cat.abs() + 1e-3
        return {
            "inverse": 1 / near,
            "shortened": torch.renorm(cat, 2, 0, 1.0) + functional.normalize(mean.mean(1), p=3)[:, None],
            "rest": cat.abs().remainder(1.0) + cat.fmod(1.0),
            "left": torch.fmod(cat, cat.flip(1) + 3),
            "numbers": torch.where(cat > 1, torch.nan, cat).nansum(-1),
            "between": torch.lerp(cat, cat.flip(1), 0.3) + torch.lerp(cat, cat.flip(1), 0.8),
            "logistic": functional.logsigmoid(4 * cat),
            "least": functional.threshold(cat, 0.1, -2.0),
            "around": functional.pad(cat, (2, 1), mode="circular"),
            "sums": torch.logaddexp(cat, cat.flip(1)) + torch.logcumsumexp(cat, 1),
            "leaky": functional.rrelu(cat),
            "angles": torch.atan2(cat.clamp(min=0), cat.flip(1)),
        }


class Enlarged(nn.Module):
    def forward(self, image):
        larger = functional.interpolate(image / 255, size=(17, 7), mode="bicubic")
        return {
            "larger": larger,
            "aligned": functional.interpolate(larger, scale_factor=(1.3, 2), mode="bicubic", align_corners=True),
            "scaled": functional.interpolate(larger, scale_factor=1.7, mode="bicubic").mean((2, 3)),
        }


class Summed(nn.Module):
    def forward(self, cat, mean):
        places = (cat[..., :1] > 0).long().expand(-1, -1, 16)
        return torch.zeros_like(mean[:, :2]).scatter_add(1, places, cat)


class Alike(nn.Module):  # four numbers, each a sum of many squares: every order of them errs by several roundings
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 12)

    def forward(self, cat):
        found = self.layer(cat)
        return torch.tensordot(found, found, dims=([1, 2], [1, 2]))


class Padded(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x, hidden, ids):
        places = ids[..., None].expand(-1, -1, 16).clamp(max=5).clamp_min(1)
        found = torch.gather(x, 1, places) * ids.max().clamp(max=3)
        return self.attention(x, x, x, key_padding_mask=hidden)[0], found, ids.clamp(min=1.5)


class Ahead(nn.Module):  # its mask is float32 whatever the rest is in
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(16, 2, 32, batch_first=True, dropout=0.0)

    def forward(self, cat, mean):
        return self.layer(cat, mean, tgt_mask=nn.Transformer.generate_square_subsequent_mask(6))


class Hidden(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(16, 2, 32, batch_first=True, dropout=0.0)

    def forward(self, cat, mean, mask):
        return self.layer(cat, mean, tgt_mask=mask)


def seeded(kind):
    torch.manual_seed(0)
    return kind().eval()


def altered():
    made = seeded(Hidden)
    made.layer.self_attn.in_proj_weight.data[3] *= 1.01
    return made


def hidden(): return seeded(Hidden)


def islands(): return seeded(Islands)
def pictures(): return seeded(Pictures)
def written(): return seeded(Written)
def looked(): return seeded(Looked)
def summed(): return seeded(Summed)
def alike(): return seeded(Alike)
def padded(): return seeded(Padded)
def reduced(): return seeded(Reduced)
def ahead(): return seeded(Ahead)
def picked(): return seeded(Picked)
def small(): return seeded(Small)
def enlarged(): return seeded(Enlarged)
def slopes(): return seeded(Slopes)
"""
TARGETS = {"coreml": "a.mlpackage", "onnx": "a.onnx", "coreai": "a.aimodel"}
EVERY = pytest.mark.parametrize("kind", sorted(TARGETS))


@pytest.fixture
def export(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "user_modules.py").write_text(CODE)
    draw = np.random.default_rng(0)
    np.savez("ids.npz", ids=np.array([[3, 4, 5, 0, 0], [1, 2, 0, 0, 0]]))
    two = {"cat": draw.normal(size=(2, 6, 16)), "mean": draw.normal(size=(2, 5, 16))}
    np.savez("two.npz", **{name: it.astype(np.float32) for name, it in two.items()})
    many = np.random.default_rng(11).normal(size=(2, 6, 16))
    np.savez("many.npz", cat=many.astype(np.float32))
    mask = np.triu(np.full((6, 6), -np.inf, np.float32), 1)
    np.savez("masked.npz", **np.load("two.npz"), mask=mask)
    ids, hidden = draw.integers(0, 8, (2, 6)), np.array([[0] * 6, [0, 0, 0, 0, 1, 1]], bool)
    np.savez("padded.npz", x=two["cat"].astype(np.float32), hidden=hidden, ids=ids)
    np.savez("image.npz", image=draw.uniform(0, 255, (2, 3, 12, 12)).astype(np.float32))

    def run(kind, name, inputs, precision):
        if kind == "coreai":
            pytest.importorskip("coreai_torch")
        words = ["export", kind, f"user_modules:{name}", TARGETS[kind], "--inputs", inputs]
        result = CliRunner().invoke(main, [*words, "--precision", precision, "--json"])
        document = json.loads(result.stdout)
        assert "verdict" in document, result.output
        return document

    return run


@EVERY
def test_a_module_that_asks_for_float32_by_name_is_in_float16_throughout(export, kind):
    document = export(kind, "islands", "ids.npz", "fp16")
    assert document["verdict"]["status"] in ("PASS", "PASS-REFERENCE")
    assert document["verdict"]["provenance"]["candidate"]["shipped"] == "float16"


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_buffers_may_be_called_as_values_and_inputs_of_a_graph_are(export, precision):
    document = export("onnx", "pictures", "image.npz", precision)
    assert document["verdict"]["status"] == "PASS"


@pytest.mark.parametrize("precision", ["mixed", "fp32"])
def test_equal_slopes_and_norms_that_a_weight_has_already_are_found_in_a_package(export, precision):
    document = export("coreml", "slopes", "image.npz", precision)
    assert document["verdict"]["status"] == "PASS-REFERENCE"


@pytest.mark.parametrize(
    ("kind", "precision"), [("coreml", "mixed"), ("coreai", "fp16"), ("onnx", "fp32")]
)
def test_layers_with_masks_scales_and_products_made_ahead_of_time_pass(export, kind, precision):
    document = export(kind, "written", "two.npz", precision)
    assert document["verdict"]["status"] in ("PASS", "PASS-REFERENCE")


@EVERY
def test_bins_medians_windows_and_likeness_pass(export, kind):
    document = export(kind, "looked", "two.npz", "fp32")
    assert document["verdict"]["status"] in ("PASS", "PASS-REFERENCE")


@EVERY
@pytest.mark.parametrize("name", ["picked", "small"])
def test_elements_so_far_signs_rests_and_inverses_pass(export, kind, name):
    document = export(kind, name, "two.npz", "fp32")
    assert document["verdict"]["status"] in ("PASS", "PASS-REFERENCE")


@pytest.mark.parametrize("precision", ["fp16", "fp32", "mixed"])
def test_what_pictures_are_interpolated_by_is_explained_in_a_package(export, precision):
    document = export("coreml", "enlarged", "image.npz", precision)
    assert document["verdict"]["status"] == "PASS-REFERENCE"


@EVERY
def test_extremes_spreads_and_products_of_all_or_some_pass(export, kind):
    document = export(kind, "reduced", "two.npz", "fp32")
    assert document["verdict"]["status"] in ("PASS", "PASS-REFERENCE")


@pytest.mark.parametrize("kind", ["coreml", "onnx"])
def test_sums_between_layers_may_be_added_in_any_order(export, kind):
    document = export(kind, "alike", "many.npz", "fp32")
    assert document["verdict"]["status"] in ("PASS", "PASS-REFERENCE")


def test_what_onnxruntime_lacks_in_float16_is_unverified_and_not_wrong(export):
    verdict = export("onnx", "summed", "two.npz", "fp16")["verdict"]
    assert verdict["status"] == "UNVERIFIED"
    found = [it["detail"] for it in verdict["stages"] if it["name"] == "outputs"]
    assert "ScatterElements" in found[-1]


@pytest.mark.parametrize(
    ("kind", "precision"),
    [("coreml", "fp32"), ("coreml", "mixed"), ("coreai", "fp16"), ("onnx", "fp16")],
)
def test_masks_of_booleans_and_clamped_places_pass(export, kind, precision):
    document = export(kind, "padded", "padded.npz", precision)
    assert document["verdict"]["status"] in ("PASS", "PASS-REFERENCE")


def test_a_float32_mask_of_attention_in_float16_loads_in_onnxruntime(export):
    assert export("onnx", "ahead", "two.npz", "fp16")["verdict"]["status"] == "PASS"


@EVERY
def test_a_mask_of_infinities_may_be_an_input(export, kind):
    document = export(kind, "hidden", "masked.npz", "fp16")
    assert document["verdict"]["status"] in ("PASS", "PASS-REFERENCE")


def test_a_file_of_another_module_differs_on_a_mask_of_infinities(export):
    assert export("onnx", "hidden", "masked.npz", "fp32")["verdict"]["status"] == "PASS"
    words = ["parity", "check", "user_modules:altered", "a.onnx", "--inputs", "masked.npz"]
    result = CliRunner().invoke(main, [*words, "--json"])
    assert result.exit_code == 1, result.output
    assert json.loads(result.stdout)["status"] == "DIFFERS"
