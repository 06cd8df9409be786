"""Say what a path is, and what this machine can do."""

from __future__ import annotations

import importlib.util
import platform
import shutil
import subprocess
from collections import Counter
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from ..converters.adapters import Adapter, read_adapter
from ..converters.models import Model, Signature
from ..converters.models.specs import ADAPTER_FILES
from ..converters.models.specs import open as open_model
from ..converters.routes import ROUTES
from ..errors import WeighbridgeError

Facts = dict[str, Any]
PACKAGES = (
    *("torch", "mlx", "transformers", "coremltools", "safetensors", "numpy", "onnx", "peft"),
    *("mlx-lm", "gguf"),
)
NEEDS = {"torch": ("torch", "transformers"), "mlx": ("mlx",), "coreml": ("coremltools",)}
NEXT = {
    "torch": (
        "weighbridge convert torch-to-mlx {spec} TARGET",
        "weighbridge export coreml {spec} TARGET.mlpackage",
    ),
    "mlx": (
        "weighbridge train RUN --backend mlx --config minilm-lora --set model={spec}",
        "weighbridge convert mlx-to-torch {spec} TARGET",
        "weighbridge export coreml {spec} TARGET.mlpackage",
    ),
    "mlprogram": ("weighbridge parity check REFERENCE {spec}",),
    "mlx adapter": (
        "weighbridge convert mlx-to-peft {spec} TARGET --base BASE",
        "weighbridge merge BASE {spec} TARGET",
        "weighbridge convert mlx-to-torch BASE TARGET --adapter {spec}",
        "weighbridge parity check BASE+{spec} TARGET",
    ),
    "torch adapter": (
        "weighbridge convert peft-to-mlx {spec} TARGET --base BASE",
        "weighbridge merge BASE {spec} TARGET",
        "weighbridge parity check BASE+{spec} TARGET",
    ),
    "golden": ("weighbridge parity check {spec} CANDIDATE",),
}


def inspect_spec(spec: str, *, trust_code: str | None = None, map_name: str | None = None) -> Facts:
    """Return what SPEC is: kind, tensors, signature, and the commands that can follow."""
    path = Path(spec)
    if (path / "golden.json").is_file():
        return with_next(spec, "golden", {"is": "a golden: recorded inputs and outputs"})
    if is_adapter(path):
        adapter = read_adapter(path)
        return with_next(spec, f"{adapter.framework} adapter", adapter_facts(adapter))
    model = open_model(spec, trust_code=trust_code, map=map_name)
    return with_next(spec, model.framework, model_facts(model))


def is_adapter(path: Path) -> bool:
    """Say whether PATH holds an adapter and no model."""
    has_adapter = any((path / name).is_file() for name in ADAPTER_FILES)
    return has_adapter and not (path / "config.json").is_file()


def with_next(spec: str, kind: str, facts: Facts) -> Facts:
    """Add what can be run next."""
    return {
        "path": spec,
        **facts,
        "you can now run": [line.format(spec=spec) for line in NEXT[kind]],
    }


def adapter_facts(adapter: Adapter) -> Facts:
    """Describe an adapter."""
    ranks = Counter(update.rank for update in adapter.updates.values())
    scales = sorted({update.scale for update in adapter.updates.values()})
    return {
        "is": f"a LoRA adapter ({adapter.dialect} dialect)",
        "changes": f"{len(adapter.updates)} weights",
        "rank": ", ".join(f"{rank} ({count} x)" for rank, count in sorted(ranks.items())),
        "scale": ", ".join(f"{scale:g}" for scale in scales),
        "weights": sorted(adapter.updates),
        "whole tensors": sorted(adapter.saved),
        "base": adapter.base.get("spec") or "nobody recorded it",
        "notes": list(adapter.notes),
    }


def model_facts(model: Model) -> Facts:
    """Describe a model: its family, tensors and signature."""
    facts: Facts = {
        "is": f"a {model.framework} model",
        "architecture": architecture(model),
    }
    if model.path is not None and model.framework != "mlprogram":
        facts |= tensor_facts(model)
    if model.framework == "mlprogram":
        model = replace(model, declared=package_signature(model))
    try:
        facts["inputs"] = [
            f"{port.name}: {port.dtype} {list(port.shape)}" for port in model.signature.inputs
        ]
        facts["outputs"] = [
            f"{port.name}: {port.dtype} {list(port.shape)}" for port in model.signature.outputs
        ]
    except WeighbridgeError as error:
        facts["inputs"] = f"unknown: {error}"
    return facts


def package_signature(model: Model) -> Signature:
    """Return the signature of the package that MODEL is."""
    from ..converters.captures.mlprogram import read_signature

    return read_signature(Path(str(model.path)))


def architecture(model: Model) -> str:
    """Return what MODEL is called: its model_type, its factory's class, or its format."""
    if model.framework == "mlprogram":
        return "ML program"
    named = model.config.get("model_type")
    return (
        str(named)
        if named
        else "unknown"
        if model.factory is None
        else type(model.factory).__name__
    )


def tensor_facts(model: Model) -> Facts:
    """Describe the tensor files of MODEL."""
    checkpoint = model.checkpoint
    kinds = Counter(header.dtype for header in checkpoint.headers.values())
    return {
        "tensors": len(checkpoint.headers),
        "bytes": sum(header.nbytes for header in checkpoint.headers.values()),
        "dtypes": dict(kinds),
        "files": [file.name for file in checkpoint.files],
        "ignored": [file.name for file in checkpoint.ignored],
        "headers": {name: str(header) for name, header in checkpoint.headers.items()},
    }


def version_of(package: str) -> str | None:
    """Return the installed version of PACKAGE."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def compiler() -> str | None:
    """Return the version line of g++, which MLX calls on Linux CPU to compile a function."""
    found = shutil.which("g++")
    if found is None:
        return None
    shown = subprocess.run([found, "--version"], capture_output=True, text=True, check=False)  # noqa: S603
    return shown.stdout.partition("\n")[0]


def examine_machine() -> Facts:
    """Return versions, the BLAS that MLX would use, which routes run, and what is wrong."""
    from ..converters.runtimes.blas import preload_blas

    versions = {package: version_of(package) for package in PACKAGES}
    missing = {
        name: [p for p in NEEDS[name] if importlib.util.find_spec(p) is None] for name in NEEDS
    }
    facts: Facts = {
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "versions": {name: version or "not installed" for name, version in versions.items()},
        "mlx blas": preload_blas() if versions["mlx"] else "mlx is not installed",
        "compiler": compiler() or "no g++: MLX will run uncompiled on Linux CPU",
        "core ml": "runs here"
        if platform.system() == "Darwin"
        else "evaluated by our own runtime (PASS-REFERENCE)",
        "routes": {
            f"{route.source} to {route.target}": route_state(route.source, route.target, missing)
            for route in ROUTES
        },
    }
    facts["problems"] = [
        f"{name}: pip install {' '.join(packages)}"
        for name, packages in missing.items()
        if packages
    ]
    return facts


def route_state(source: str, target: str, missing: dict[str, list[str]]) -> str:
    """Say whether a route runs here and what it lacks."""
    lacking = sorted({package for name in (source, target) for package in missing.get(name, [])})
    return (
        f"converts; to check it: pip install {' '.join(lacking)}"
        if lacking
        else "runs and is checked"
    )
