"""Plant faults of configuration and of length into tiny models, and see who notices.

Each fault is another value of one setting in the directory of a candidate, whose weights are right, or a
window that a class of mlx-lm does not apply. Controls are the same directories without a fault, and with
other values of settings that nobody reads; they must not differ. Models have weights of realistic gain.

    python benchmarks/config_faults.py [TYPE ...]

Prints one line a case, and writes `results/config_faults.json`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from weighbridge.converters.models import open as open_model
from weighbridge.converters.runtimes.blas import preload_blas
from weighbridge.jobs import Options, convert
from weighbridge.jobs.checking import compare
from weighbridge.parity.goldens.golden import Golden
from weighbridge.parity.goldens.recorder import record
from weighbridge.tests.support.atlas.tiny import make

RESULTS: Final = Path(__file__).with_name("results") / "config_faults.json"
FIXTURES: Final = Path(__file__).parents[1] / "fixtures"
SHORT: Final = {"sliding_window": 32, "max_position_embeddings": 256}
LONG_ROPE: Final = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 6,
    "long_factor": [4.0] * 6,
    "original_max_position_embeddings": 64,
}


class Base(NamedTuple):
    """A model into which faults are planted.

    Attributes:
        kind: model type.
        faults: other values of one setting each, written over the candidate's configuration.
        own: settings of the model itself.
        to: framework of the candidate; for ``torch`` a copy of the source.
        unread: settings that nobody reads, of the control.
    """

    kind: str
    faults: tuple[Mapping[str, Any], ...]
    own: Mapping[str, Any] = {}
    to: str = "mlx"
    unread: Mapping[str, Any] = {"initializer_range": 0.5, "remark": "none"}


BASES: Final = (
    Base(
        "llama",
        (
            {"rms_norm_eps": 1e-5},
            {"rms_norm_eps": 1e-4},
            {"rope_theta": 10001.0},
            {"rope_theta": 500000.0},
            {"max_position_embeddings": 128},
            {"rope_scaling": {"rope_type": "linear", "type": "linear", "factor": 2.0}},
            {"num_key_value_heads": 1},
            {"eos_token_id": 5},
        ),
    ),
    Base(
        "gemma2",
        (
            {"attn_logit_softcapping": 30.0},
            {"final_logit_softcapping": 15.0},
            {"query_pre_attn_scalar": 100},
            {"rms_norm_eps": 1e-5},
        ),
        {"sliding_window": 4096, "max_position_embeddings": 256},
    ),
    Base(
        "qwen3_moe",
        (
            {"num_experts_per_tok": 1},
            {"norm_topk_prob": True},
            {"rope_theta": 9999.0},
            {"rms_norm_eps": 1e-5},
        ),
    ),
    Base(
        "deepseek_v3",
        (
            {"routed_scaling_factor": 1.5},
            {"num_experts_per_tok": 1},
            {"norm_topk_prob": False},
            {"rms_norm_eps": 1e-4},
            {"rope_theta": 10001.0},
        ),
    ),
    Base(
        "granite",
        (
            {"embedding_multiplier": 1.01},
            {"attention_multiplier": 1.5},
            {"residual_multiplier": 0.5},
            {"logits_scaling": 2.0},
            {"rms_norm_eps": 1e-4},
        ),
    ),
    Base(
        "cohere2",
        ({"logit_scale": 0.5}, {"layer_norm_eps": 1e-4}, {"sliding_window": 64}),
        SHORT,
    ),
    Base(
        "gemma3_text",
        (
            {"sliding_window": 64},
            {"sliding_window_pattern": 1},
            {"rope_local_base_freq": 20000.0},
            {"query_pre_attn_scalar": 8},
        ),
        SHORT | {"hidden_size": 64},
    ),
    Base(
        "phi3",
        ({"rms_norm_eps": 1e-4}, {"partial_rotary_factor": 0.5}),
        {"sliding_window": None},
    ),
    Base(
        "qwen3",
        (
            {"rms_norm_eps": 1e-4},
            {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
            {"hidden_act": "gelu"},
            {"max_position_embeddings": 100},
            {"layer_types": ["sliding_attention"] * 4, "sliding_window": 16}
            | {"use_sliding_window": True},
        ),
        to="torch",
    ),
    Base(
        "phi3",
        ({"original_max_position_embeddings": 128},),
        {"rope_parameters": LONG_ROPE, "max_position_embeddings": 256}
        | {"original_max_position_embeddings": 64, "sliding_window": None},
        to="torch",
    ),
    Base(
        "t5",
        (
            {"layer_norm_epsilon": 1e-4},
            {"relative_attention_max_distance": 64},
            {"dense_act_fn": "silu"},
            {"pad_token_id": 3},
        ),
        to="torch",
    ),
    Base(
        "bert",
        (
            {"layer_norm_eps": 1e-6},
            {"hidden_act": "gelu_new"},
            {"num_attention_heads": 1},
        ),
        to="torch",
    ),
    Base("vit", ({"layer_norm_eps": 1e-6}, {"hidden_act": "gelu_new"}), to="torch"),
    Base(
        "modernbert",
        ({"norm_eps": 1e-6}, {"local_attention": 8}, {"layer_types": ["full_attention"] * 2}),
        to="torch",
    ),
    # Nothing is planted here: mlx-lm's own class does not apply the window.
    Base("mistral", ({},), SHORT),
    Base("mixtral", ({},), SHORT),
    Base("phi3", ({},), SHORT),
    Base("gemma2", ({},), SHORT),
    Base("qwen2", ({},), SHORT | {"use_sliding_window": True, "max_window_layers": 0}),
    Base("mistral", ({},), {"sliding_window": 1500, "max_position_embeddings": 2048}),
)


def source_of(base: Base, folder: Path) -> Path:
    """Return the directory of BASE, made in FOLDER unless a fixture has it."""
    fixture = FIXTURES / base.kind / "model"
    if fixture.is_dir() and base.to == "torch" and not base.own:
        return fixture
    return make(base.kind, folder / "source", own=base.own).folder


def planted(candidate: Path, folder: Path, settings: Mapping[str, Any]) -> Path:
    """Return a copy of CANDIDATE at FOLDER with SETTINGS, on top and in the text part."""
    shutil.copytree(candidate, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | dict(settings)))
    return folder


def row(golden: Golden, candidate: Path, kind: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a quick check says of CANDIDATE."""
    about = {"model": kind, "settings": dict(settings)}
    try:
        verdict = compare(golden, open_model(candidate), quick=True)
    except Exception as error:
        return {**about, "status": f"refused: {type(error).__name__}", "by": [], "says": str(error)}
    failed = [stage for stage in verdict.stages if stage.status == "fail"]
    return {
        **about,
        "status": verdict.status,
        "by": [stage.name for stage in failed],
        "says": failed[0].detail if failed else "",
        "upstream": verdict.upstream,
        "stages": {stage.name: stage.status for stage in verdict.stages},
    }


