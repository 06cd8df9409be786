"""Say what a path is, and what this machine can do."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from ..converters.adapters import Adapter, read_adapter
from ..converters.checkpoints.formats.coreai.asset import Asset
from ..converters.checkpoints.formats.onnx_model import OnnxFile
from ..converters.common.hints import command, dequantizing, unused
from ..converters.common.repositories import recorded_path
from ..converters.documents import RECORD
from ..converters.documents.fields import TEXT, read_fields
from ..converters.models import PROGRAMS, Model
from ..converters.models.manifests import MANIFEST, read_manifest
from ..converters.models.specs import ADAPTER_FILES, exists
from ..converters.models.specs import open as open_model
from ..converters.planning.dense import METHOD, PACKING
from ..converters.planning.transcoding import quantized_view
from ..converters.quantization import Dequantized
from ..converters.routes import ROUTES
from ..errors import WeighbridgeError
from .usage import adapter_lines, gguf_lines, model_lines

Facts = dict[str, Any]
USAGE, CODES = "run it in Python", "quantized weights"
KINDS: Mapping[str, str] = {"torch": "a PyTorch model", "mlx": "an MLX model", **PROGRAMS}
WRITERS = {"peft": "PEFT", "mlx-vlm": "mlx-vlm"}  # of adapters; the others are mlx-lm's
PACKAGES = (
    *("torch", "mlx", "transformers", "coremltools", "safetensors", "numpy", "onnx", "peft"),
    *("mlx-lm", "gguf", "onnxruntime", "onnxscript", "coreai-core", "coreai-torch"),
)
NEEDS = {
    "torch": ("torch", "transformers"),
    "mlx": ("mlx",),
    "coreml": ("coremltools",),
    "onnx": ("onnx", "onnxruntime", "onnxscript"),
    "coreai": ("coreai-core", "coreai-torch"),
}
# Verbs that can follow, and what they take: {spec} is what was inspected, {other} the base or the
# source that it goes with, and what begins with ~ ends the name of a new file.
COREML = ("export coreml", "{spec}", "~.mlpackage")
TO_MLX = ("convert torch-to-mlx", "{spec}", "~-mlx")
NEXT: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "torch": (TO_MLX, COREML),
    "mlx": (("convert mlx-to-torch", "{spec}", "~-torch"), COREML),
    "torch code": (
        ("parity check", "{spec}", "PORT", "--inputs", "FILE.npz"),
        ("map infer", "{spec}", "PORT", "PORT.wmap", "--inputs", "FILE.npz"),
        COREML,
    ),
    "mlx code": (("parity check", "REFERENCE", "{spec}", "--inputs", "FILE.npz"), COREML),
    **{
        kind: (
            ("parity check", "{other}", "{spec}"),
            (f"convert {name}-to-torch", "{spec}", "~-torch", "--like", "{other}"),
        )
        for kind, name in zip(PROGRAMS, ("coreml", "onnx", "coreai", "gguf"), strict=True)
    },
    "mlx adapter": (
        ("convert mlx-to-peft", "{spec}", "~-peft", "--base", "{other}"),
        ("merge", "{other}", "{spec}", "~-merged"),
    ),
    "torch adapter": (
        ("convert peft-to-mlx", "{spec}", "~-mlx", "--base", "{other}"),
        ("merge", "{other}", "{spec}", "~-merged"),
    ),
    "golden": (("parity check", "{spec}", "{other}"),),
}


def inspect_spec(spec: str, *, trust_code: str | None = None, map_name: str | None = None) -> Facts:
    """Return what SPEC is: kind, tensors, signature, and the commands that can follow."""
    path = Path(spec)
    if (path / "golden.json").is_file():
        facts: Facts = {"is": "a golden: recorded inputs and outputs"}
        source = read_fields(path / "golden.json", {"spec": TEXT}, RECORD).get("spec")
        return with_next(spec, facts, proposals(spec, "golden", source))
    if is_adapter(path):
        adapter = read_adapter(path)
        base = next(filter(exists, adapter.named_bases), None)
        described = {**adapter_facts(adapter), USAGE: adapter_lines(spec, adapter)}
        commands = proposals(spec, f"{adapter.framework} adapter", base)
        return with_next(spec, described, commands if adapter.updates else commands[1:])
    if path.suffix == ".gguf" and path.is_file():
        return {"path": spec, **gguf_facts(path), USAGE: gguf_lines(path)}
    model = open_model(spec, trust_code=trust_code, map=map_name)
    facts = model_facts(model)
    if lines := model_lines(spec, model):
        facts[USAGE] = lines
    beside = Path(f"{path}.{MANIFEST}")  # of a file, a package or an asset
    known = read_manifest(beside if beside.is_file() else path / MANIFEST)
    source = recorded_path(known.get("source", {}))
    kind = model.framework if model.path else f"{model.framework} code"
    trust = ("--trust-code", trust_code) if trust_code and model.path else ()
    commands = proposals(spec, kind, source, model, trust)
    if CODES in facts:  # exports to Core ML begin with dense weights
        commands = [*commands[:1], *([dequantizing(spec)] if model.framework == "mlx" else [])]
    return with_next(spec, facts, commands)


def proposals(
    spec: str, kind: str, other: Any, model: Model | None = None, trust: tuple[str, ...] = ()
) -> list[str]:
    """Return the commands that can follow for SPEC, with TRUST; those with an OTHER that is unknown ask for help."""
    known = str(other) if isinstance(other, str) and exists(other) else ""
    rows = [row for row in NEXT[kind] if row is not COREML or (model and runs(model))]
    if model and not leads(model):
        rows = [row for row in rows if row is not TO_MLX]
    return [command(*words(row, spec, known), *trust) for row in rows]


def words(row: tuple[str, ...], spec: str, other: str) -> list[str]:
    """Return the words of ROW with its names filled in."""
    verb, *arguments = row
    if "{other}" in arguments and not other:
        return [*verb.split(), "--help"]
    named = {"{spec}": spec, "{other}": other}
    new = (unused(spec, it[1:]) if it.startswith("~") else named.get(it, it) for it in arguments)
    return [*verb.split(), *new]


def runs(model: Model) -> bool:
    """Say whether the inputs of MODEL are known, without which it cannot be run."""
    try:
        return bool(model.signature.inputs)
    except WeighbridgeError:
        return False


def leads(model: Model) -> bool:
    """Say whether there may be a map from MODEL to MLX: a given one, a table's, or a library's class."""
    try:
        return bool(model.map_text or model.tabled or model.library)
    except WeighbridgeError:
        return True


def is_adapter(path: Path) -> bool:
    """Say whether PATH holds an adapter and no model."""
    has_adapter = any((path / name).is_file() for name in ADAPTER_FILES)
    return has_adapter and not (path / "config.json").is_file()


def with_next(spec: str, facts: Facts, commands: list[str]) -> Facts:
    """Add what can be run next."""
    return {"path": spec, **facts, "you can now run": commands}


def adapter_facts(adapter: Adapter) -> Facts:
    """Describe an adapter."""
    ranks = Counter(update.rank for update in adapter.updates.values())
    scales = sorted({update.scale for update in adapter.updates.values()})
    kind = "DoRA" if any(it.magnitude is not None for it in adapter.updates.values()) else "LoRA"
    changes = {
        "is": f"a {kind} adapter of {WRITERS.get(adapter.dialect, 'mlx-lm')}",
        "changes": f"{len(adapter.updates)} weights",
        "rank": ", ".join(f"{rank} ({count} x)" for rank, count in sorted(ranks.items())),
        "scale": ", ".join(f"{scale:g}" for scale in scales),
        "weights": sorted(adapter.updates),
    }
    return {
        **(changes if adapter.updates else {"is": "weights that mlx-lm trained whole"}),
        "modules_to_save tensors": sorted(adapter.saved),
        "base": next(iter(adapter.named_bases), "nobody recorded it"),
        "notes": list(adapter.notes),
    }


def gguf_facts(path: Path) -> Facts:
    """Describe the GGUF file at PATH."""
    from ..converters.gguf.header import read_header

    header = read_header(path)
    named = header.fields.get("general.architecture")
    return {
        "is": "a GGUF file",
        "architecture": named.value() if named else "unknown",
        "tensors": len(header.tensors),
        "stored as": dict(Counter(it.type for it in header.tensors.values())),
    }


def model_facts(model: Model) -> Facts:
    """Describe a model: its family, tensors and signature."""
    facts: Facts = {
        "is": KINDS[model.framework],
        "architecture": architecture(model),
    }
    if found := mlx_class(model):
        facts["runs in MLX by"] = found
    if model.path is not None and model.framework != "mlprogram":
        facts |= quantized_facts(model) | tensor_facts(model)
    if model.framework == "mlprogram":
        from ..converters.captures.mlprogram.contents import described

        return facts | described(Path(str(model.path)))
    if isinstance(model.tensors, Asset):
        facts["operators"] = model.tensors.process.ask("operators")
        if states := model.tensors.process.ask("states"):
            facts["states"] = states
    if isinstance(model.tensors, OnnxFile):
        graph = model.tensors.proto
        facts["operators"] = dict(Counter(node.op_type for node in graph.graph.node))
        facts["opsets"] = {it.domain or "ai.onnx": it.version for it in graph.opset_import}
    try:
        facts |= ports_facts(model)
    except WeighbridgeError as error:
        facts["inputs"] = f"unknown: {error}"
    return facts


def ports_facts(model: Model) -> Facts:
    """Describe what MODEL takes and gives; an asset has its own dtypes, whatever its record says of the source's."""
    asset = model.tensors if isinstance(model.tensors, Asset) else None
    sides = asset.process.ask("ports") if asset else ((), ())
    own = [{name: dtype for name, dtype, _ in side} for side in sides]
    return {
        what: [f"{it.name}: {dtypes.get(it.name, it.dtype)} {list(it.shape)}" for it in ports]
        for what, ports, dtypes in zip(
            ("inputs", "outputs"),
            (model.signature.inputs, model.signature.outputs),
            own,
            strict=True,
        )
    }


