"""What a user may write for a model, and how it is recognised."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...errors import BadInputError, UntrustedError, WeighbridgeError
from ..adapters import read_adapter
from ..checkpoints import Checkpoint, open_checkpoint
from ..common.contents import TEXT, require
from ..common.hints import command, unused
from ..common.repositories import local
from ..libraries.packages import PACKAGES
from .config_fields import FACTORY, FILE, OPTIONS, read_config
from .factories import build_factory, framework_of, looks_like_factory
from .manifests import MANIFEST, read_manifest
from .model import PROGRAMS, Model
from .program_files import open_program, program_in
from .towers import library_with_towers, parts_of, tower_names

TABLES = Path(__file__).parent.parent / "maps" / "tables"
ADAPTER_FILES = (
    *("adapters.safetensors", "adapter_model.safetensors"),
    *("adapter_model.bin", "adapters.npz"),
)
DIALECTS = {"mlx": "mlx-to-peft", "torch": "peft-to-mlx"}  # framework of an adapter -> verb


def open(  # noqa: A001
    spec: str | Path,
    *,
    trust_code: str | None = None,
    map: str | None = None,  # noqa: A002
    options: Mapping[str, Any] = {},
) -> Model:
    """Open what SPEC names; reads headers and configuration, loads nothing.

    Args:
        spec: a directory, ``org/name[@revision]`` or tensor file; ``DIRECTORY+ADAPTER``; an ``.mlpackage``, ``.onnx`` or
            ``.aimodel``; or
            ``module:function``, which consents to run that function.
        trust_code: ``module:function`` that builds the architecture of a directory whose
            ``model_type`` is unknown. Nothing is imported from a model directory without it.
        map: name or path of a ``.wmap`` between torch and MLX names, where the family has none.
        options: arguments of that function.

    Raises:
        BadInputError: SPEC is none of these, or cannot be what it claims to be.
        UntrustedError: the directory names code and TRUST_CODE does not.
    """
    spec = local(str(spec))
    path, adapter = split_adapter(spec)
    model = from_path(path, trust_code, map) if path else Model(spec, "", None, {})
    code = trust_code if path else spec
    if options and not code:
        raise BadInputError(f"{spec} takes no options: only MODULE:FUNCTION does")
    if code and model.framework not in PROGRAMS:
        recorded = model.config.get(OPTIONS, {}) if code == model.config.get(FACTORY) else {}
        model = with_factory(model, code, {**recorded, **options})
    return model.with_adapter(read_adapter(adapter)) if adapter else model


def split_adapter(spec: str) -> tuple[Path | None, Path | None]:
    """Split ``DIRECTORY+ADAPTER``; a path that exists as it stands wins.

    >>> split_adapter("package.module:function")
    (None, None)
    """
    if exists(spec):
        return Path(spec), None
    base, plus, adapter = spec.rpartition("+")
    if plus and exists(base):
        if not exists(adapter):
            raise BadInputError(f"{adapter}: no such adapter directory")
        return Path(base), Path(adapter)
    if looks_like_factory(spec):
        return None, None
    if os.path.lexists(spec) and (link := Path(spec)).is_symlink():
        raise BadInputError(f"{spec} is a symbolic link to {link.readlink()}, which leads nowhere")
    raise BadInputError(f"{spec}: no such file or directory, and not MODULE:FUNCTION either")


def exists(path: str) -> bool:
    """Say whether there is a file or directory at PATH; a name that no disk takes is none."""
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False


def with_factory(model: Model, code: str, options: Mapping[str, Any] = {}) -> Model:
    """Return MODEL with what CODE, ``module:function``, builds; without files it is all there is."""
    module, signature = build_factory(code, options)
    framework = model.framework if model.path else framework_of(module)
    return replace(model, framework=framework, factory=module, declared=signature)


def from_path(path: Path, trust_code: str | None, map_name: str | None) -> Model:
    """Return the model in a directory, package or tensor file."""
    if path.suffix == ".mlpackage":
        return Model(str(path), "mlprogram", path, {})
    if program := program_in(path):
        return open_program(program)
    path = whole(path)
    refuse_adapter(path)
    config, manifest = read_config(path), read_manifest(path / MANIFEST)
    code = config.get(FACTORY)
    if code and not trust_code:
        raise UntrustedError(
            f"{path} is built by code, {code}; if you trust it: --trust-code {code}"
        )
    framework = manifest.get("framework")
    opened = None if framework else open_checkpoint(path)  # headers of many shards take a while
    return Model(
        spec=str(path),
        framework=str(framework) if opened is None else framework_in(opened),
        path=path,
        config=config,
        reader=reader_of(path, config, manifest, opened),
        map_text=map_text(map_name, manifest),
        map_name=map_name,
        sizes=manifest.get("sizes") or {},
        # an independent check of the manifest's map is none of another map
        layout_check=manifest.get("layout_check") if map_name is None else None,
        config_changes=manifest.get("config") or {},
        tensors=opened,
    )


def whole(path: Path) -> Path:
    """Return the directory of a model where the file PATH is all the tensors in it, else PATH."""
    folder = path.parent
    if not path.is_file() or not (folder / FILE).is_file():
        return path
    try:
        same = set(open_checkpoint(folder).files) == set(open_checkpoint(path).files)
    except BadInputError:  # several files, and which of them belong together nobody says
        return path
    return folder if same else path


def reader_of(
    path: Path, config: Mapping[str, Any], manifest: Mapping[str, Any], opened: Checkpoint | None
) -> str | None:
    """Return the MLX library for what lies at PATH: as recorded, or the one that has its towers.

    A checkpoint without the towers of its configuration is a language model alone.
    """
    recorded = (manifest.get("library") or {}).get("name")
    if recorded in PACKAGES:
        return str(recorded)
    if not any(parts_of(config)) or not tower_names((opened or open_checkpoint(path)).headers):
        return None
    return library_with_towers(config)


def map_text(name: str | None, manifest: Mapping[str, Any]) -> str | None:
    """Return the text of the map a user named, else the one the directory was made with.

    Raises:
        BadInputError: there is neither a table nor a file of that name.
    """
    if name is None:
        text = manifest.get("map")
        return str(text) if text else None
    table = TABLES / f"{name}.wmap"
    path = table if table.is_file() else Path(name)
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in TABLES.glob("*.wmap")))
        raise BadInputError(f"--map {name}: no such file; tables are {known}")
    require(path, "a map, a text as weighbridge map show prints it", {TEXT, "empty"})
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BadInputError(f"--map {path}: not a text ({error})") from None


def refuse_adapter(path: Path) -> None:
    """Answer an adapter given as a model with the right command."""
    is_adapter = any((path / name).exists() for name in ADAPTER_FILES)
    if is_adapter and not (path / "config.json").exists():
        raise no_model(path)


def no_model(adapter: Path) -> BadInputError:
    """Return what is raised for an ADAPTER that is given as a model."""
    ways = ""
    with suppress(WeighbridgeError):
        read = read_adapter(adapter)
        base, dialect = recorded_base(read.base), DIALECTS[read.framework]
        merge = command("merge", base, adapter, unused(base, "-merged")) if base else ""
        there = unused(adapter, f"-{dialect.rpartition('-')[2]}")
        convert = command("convert", dialect, adapter, there, "--base", base or "BASE")
        ways = f"{f'; or merge it: {merge}' if merge else ''}; or convert it: {convert}"
    return BadInputError(
        f"{adapter} is an adapter, not a model. Give its base as the model, and the adapter with"
        f" --adapter or a plus sign between them{ways}"
    )


def recorded_base(record: Mapping[str, Any]) -> str | None:
    """Return the base that an adapter's RECORD names, if it still lies there."""
    spec = record.get("spec")
    return spec if isinstance(spec, str) and exists(f"{spec}/config.json") else None


def framework_in(checkpoint: Checkpoint) -> str:
    """Return whose names and layouts the weights have: what the files say of themselves, else torch."""
    declared = str(checkpoint.metadata.get("format", ""))
    return (
        "mlx"
        if declared == "mlx" or any(file.suffix == ".npz" for file in checkpoint.files)
        else "torch"
    )
