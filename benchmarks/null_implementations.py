"""Correct implementations of one function: in PyTorch, numpy, MLX, and as an ML program.

Every runtime works in a process of its own, since MLX resolves its BLAS once per process.
"""

from __future__ import annotations

import copy
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("MLX_DISABLE_COMPILE", "1")

import numpy as np
import torch
from null_cases import SLOW_WIDTH, Array, Case, family_of, is_text, load_case
from torch import nn

from weighbridge.converters.captures.program_options import ProgramOptions
from weighbridge.converters.common.arrays import from_torch
from weighbridge.errors import WeighbridgeError
from weighbridge.parity.probes.probes import Probe
from weighbridge.parity.reference.reference import module_outputs

# Recording a graph takes seconds: so many models of each width are captured, or exported.
RECORDED = {"captured": 2, "evaluator": 2, "exported": 2, "asset": 2}
SLOWEST_WIDTH = 64  # above it, products that are summed in float16 take minutes
DTYPES = ("float32", "float16", "bfloat16")
GGML = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
SOURCE = "source"


def run(
    case: Case, module: nn.Module, dtype: str, probes: list[Probe] | None = None
) -> list[Array]:
    """Return the outputs of MODULE, cast to DTYPE."""
    module = copy.deepcopy(module).to(getattr(torch, dtype))
    rows = module_outputs(module, case.signature, probes or case.probes, dtype)
    return [row[case.signature.outputs[0].name] for row in rows]


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
    weights = {name: from_torch(it) for name, it in case.module.state_dict().items()}
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


def captured(case: Case, dtype: str) -> list[Array]:
    """Capture the module in MLX, as the product does."""
    from weighbridge.converters.common.policy import Policy
    from weighbridge.converters.models import Model
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

    from weighbridge.converters.common.arrays import from_mlx, to_mlx

    kind = getattr(mx, dtype)
    state = case.module.state_dict().items()
    w = {name: to_mlx(from_torch(it)) for name, it in state if it.is_floating_point()}
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
    from weighbridge.converters.common.policy import Policy
    from weighbridge.converters.coreml.export import export_coreml
    from weighbridge.converters.models import open as open_model
    from weighbridge.converters.runtimes import load

    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "case.mlpackage"
        export_coreml(copy.deepcopy(case.module), case.signature, target, compute=dtype)
        runner = load(open_model(str(target)), "reference", Policy(compute=dtype))
        output = case.signature.outputs[0].name
        return [runner.run(probe.inputs)[output] for probe in case.probes]


def asset(case: Case, dtype: str) -> list[Array] | None:
    """Export to a Core AI asset and run that in Core AI."""
    if dtype == "bfloat16":
        return None
    from weighbridge.converters.coreai_export import export_coreai
    from weighbridge.converters.models import open as open_model
    from weighbridge.converters.runtimes import load

    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "case.aimodel"
        export_coreai(copy.deepcopy(case.module), case.signature, target, ProgramOptions(dtype))
        runner = load(open_model(str(target)), "coreai")
        output = case.signature.outputs[0].name
        return [runner.run(probe.inputs)[output] for probe in case.probes]


def exported(case: Case, dtype: str) -> list[Array] | None:
    """Export to ONNX and run that in onnxruntime."""
    if dtype == "bfloat16":
        return None
    from weighbridge.converters.models import open as open_model
    from weighbridge.converters.onnx_export.export import export_onnx
    from weighbridge.converters.runtimes import load

    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "case.onnx"
        export_onnx(copy.deepcopy(case.module), case.signature, target, ProgramOptions(dtype))
        runner = load(open_model(str(target)), "onnxruntime")
        output = case.signature.outputs[0].name
        return [runner.run(probe.inputs)[output] for probe in case.probes]


def in_llama(case: Case, dtype: str) -> list[Array] | None:
    """Run a language model in llama.cpp, its GGUF file in DTYPE."""
    if not (family := family_of(case)):
        return None
    from tests.support.runnable_gguf import runnable
    from weighbridge.converters.models import open as open_model
    from weighbridge.converters.runtimes import load
    from weighbridge.jobs.importing.compared_gguf import judged

    module = copy.deepcopy(case.module).to(getattr(torch, dtype))
    place, file = runnable(module, family, GGML[dtype])
    with place:
        model, _ = judged(open_model(str(file.with_suffix(""))), file)
        runner = load(model, "llama.cpp")
        return [runner.run(probe.inputs)["logits"] for probe in case.probes]


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
    "onnxruntime": {"exported": exported},
    "coreai": {"asset": asset},
    "llama.cpp": {"file": in_llama},
    "source": {SOURCE: source},  # alone, where one runtime is studied
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
                decodes = bool(family_of(case)) <= (runtime in ("llama.cpp", "source"))
                if decodes and affordable(name, blas, dtype, case) and not file.is_file():
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
    if (name, dtype) == ("asset", "float16") and width > SLOWEST_WIDTH:
        return False
    return name == SOURCE or width <= 2 * SLOW_WIDTH or (blas, dtype) == ("torch", "float32")
