"""The class of an MLX library that reads a model type."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from ...errors import BadInputError, MismatchError, UnsupportedError, WeighbridgeError
from ..checkpoints.base import Header
from ..common.memory import pass_on_shortage
from ..common.users_code import described
from .floats import decoded
from .packages import module as import_module
from .protocols import PROTOCOLS, beside
from .repairs.catalogue import INSTEAD
from .repairs.writing import loaded as mended
from .resaved import reading
from .user import user_parts

if TYPE_CHECKING:
    import mlx.core as mx

# Name of an MLX dtype -> safetensors code.
CODES: Final = {
    "bool": "BOOL",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
}
OWN: Final = "weighbridge"  # the library of the classes that come with this package


@dataclass(frozen=True)
class Target:
    """An MLX class that reads a ``model_type``; the configs it takes are MLX configs.

    Attributes:
        library: ``mlx-lm``, ``mlx-vlm``, ``mlx-embeddings``, ``weighbridge`` or ``user``.
        version: of the library that is installed; empty for a user's own class.
        model_type: as the config has it.
        module: dotted name of the file with the class, ``module:function`` for a user's own.
        repaired: what our ``model.py`` mends of it, empty for the class as it is.
    """

    library: str
    version: str
    model_type: str
    module: str
    repaired: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Print as ``mlx-lm 0.32.2, mlx_lm.models.llama``."""
        name = f"{self.module}, repaired" if self.repaired else self.module
        return f"{self.library} {self.version}, {name}" if self.version else name

    def code(self) -> ModuleType:
        """Return the Python module of the class, a library's own or the one that mends it.

        Raises:
            UnsupportedError: the library or a package it needs is not installed.
        """
        if not self.repaired:
            return self.own_code()
        return mended(self.module, self.model_type, self.repaired)

    def own_code(self) -> ModuleType:
        """Return the library's own module; fails as ``code``, with the way round where there is one."""
        try:
            return import_module(self.module)
        except UnsupportedError as error:
            if self.library == "mlx-lm" and self.model_type in INSTEAD:
                what = f"{INSTEAD[self.model_type]}'s class for it"
                raise UnsupportedError(
                    f"{error}; convert with --repair, which mends {what}"
                ) from error
            raise

    def parts(self, config: Mapping[str, Any]) -> Iterator[Any]:
        """Yield the model and what else sanitizes, new objects made lazily from a copy of CONFIG.

        Raises:
            BadInputError: the class does not take the config; says which keys it misses.
            UnsupportedError: the library or a package it needs is not installed.
        """
        own = decoded(copy.deepcopy(dict(config)))
        if self.library == "user":
            made = user_parts(self.module, own)
        else:
            made = PROTOCOLS[self.library](self.code(), own)
        model = None
        while True:
            try:
                part = next(made)
            except StopIteration:
                return
            except WeighbridgeError:
                raise
            except Exception as error:
                pass_on_shortage(error)
                raise BadInputError(self.refusal(config, error)) from error
            first, model = model is None, part
            yield reading(part, self.library, self.model_type, config) if first else part

    def build(self, config: Mapping[str, Any]) -> Any:
        """Return a new module of the class for CONFIG, an ``mlx.nn.Module``, nothing evaluated.

        Raises:
            BadInputError: the class does not take the config.
            UnsupportedError: the library or a package it needs is not installed.
        """
        model = next(self.parts(config))
        drop_tied_head(model, config)
        return model

    def load(self, config: Mapping[str, Any], weights: Mapping[str, mx.array]) -> Any:
        """Return a module of the class with WEIGHTS in it, sanitized and loaded as the library does.

        Raises:
            BadInputError: the class does not take the config.
            MismatchError: weights are missing, unexpected or of another shape; lists all of them.
        """
        parts = list(self.parts(config))
        model, result = parts[0], sanitized(parts, weights)
        problems = misfits(model, result)
        if problems:
            raise MismatchError(f"the weights do not fit {self}", problems)
        model.load_weights(list(result.items()))
        model.eval()
        return model

    def sanitize(
        self, config: Mapping[str, Any], weights: Mapping[str, mx.array]
    ) -> dict[str, mx.array]:
        """Return WEIGHTS as the library's loading renames and reshapes them, on new objects.

        The dict of the caller is not changed; its arrays may be (``falcon_h1`` scales in place).

        Raises:
            BadInputError: the class does not take the config.
        """
        return sanitized(self.parts(config), weights)

    def parameters(self, config: Mapping[str, Any]) -> dict[str, Header]:
        """Return names, dtypes and shapes of the parameters that CONFIG asks for.

        Raises:
            BadInputError: the class does not take the config.
        """
        from mlx.utils import tree_flatten

        found: Any = tree_flatten(self.build(config).parameters())
        return {name: Header(code_of(value), tuple(value.shape)) for name, value in found}

    def completes(
        self, config: Mapping[str, Any], headers: Mapping[str, Header], path: Path | None = None
    ) -> bool:
        """Say whether the class's own loading adds to HEADERS just what is missing for CONFIG.

        Some make a tied head of the embeddings each time, or find the rest in folders of PATH.
        """
        import mlx.core as mx

        if not {it.dtype for it in headers.values()} <= set(CODES.values()):
            return False
        names = {code: name for name, code in CODES.items()} | {"BOOL": "bool_"}
        empty = {
            name: mx.zeros(it.shape, getattr(mx, names[it.dtype])) for name, it in headers.items()
        }
        parts = list(self.parts(config))
        try:
            result = sanitized(parts, empty | beside(path, self.library))
            return headers.keys() <= result.keys() and not misfits(parts[0], result)
        except Exception:  # the class's own code, at what it does not take
            return False

    def fields(self) -> dict[str, Field[Any]]:
        """Return the fields of the dataclass that reads the config, by key; empty where none does.

        Raises:
            UnsupportedError: the library or a package it needs is not installed.
        """
        reader = self.dataclass()
        return {} if reader is None else {field.name: field for field in fields(reader)}

    def dataclass(self) -> Any:
        """Return the dataclass that reads the config, ``None`` where none does; fails as ``fields``."""
        if self.library == "user":
            return None
        module = self.code()
        reader = getattr(module, "ModelArgs", None) or getattr(module, "ModelConfig", None)
        return reader if is_dataclass(reader) else None

    def refusal(self, config: Mapping[str, Any], error: Exception) -> str:
        """Say which keys the class misses in CONFIG, and its own message."""
        missing = [
            name
            for name, field in self.fields().items()
            if is_required(field) and name not in config
        ]
        why = f"it needs {', '.join(missing)}; " if missing else ""
        return (
            f"config.json does not fit {self} for model_type {self.model_type!r}: {why}"
            f"the class reports {described(error)}. Add or correct these keys in config.json"
        )


