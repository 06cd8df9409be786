"""Convert adapters between PEFT and MLX, and run both live: the same outputs, in both directions.

    python benchmarks/adapters/conversions.py [CASE ...]

Neither side is run by Weighbridge. PEFT's side is ``PeftModel.from_pretrained`` on the class of
transformers, MLX's side ``mlx_lm.tuner.utils.load_adapters`` on the class of mlx-lm, for BERT on that of
mlx-embeddings, and for T5, which no library has, on a port by the names of mlx-examples
(``t5_port.py``). The base in MLX's layout is what ``weighbridge convert torch-to-mlx`` makes of the other. All in
float32, weights and factors random.

For each case: an adapter by PEFT goes to MLX and back, one by mlx-lm goes to PEFT and back.
The error is ``||y' - y|| / ||y||``, the largest of all outputs; the bar is 1e-6. Beside it stand how far the
frameworks differ without an adapter, and how far the adapter moves the outputs. *Exact* is a round trip
that gives back the tensors byte for byte, rank and scale included; where a dialect cannot say what
the other says, the case names the reason. Writes ``results/adapters_conversions.json``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from weighbridge.errors import UnsupportedError
from weighbridge.tests.support.adapters.cases import CASES, Case, adapted, build
from weighbridge.tests.support.side_by_side import machine

RESULT: Final = Path(__file__).parents[1] / "results" / "adapters_conversions.json"
BAR: Final = 1e-6
RANK, SCALE = 4, 2.0
Outputs = dict[str, np.ndarray]
Run = Callable[[], Outputs]
LEAVES: Final = {  # of MLX's modules that mlx-lm's own adapter changes; of others the same as PEFT's
    "Qwen3-MoE": ("q_proj", "v_proj", "gate_proj", "up_proj", "down_proj"),
    "Qwen3-MoE, experts down only": ("switch_mlp.down_proj",),
    "T5": ("query_proj", "value_proj", "wi", "wo"),
    "T5, DoRA": ("query_proj", "value_proj", "wi", "wo"),
}
UNEQUAL_RANKS = "mlx-lm has one rank and one scale"
UNEQUAL_GATES = "PEFT has one pair for gate and up, so their ranks are added"
OWN_COPY = "PEFT's copy of the base's embedding and head stays behind"
NO_FORM = "mlx-lm has no form for whole tensors beside updates"
INEXACT: Final = {  # why a round trip cannot give back the bytes
    ("Llama, embedding and head", "peft"): OWN_COPY,
    ("Llama, rsLoRA and patterns", "peft"): UNEQUAL_RANKS,
    ("Qwen3-MoE", "mlx"): UNEQUAL_GATES,
}
REFUSED: Final = {("Llama, a module saved whole", "peft"): NO_FORM}
FROM_PEFT_ALONE: Final = frozenset(  # nothing new from mlx-lm's side
    {"Llama, rsLoRA and patterns", "Llama, a module saved whole"}
)


def ids(seed: int) -> np.ndarray:
    """Return two sequences of tokens."""
    return np.random.default_rng(seed).integers(3, 130, (2, 17))


def torch_outputs(model: Any, case: Case) -> Outputs:
    """Run a torch MODEL of CASE."""
    import torch

    given = {"input_ids": torch.tensor(ids(0))}
    if case.kind == "t5":
        given["decoder_input_ids"] = torch.tensor(ids(1))
    with torch.no_grad():
        made = model(**given)
    if case.kind == "bert":
        return {"hidden": made.last_hidden_state.numpy(), "pooled": made.pooler_output.numpy()}
    return {"logits": made.logits.numpy()}


def mlx_outputs(model: Any, case: Case) -> Outputs:
    """Run an MLX MODEL of CASE."""
    import mlx.core as mx

    given = [mx.array(ids(number)) for number in range(1 + (case.kind == "t5"))]
    made = model(*given)
    if case.kind == "bert":
        pooled = model.pooler(made.last_hidden_state)
        return {"hidden": np.array(made.last_hidden_state), "pooled": np.array(pooled)}
    return {"logits": np.array(made)}


def torch_model(folder: Path, case: Case, adapter: Path | None = None) -> Any:
    """Return the class of transformers with the weights in FOLDER and, by PEFT, ADAPTER."""
    import torch
    import transformers
    from peft import PeftModel

    plain = {"attn_implementation": "eager", "dtype": torch.float32}
    model = getattr(transformers, case.cls).from_pretrained(folder, **plain).eval()
    return PeftModel.from_pretrained(model, adapter).eval() if adapter else model


def mlx_model(folder: Path, case: Case, adapter: Path | None = None) -> Any:
    """Return the class of an MLX library with the weights in FOLDER and, by mlx-lm, ADAPTER."""
    from mlx_lm.tuner.utils import load_adapters

    model = bare(folder, case)
    if adapter is None:
        return model
    if not hasattr(model, "layers"):
        model.layers = []  # mlx-lm asks for them; modules are named by their full path
    load_adapters(model, str(adapter))
    model.eval()
    return model


def bare(folder: Path, case: Case) -> Any:
    """Return the model in FOLDER by the library that has its class."""
    if case.kind == "t5":
        from weighbridge.tests.support.adapters import t5_port

        return t5_port.load(folder, json.loads((folder / "config.json").read_text()))
    if case.kind == "bert":
        from mlx_embeddings.utils import load_model

        return load_model(folder)
    from mlx_lm.utils import load_model

    return load_model(folder)[0]


def native(folder: Path, name: str, adapter: Path) -> None:
    """Write a random adapter as mlx-lm's trainer writes one, on the model in FOLDER."""
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_lm.tuner.utils import linear_to_lora_layers

    case = CASES[name]
    model, dora = bare(folder, case), bool(case.lora.get("use_dora"))
    leaves = tuple(LEAVES.get(name, case.lora.get("target_modules", ())))
    keys = [
        path
        for path, module in model.named_modules()
        if path.endswith(tuple(f".{leaf}" for leaf in leaves) + leaves) and "weight" in module
    ]
    parameters = {"rank": RANK, "scale": SCALE, "dropout": 0.0, "keys": keys}
    if not hasattr(model, "layers"):
        model.layers = []
    linear_to_lora_layers(model, -1, parameters, use_dora=dora)
    found = {
        path: value
        for path, value in tree_flatten(model.parameters())
        if path.endswith((".lora_a", ".lora_b", ".m"))
    }
    generator = np.random.default_rng(3)
    arrays = {path: _random(path, np.array(value), generator) for path, value in found.items()}
    adapter.mkdir()
    mx.save_safetensors(
        str(adapter / "adapters.safetensors"), {path: mx.array(a) for path, a in arrays.items()}
    )
    kind = {"fine_tune_type": "dora" if dora else "lora", "num_layers": -1}
    (adapter / "adapter_config.json").write_text(
        json.dumps({**kind, "model": str(folder), "lora_parameters": parameters})
    )