def mlx_class(model: Model) -> str:
    """Return the class that runs MODEL in MLX; empty where no library has one, nor Weighbridge."""
    try:
        return str(model.library or "")
    except WeighbridgeError:  # the directory asks for code of its own
        return ""


def architecture(model: Model) -> str:
    """Return what MODEL is called: its model_type, its factory's class, or its format."""
    if model.framework in PROGRAMS:
        return {"mlprogram": "ML program", "onnx": "ONNX graph", "coreai": "Core AI program"}[
            model.framework
        ]
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


def quantized_facts(model: Model) -> Facts:
    """Say how many weights of MODEL are quantized in which way; nothing where none is."""
    method = (model.config.get(PACKING) or {}).get(METHOD)
    try:
        seen = quantized_view(model).tensors
    except WeighbridgeError as error:
        return {CODES: f"not read: {error}"}
    if isinstance(seen, Dequantized) and seen.schemes:
        found = dict(Counter(map(str, seen.schemes.values())))
        return {METHOD: method, CODES: found} if method else {CODES: found}
    return {CODES: f"by {METHOD} {method}"} if method else {}


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
    missing = {name: [p for p in NEEDS[name] if version_of(p) is None] for name in NEEDS}
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
    if not lacking:
        return "runs and is checked"
    tabled = {source, target} == {"torch", "mlx"}
    does = "converts by a table; for others, and to check it" if tabled else "does not run"
    return f"{does}: pip install {' '.join(lacking)}"