def sanitized(parts: Iterable[Any], weights: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """Return WEIGHTS after every one of PARTS that sanitizes."""
    result = dict(weights)
    for part in parts:
        if hasattr(part, "sanitize"):
            result = dict(part.sanitize(result))
    return result


def misfits(model: Any, weights: Mapping[str, mx.array]) -> list[str]:
    """Return what keeps WEIGHTS from loading into MODEL, one line for each tensor."""
    from mlx.utils import tree_flatten

    flat: Any = tree_flatten(model.parameters())
    wanted = {name: list(value.shape) for name, value in flat}
    found = {name: list(value.shape) for name, value in weights.items()}
    both = sorted(wanted.keys() & found.keys())
    return [
        *(f"{name} {wanted[name]} is missing" for name in sorted(wanted.keys() - found.keys())),
        *(f"{name} {found[name]} is unexpected" for name in sorted(found.keys() - wanted.keys())),
        *(
            f"{name} is {found[name]}, expected {wanted[name]}"
            for name in both
            if found[name] != wanted[name]
        ),
    ]


# Files whose sanitize takes the head out of its model when there is no weight for it.
HEAD_TAKERS: Final = frozenset({"gemma3_text", "recurrent_gemma"})


def drop_tied_head(model: Any, config: Mapping[str, Any]) -> None:
    """Take the head out of MODEL where its own sanitize does, for CONFIG says that it is tied."""
    text = config.get("text_config") or {}
    tied = config.get("tie_word_embeddings", text.get("tie_word_embeddings", True))
    for part in [model, getattr(model, "language_model", model)]:
        files = {cls.__module__.rpartition(".")[2] for cls in type(part).__mro__}
        if tied and files & HEAD_TAKERS and "lm_head" in part:
            part.sanitize({})


def is_required(field: Field[Any]) -> bool:
    """Say whether the dataclass FIELD has no default."""
    return field.default is MISSING and field.default_factory is MISSING


def code_of(array: mx.array) -> str:
    """Return the safetensors code of the dtype of ARRAY."""
    return CODES[str(array.dtype).rpartition(".")[2]]
