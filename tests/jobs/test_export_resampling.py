"""Modules that interpolate, exported: by whatever factors, with and without aliasing, as torch does."""

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

from weighbridge.converters.models import Port, Signature


class Resampled(nn.Module):
    def __init__(self, *how):
        super().__init__()
        self.conv, self.how = nn.Conv2d(3, 4, 3, padding=1), how  # as many biases as a picture has axes

    def forward(self, image):
        found = self.conv(image)
        parts = [self.resampled(found, *how) for how in self.how]
        return {f"out_{at}": it for at, it in enumerate(parts)}

    def resampled(self, found, mode, size, factor, antialias=False, aligned=None):
        if mode == "linear":
            found = found.flatten(2)
        elif mode == "trilinear":
            found = found[:, None]
        options = {"antialias": True} if antialias else {}
        return functional.interpolate(
            found, size=size, scale_factor=factor, mode=mode, align_corners=aligned, **options
        )


def seeded(*how):
    torch.manual_seed(0)
    return Resampled(*how).eval()


def smooth():
    return seeded(
        *((mode, (19, 5), None, True) for mode in ("bilinear", "bicubic")),
        *((mode, None, 0.4, True) for mode in ("bilinear", "bicubic")),
        *((mode, (5, 19), None, True, True) for mode in ("bilinear", "bicubic")),
        ("bilinear", (1, 4), None, True, True),
    )


def varying():
    image, out = Port("image", "float32", (2, 3, "height", 10), "series"), Port("out_0", "float32", (2, 4, 5, 4), "series")
    return seeded(("bilinear", (5, 4), None, True, True)), Signature((image,), (out,))


class Sampled(nn.Module):
    def __init__(self):
        super().__init__()
        self.turn = nn.Linear(3, 6)

    def forward(self, image):
        theta = self.turn(image.mean((2, 3))).view(-1, 2, 3) + torch.tensor([[1.0, 0.1, 0.2], [-0.1, 1.2, -0.3]])
        found = {}
        for padding in ("zeros", "border", "reflection"):
            for aligned in (False, True):
                grid = 1.3 * functional.affine_grid(theta, image.shape, align_corners=aligned)
                found[f"{padding}_{aligned}"] = functional.grid_sample(
                    image, grid, padding_mode=padding, align_corners=aligned
                )
        found["nearest"] = functional.grid_sample(image, grid[:, ::2] * 1.7, mode="nearest", align_corners=False)
        return found


def sampled():
    torch.manual_seed(0)
    return Sampled().eval()


def plain():
    return seeded(
        ("bilinear", (7, 17), None, False, True),
        ("bilinear", (1, 17), None, False, True),
        ("bilinear", (5, 17), None),
        ("bilinear", None, 1.7),
        ("bilinear", None, 2),
        ("linear", None, 1.7),
        ("trilinear", None, (2, 1.3, 1.7)),
        ("bicubic", None, 1.7),
        ("bicubic", (5, 17), None, False, True),
        *((mode, None, factor) for mode in ("nearest", "nearest-exact") for factor in (1.7, 2, 0.4)),
        ("nearest", (17, 5), None),
    )
"""
TARGETS = {"coreml": "a.mlpackage", "onnx": "a.onnx", "coreai": "a.aimodel"}


@pytest.fixture
def export(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "resampling_modules.py").write_text(CODE)
    draw = np.random.default_rng(0)
    np.savez("image.npz", image=draw.normal(size=(2, 3, 12, 10)).astype(np.float32))

    def run(kind, name, precision):
        if kind == "coreai":
            pytest.importorskip("coreai_torch")
        words = ["export", kind, f"resampling_modules:{name}", TARGETS[kind]]
        words += ["--inputs", "image.npz", "--precision", precision, "--json"]
        return CliRunner().invoke(main, words)

    return run


EVERY = pytest.mark.parametrize("kind", sorted(TARGETS))


def passes(result):
    verdict = json.loads(result.stdout)["verdict"]
    assert verdict["status"] in ("PASS", "PASS-REFERENCE"), verdict


@EVERY
@pytest.mark.parametrize("name", [pytest.param("plain", marks=pytest.mark.heavy), "smooth"])
def test_interpolations_are_those_of_torch(export, kind, name):
    passes(export(kind, name, "fp32"))


@EVERY
def test_pictures_are_sampled_at_places_as_by_torch(export, kind):
    passes(export(kind, "sampled", "fp32"))


@EVERY
def test_what_torch_has_on_no_cpu_in_float16_is_held_against_float32_rounded(export, kind):
    passes(export(kind, "smooth", "fp16"))


@EVERY
def test_sizes_that_vary_are_not_shrunk_without_aliasing(export, kind):
    result = export(kind, "varying", "fp32")
    assert result.exit_code == 3
    assert "antialias=True" in result.stdout
    assert "fixed numbers" in result.stdout
