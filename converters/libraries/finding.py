"""Which library's class reads a ``model_type``: answered from sources, without importing any."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from ... import __version__
from ...errors import BadInputError, UntrustedError
from ..mlx_classes import FILES
from .packages import PACKAGES, constant, folder, version
from .repairs.catalogue import INSTEAD, asked
from .repairs.writing import MODEL_FILES
from .target import OWN, Target
from .user import user_object

Config = Mapping[str, Any]
DEFINES: Final = re.compile(r"^(class Model\b|Model\b|from .*\bModel\b|\s+Model,)", re.MULTILINE)


def find(config: Config, library: str | None = None) -> Target | None:
    """Return the class that reads the ``model_type`` of CONFIG, ``None`` where no library has one.

    mlx-lm is asked first, then mlx-embeddings, then mlx-vlm, or LIBRARY alone; where none of them has
    one, the classes that come with Weighbridge. No library is imported and nothing of a model
    directory is run.

    >>> find({"model_type": "mistral"}).module
    'mlx_lm.models.llama'
    >>> find({"model_type": "unheard-of"}) is None
    True

    Raises:
        BadInputError: LIBRARY is not one of the three.
        UntrustedError: the config asks for code of its own directory.
    """
    if library is not None and library not in PACKAGES:
        raise BadInputError(f"{library}: no such library; known are {', '.join(PACKAGES)}")
    code = config.get("model_file")
    mended = next((name for name, file in MODEL_FILES.items() if file == code), "")
    repaired = tuple(it.part for it in asked(config, mended))
    if code and not repaired:
        raise UntrustedError(code_refusal("model_file", code))
    for name in [mended] if repaired else [library] if library else PACKAGES:
        module = module_of(name, config)
        if module:
            return Target(name, version(name), str(config["model_type"]), module, repaired)
    if config.get("auto_map"):
        raise UntrustedError(code_refusal("auto_map", config["auto_map"]))
    return None if library else own_target(config)


def own_target(config: Config) -> Target | None:
    """Return the class that comes with Weighbridge for the ``model_type`` of CONFIG.

    >>> own_target({"model_type": "t5"}).module.endswith("mlx_classes.t5")
    True
    """
    kind = config.get("model_type")
    file = FILES.get(kind) if isinstance(kind, str) else None
    room = f"{__package__}".rpartition(".")[0]
    return Target(OWN, __version__, str(kind), f"{room}.mlx_classes.{file}") if file else None


def code_refusal(key: str, value: Any) -> str:
    """Return the message that a config asks for code, and what to do."""
    return (
        f"config.json asks to run code of its own directory ({key}: {value!s:.120}), which is not done."
        " If you trust it, name a function of yours that builds the model: --trust-code MODULE:FUNCTION"
    )


def user_target(spec: str) -> Target:
    """Return the class, instance or function that ``module:function`` names.

    Naming it is consent to import it.

    Raises:
        BadInputError: there is no such module or function.
    """
    user_object(spec)
    return Target("user", "", "", spec)


def module_of(library: str, config: Config) -> str | None:
    """Return the dotted name of LIBRARY's model file for CONFIG, ``None`` where it has none."""
    kind = config.get("model_type")
    if not isinstance(kind, str) or not re.fullmatch(r"[\w.+-]+", kind):
        return None
    name = NAMES[library](config, kind)
    root = folder(library)
    if root is None or not re.fullmatch(r"\w+", name) or not has_model(root / "models", name):
        return None
    return f"{PACKAGES[library]}.models.{name}"


@cache
def has_model(models: Path, name: str) -> bool:
    """Say whether the folder MODELS has a file or package NAME that defines or imports a class ``Model``."""
    for path in (models / f"{name}.py", models / name / "__init__.py"):
        if path.is_file():
            return DEFINES.search(path.read_text(encoding="utf-8")) is not None
    return False


# Model type and class name as transformers saves them -> mlx-lm's file of the same architecture,
# which mlx-lm itself looks up by the name that the published checkpoints have.
RESAVED: Final = {("bailing_hybrid", "BailingHybridForCausalLM"): "bailing_moe_v3"}


def lm_name(config: Config, kind: str) -> str:
    """Return mlx-lm's file for KIND (``utils._get_classes``)."""
    if config.get("model_file") == MODEL_FILES["mlx-lm"] and kind in INSTEAD:
        return INSTEAD[kind]
    table = {**RESAVED, **constant("mlx-lm", "utils.py", "MODEL_ARCHITECTURE_REMAPPING")}
    declared = config.get("architectures") or ()
    architectures = (declared,) if isinstance(declared, str) else declared
    special = [table[kind, name] for name in architectures if (kind, name) in table]
    remapped = constant("mlx-lm", "utils.py", "MODEL_REMAPPING").get(kind, kind)
    return str(special[0] if special else remapped)


def embeddings_name(_: Config, kind: str) -> str:
    """Return mlx-embeddings' file for KIND (``utils._get_model_arch``)."""
    name = kind.replace("-", "_")
    return str(constant("mlx-embeddings", "utils.py", "MODEL_REMAPPING").get(name, name))


def vlm_name(_: Config, kind: str) -> str:
    """Return mlx-vlm's folder for KIND (``utils.get_model_type``, without its drafters)."""
    name = kind.lower()
    return str(constant("mlx-vlm", "utils.py", "MODEL_REMAPPING").get(name, name))


NAMES: Final[dict[str, Callable[[Config, str], str]]] = {
    "mlx-lm": lm_name,
    "mlx-embeddings": embeddings_name,
    "mlx-vlm": vlm_name,
}