def cases(base: Base, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of BASE: its controls, unless its class is at fault, then its faults."""
    source = source_of(base, folder)
    candidate = source
    if base.to == "mlx":
        candidate = folder / "converted"
        convert(str(source), candidate, "mlx", options=Options(check="none"))
    golden = record(open_model(source), precisions=())
    upstream = base.faults == ({},)
    controls = () if upstream else ({}, base.unread)
    for number, settings in enumerate([*controls, *base.faults]):
        place = planted(candidate, folder / str(number), settings)
        found = row(golden, place, base.kind, settings)
        yield {**found, "fault": number >= len(controls), "by upstream": upstream}


def caught(found: Mapping[str, Any]) -> bool:
    """Say whether a row is right: a fault differs or is refused, a control passes."""
    if not found["fault"]:
        return bool(found["status"] == "PASS")
    return bool(found["status"] == "DIFFERS" or found["status"].startswith("refused"))


def main() -> int:
    """Run all bases, or those of the types that are named."""
    preload_blas()
    rows = []
    for base in BASES:
        if sys.argv[1:] and base.kind not in sys.argv[1:]:
            continue
        with tempfile.TemporaryDirectory() as folder:
            for found in cases(base, Path(folder)):
                rows.append(found)
                mark = "ok  " if caught(found) else "MISS"
                said = f"{found['status']} by {', '.join(found['by']) or 'nobody'}"
                print(f"{mark} {base.kind} to {base.to} {found['settings']}: {said}", flush=True)
    faults = [it for it in rows if it["fault"]]
    right = sum(map(caught, faults)), sum(caught(it) for it in rows if not it["fault"])
    print(
        f"faults caught: {right[0]} of {len(faults)}; controls kept: {right[1]} of {len(rows) - len(faults)}"
    )
    if not sys.argv[1:]:
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if all(map(caught, rows)) else 1


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.exit(main())
