"""A merge by another tool passes, one with another share of the update does not: through the verb."""

from __future__ import annotations

import re
import shutil

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from weighbridge.cli import main
from weighbridge.tests.parity.test_planted_faults import made
from weighbridge.tests.support.adapters import made as adapters

PLAIN = ("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj")


def rounded_twice(weight, update, share=1.0):
    """Merge as PEFT does: the update is rounded, and the sum is."""
    b, a = torch.from_numpy(update.b), torch.from_numpy(update.a)
    return weight + (b @ a * update.scale * share).to(weight.dtype)


def place(name):
    """Return the tensor of an MLX class that has that of the checkpoint, and which part of it."""
    found = re.match(r"(.*)\.experts\.(\d+)\.(\w+)\.weight", name)
    if not found:
        return name, ()
    return f"{found[1]}.switch_mlp.{dict(PLAIN).get(found[3], found[3])}.weight", (int(found[2]),)


class Bench:
    """A base in bfloat16, an adapter of it, and its conversion to MLX."""

    def __init__(self, kind, pattern, folder, size=0.05):
        self.base, self.mlx = made(kind, "bfloat16", folder)
        self.adapter, self.folder = folder / "adapter", folder / "merged"
        self.weights = load_file(self.base / "model.safetensors")
        shapes = {n[:-7]: tuple(w.shape) for n, w in self.weights.items() if re.search(pattern, n)}
        self.updates = {
            name: it._replace(b=(it.b * self.ratio(name, it, size)).astype(np.float32))
            for name, it in adapters.random_updates(shapes, 4, 0).items()
        }
        adapters.write_adapter(self.adapter, self.updates, "peft")

    def ratio(self, name, update, size):
        spread = float(self.weights[f"{name}.weight"].float().std())
        return size * spread / (update.scale * (update.b @ update.a)).std()

    def check(self, shares, level="--quick"):
        """Return the exit code and the words of the check of a merge, with SHARES of updates by name."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.mlx, self.folder)
        path = self.folder / "model.safetensors"
        tensors = load_file(path)
        for module, update in self.updates.items():
            name, at = place(f"{module}.weight")
            share = next((it for part, it in shares.items() if part in module), 1.0)
            tensors[name][at] = rounded_twice(self.weights[f"{module}.weight"], update, share)
        save_file(tensors, path, metadata={"format": "mlx"})
        return self.judged(level)

    def judged(self, level):
        """Return the exit code and the words of the check of what lies in the folder."""
        words = ["parity", "check", f"{self.base}+{self.adapter}", str(self.folder), level]
        found = CliRunner().invoke(main, [it for it in words if it])
        return found.exit_code, " ".join(found.output.split())


@pytest.mark.heavy
def test_a_dense_merge_passes_and_one_of_another_scale_does_not(tmp_path):
    bench = Bench("llama", r"layers\.1\..*(q|up)_proj\.weight", tmp_path)
    assert bench.check({})[0] == 0
    code, words = bench.check({"up_proj": 1.05})
    assert code == 1
    assert "times the update that was due" in words


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["qwen3_moe", "mixtral"])
def test_experts_merged_one_by_one_and_stacked_at_once(kind, tmp_path):
    bench = Bench(kind, r"layers\.1\..*experts\.\d+\.\w+\.weight", tmp_path)
    code, words = bench.check({}, level="")
    assert code == 0, words
    assert bench.check({"experts.2.": 0.0})[0] == 1


def in_one_stack(tensors, up_first=()):
    """Return TENSORS with gate and up of all experts of a layer in one, as transformers holds them."""
    made, parts = {}, {}
    for name, tensor in tensors.items():
        found = re.match(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj", name)
        if found:
            parts.setdefault(found[1], {})[int(found[2]), found[3]] = tensor
        else:
            made[name] = tensor
    for path, own in parts.items():
        experts = range(len(own) // 3)
        orders = [("up", "gate") if it in up_first else ("gate", "up") for it in experts]
        both = [torch.cat([own[it, word] for word in orders[it]]) for it in experts]
        made[f"{path}.gate_up_proj"] = torch.stack(both)
        made[f"{path}.down_proj"] = torch.stack([own[it, "down"] for it in experts])
    return made


@pytest.mark.heavy
def test_experts_merged_one_by_one_whose_gate_and_up_are_in_one_stack(tmp_path):
    bench = Bench("qwen3_moe", r"layers\.1\..*experts\.\d+\.\w+\.weight", tmp_path)
    merged = {
        f"{it}.weight": rounded_twice(bench.weights[f"{it}.weight"], update)
        for it, update in bench.updates.items()
    }
    shutil.copytree(bench.base, bench.folder)
    for up_first, code in (((), 0), ((4,), 1)):
        tensors = in_one_stack(bench.weights | merged, up_first)
        save_file(tensors, bench.folder / "model.safetensors", metadata={"format": "pt"})
        found, words = bench.judged("--quick")
        assert found == code, words
    assert "is due" in words