def _random(path: str, value: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Return what stands for VALUE after training."""
    if path.endswith(".m"):
        return (value * (1 + 0.2 * generator.random(value.shape))).astype(np.float32)
    return (0.1 * generator.standard_normal(value.shape)).astype(np.float32)


def relative(wanted: Outputs, found: Outputs) -> float:
    """Return the largest relative error of FOUND.

    >>> relative({"a": np.array([3.0, 4.0])}, {"a": np.array([3.0, 4.5])})
    0.1
    """
    return max(
        float(np.linalg.norm(found[name] - wanted[name].astype(np.float64)))
        / float(np.linalg.norm(wanted[name].astype(np.float64)))
        for name in wanted.keys() | found.keys()
    )


def convert(source: Path, target: Path, to: str, base: Path) -> str:
    """Convert the adapter SOURCE, checked by the tool as well; return what it says."""
    from weighbridge import jobs
    from weighbridge.jobs.options import Options

    request = jobs.AdapterRequest(to, str(base))
    return str(jobs.convert_adapter(source, target, request, options=Options()).status)


def contents(folder: Path) -> dict[str, Any]:
    """Return every tensor of an adapter with its bytes, and what its configuration says of it."""
    from safetensors.numpy import load_file

    [file] = folder.glob("*.safetensors")
    config = json.loads((folder / "adapter_config.json").read_text())
    terms = config.get("lora_parameters", config)
    kept = ("r", "lora_alpha", "use_rslora", "use_dora", "rank", "scale")
    return {name: (str(a.dtype), a.shape, a.tobytes()) for name, a in load_file(file).items()} | {
        key: terms.get(key) for key in kept
    }


def differing(one: Path, other: Path) -> list[str]:
    """Return the names of what is not the same in two adapters."""
    a, b = contents(one), contents(other)
    return sorted(name for name in a.keys() | b.keys() if a.get(name) != b.get(name))


def measure(name: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a row for each direction in which the adapters of the case NAME go."""
    from weighbridge import jobs
    from weighbridge.jobs.options import Options

    case = CASES[name]
    base, there = folder / "base", folder / "there"
    model = build(case, base)
    options = Options(check="none")
    jobs.convert(str(base), there, "mlx", options=options)
    plain = torch_outputs(torch_model(base, case), case), mlx_outputs(bare(there, case), case)
    floor = relative(*plain)
    starts = ["peft"] if name in FROM_PEFT_ALONE else ["peft", "mlx"]
    for start in starts:
        own, gone, back = (folder / f"{start}-{part}" for part in ("own", "gone", "back"))
        if start == "peft":
            adapted(model, case, own, RANK)
        else:
            native(there, name, own)
        other = {"peft": "mlx", "mlx": "peft"}[start]
        row = {"case": name, "way": f"{start} to {other}", "frameworks": floor}
        try:
            held = base if start == "peft" else there
            row["verdict"] = convert(own, gone, other, held)
            convert(gone, back, start, held)
        except Exception as error:
            reason = REFUSED.get((name, start))
            fine = reason is not None and isinstance(error, UnsupportedError)
            problem = f"{type(error).__name__}: {error}"
            yield row | {"ok": fine, "problem": problem, "reason": reason}
            continue
        yield row | live((own, gone, back), (base, there), start, case, plain, name)


def live(
    adapters: tuple[Path, Path, Path],
    bases: tuple[Path, Path],
    start: str,
    case: Case,
    plain: tuple[Outputs, Outputs],
    name: str,
) -> dict[str, Any]:
    """Return the figures of an adapter, of what it became, and of what came back."""
    own, gone, back = adapters
    sides = {
        "peft": lambda adapter: torch_outputs(torch_model(bases[0], case, adapter), case),
        "mlx": lambda adapter: mlx_outputs(mlx_model(bases[1], case, adapter), case),
    }
    here, there = (
        (sides["peft"], sides["mlx"]) if start == "peft" else (sides["mlx"], sides["peft"])
    )
    wanted = here(own)
    errors = relative(wanted, there(gone)), relative(wanted, here(back))
    changed = differing(own, back)
    reason = INEXACT.get((name, start))
    return {
        "error": errors[0],
        "error_back": errors[1],
        "effect": relative(plain[start == "mlx"], wanted),
        "exact": not changed,
        "inexact": changed[:5],
        "reason": reason,
        "ok": max(errors) <= BAR and (not changed or reason is not None),
    }


def show(row: Mapping[str, Any]) -> str:
    """Return ROW as a line."""
    head = f"{row['case']:28} {row['way']:12}"
    if "problem" in row:
        return f"{head} refused{', as it must be' if row['ok'] else ''}: {row['problem']}"
    exact = "exact" if row["exact"] else f"not exact ({row['reason'] or row['inexact']})"
    return (
        f"{head} error {row['error']:.1e}, back {row['error_back']:.1e} (frameworks"
        f" {row['frameworks']:.1e}, effect {row['effect']:.1e}); round trip {exact};"
        f" {'ok' if row['ok'] else 'NOT ok'}, the tool says {row['verdict']}"
    )


def main() -> None:
    """Measure, print and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", default=list(CASES), metavar="CASE")
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    rows = []
    for name in arguments.cases:
        with tempfile.TemporaryDirectory() as folder:
            for row in measure(name, Path(folder)):
                rows.append(row)
                print(show(row), flush=True)
    document = {
        "cases": rows,
        "bar": BAR,
        "ok": all(row["ok"] for row in rows),
        "machine": machine(),
    }
    arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
