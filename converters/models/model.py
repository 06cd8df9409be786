"""What a user points at: a directory, a directory with an adapter, a package, a factory."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from ...errors import BadInputError, UntrustedError
from ..adapters.adapter import Adapter
from ..checkpoints import Checkpoint, open_checkpoint
from ..checkpoints.arrays import FileArrays
from ..checkpoints.derived import Overlay
from ..checkpoints.open import refuse_others
from ..common.hints import command
from ..libraries import Target
from ..values import LowRank
from .families import FAMILIES, Family, known_family
from .library_family import family_of, library_of, signature_in, signature_of_class
from .model_files import require_own
from .signature import Signature

ASKED: Final = (
    "give --inputs FILE.npz with one array per input where the verb takes it, or let its function"
    " return the module and a Signature of its inputs and outputs, named as its forward names them"
)
EXAMPLE: Final = (
    "from weighbridge.converters.models import Port, Signature",
    "x = Port('x', 'float32', ('batch', 8), 'hidden', (('batch', 4),))  # a size with a name varies, here up to 4",
    "y = Port('y', 'float32', ('batch', 8), 'hidden')",
    "return module, Signature((x,), (y,))",
)
Found = TypeVar("Found")
# Frameworks whose files are whole computations: what they are, and what a message calls one.
PROGRAMS: Final[Mapping[str, str]] = {
    "mlprogram": "a Core ML package",
    "onnx": "an ONNX file",
    "coreai": "a Core AI asset",
    "gguf": "a GGUF file",
}


def brought_back(framework: str, spec: str, to: str, target: str | Path = "DIR") -> str:
    """Return the command that makes a directory of a program's weights.

    >>> brought_back("mlprogram", "m.mlpackage", "torch")
    'weighbridge convert coreml-to-torch m.mlpackage DIR --like MODEL'
    """
    kind = {"mlprogram": "coreml"}.get(framework, framework)
    return command("convert", f"{kind}-to-{to}", spec, target, "--like", "MODEL")


class Known(NamedTuple):
    """What was found out, and of which configuration and tensors; the latter are not kept alive by it."""

    config: Mapping[str, Any]
    tensors: Callable[[], Checkpoint | None]
    found: Any


class TorchSide(NamedTuple):
    """A model's tensors as PyTorch names them: plain values, so that who runs it needs no map.

    Attributes:
        arrays: weights by the names of a torch checkpoint, read when they are asked for.
        updates: of the adapter, likewise.
        parameter_updates: returns the same under the names of the parameters of the class of
            transformers, which stacks experts, fuses projections and adds a prefix while it loads.
        recomputed: names that may be in a checkpoint although the module computes them.
        wide: names of those that the files keep in more than 16 bits.
    """

    arrays: FileArrays
    updates: Mapping[str, LowRank]
    parameter_updates: Callable[[], dict[str, LowRank]]
    recomputed: tuple[str, ...] = ()
    wide: frozenset[str] = frozenset()


def nothing() -> None:
    """Return what stands in for the tensor files where nothing does."""


@dataclass(frozen=True)
class Model:
    """A model before it is loaded; making one reads headers and configuration only.

    Attributes:
        spec: what the user wrote.
        framework: whose names and layouts the weights have: ``torch``, ``mlx``, or one of
            ``PROGRAMS``.
        path: directory or package; ``None`` for a factory without weights of its own.
        config: ``config.json``, empty where there is none.
        reader: the MLX library whose class reads it; ``None`` for the first that has one.
        factory: what ``module:function`` returned, a torch or mlx module; ``None`` for a family.
        adapter: a live adapter; ``None`` for the bare model.
        map_text: the map between torch and MLX names, where it is not the family's.
        map_name: the file or table that a user named it by.
        declared: the signature a factory declared.
        layout_check: what checked the MLX layout when the directory was made, besides its map.
        sizes: of axes that shapes do not tell, recorded when the directory was made.
        config_changes: what the making of the directory ``added``, ``changed`` and ``removed`` in the
            configuration; empty where nobody recorded it.
        tensors: what stands in for the tensor files at the path, where something does.
        torch_side: returns a model's tensors by PyTorch's names, where somebody knows them.
        known: what was found out of the model so far, see ``once``.
    """

    spec: str
    framework: str
    path: Path | None
    config: Mapping[str, Any]
    reader: str | None = None
    factory: Any = None
    adapter: Adapter | None = None
    map_text: str | None = None
    map_name: str | None = None
    declared: Signature | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    layout_check: str | None = None
    config_changes: Mapping[str, Any] = field(default_factory=dict)
    tensors: Checkpoint | None = None
    torch_side: Callable[[Model], TorchSide] | None = None
    known: dict[Any, Known] = field(default_factory=dict, compare=False, repr=False)

    def once(self, what: Any, find: Callable[[], Found]) -> Found:
        """Return what FIND finds out; for the same model and WHAT it is called once.

        A model with another adapter or name is still the same; one with other tensors, another
        configuration, map or framework is not.
        """
        about = (what, self.framework, self.path, self.map_text, self.factory is None, self.reader)
        known = self.known.get(about)
        if known is None or known.config is not self.config or known.tensors() is not self.tensors:
            tensors = nothing if self.tensors is None else weakref.ref(self.tensors)
            known = self.known[about] = Known(self.config, tensors, find())
        found: Found = known.found
        return found

    @property
    def folder(self) -> Path | None:
        """The directory that it lies in, if it has one to itself."""
        return self.path if self.path and self.path.is_dir() else None

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """The tensor files.

        Raises:
            BadInputError: there are none, or files beside them from which MLX's libraries read the same tensors.
        """
        found = self._opened() if self.tensors is None else self.tensors
        if self.framework == "mlx":
            refuse_others(found, self.reader)
        return found

    def _opened(self) -> Checkpoint:
        if self.path is None:
            raise BadInputError(
                f"{self.spec} has no weights on disk; save them in a directory of their own"
                " (safetensors.torch.save_model(module, 'DIR/model.safetensors')) and give"
                f" {command('--trust-code', self.spec, program='DIR')}"
            )
        return open_checkpoint(self.path)

    @cached_property
    def family(self) -> Family | None:
        """The architecture: a row of ``FAMILIES``, or what an MLX library and transformers know.

        Raises:
            UnsupportedError: it is a known architecture with a head that is not.
            UntrustedError: the configuration asks to run code of its own directory, and no code
                that builds the model was named.
        """
        try:
            require_own(self.path, self.config)
            return self.tabled or family_of(self.config, self.reader)
        except UntrustedError:
            if self.factory is None:
                raise
            return None

    @cached_property
    def tabled(self) -> Family | None:
        """What a table of ours says of this checkpoint; ``None`` where there is none of its type.

        Raises:
            UnsupportedError: its head is not known here.
        """
        row = FAMILIES.get(str(self.config.get("model_type")))
        if row is None or self.reader not in (None, row.native):
            return None  # and the tensor files stay closed
        names = self.checkpoint.headers if self.path else ()
        return known_family(self.config, names, self.framework)

    @cached_property
    def library(self) -> Target | None:
        """The MLX library's class that reads this ``model_type``; ``None`` where none is installed.

        Raises:
            UntrustedError: the configuration asks to run code of its own directory.
        """
        require_own(self.path, self.config)
        return library_of(self.config, self.reader)

    @cached_property
    def only_in_mlx(self) -> bool:
        """Whether it is a directory in MLX's layout that a library's class runs, and nothing in PyTorch."""
        own = self.framework == "mlx" and self.factory is None and self.family is None
        return own and self.library is not None

    @cached_property
    def signature(self) -> Signature:
        """Inputs and outputs.

        Raises:
            BadInputError: nothing says what the model takes.
        """
        if self.declared:
            return self.declared
        self.require_source()
        if self.family:
            return self.family.signature(self.config)
        if self.only_in_mlx and self.library is not None:
            return signature_in(self.library, self.config)
        if own := signature_of_class(self.factory):
            return own
        if self.factory is not None:
            raise BadInputError(f"{self.spec} does not say what it takes; {ASKED}", EXAMPLE)
        kind = self.config.get("model_type", "(none)")
        port = "; where it is checked, its own mlx.nn module: --candidate-code MODULE:FUNCTION"
        raise BadInputError(
            f"{self.spec}: model_type {kind} is not known here; known are {', '.join(sorted(FAMILIES))},"
            " and what both transformers and an installed MLX library (mlx-lm, mlx-embeddings, mlx-vlm)"
            " implement. For another, name the code that builds it: --trust-code"
            f" MODULE:FUNCTION{port if self.framework == 'mlx' else ''}"
        )

    def require_source(self) -> None:
        """Refuse a program where a module of PyTorch or MLX is needed.

        Raises:
            BadInputError: it is one; the message has the command that brings its weights back.
        """
        if self.framework in PROGRAMS:
            raise BadInputError(
                f"{self.spec} is {PROGRAMS[self.framework]}, which can be checked and is no source;"
                f" bring its weights back first: {brought_back(self.framework, self.spec, 'torch')}"
            )

    def own_values(self) -> FileArrays:
        """Return the weights under their own names, those replaced that the adapter holds whole."""
        saved = self.adapter.saved if self.adapter else {}
        return FileArrays(Overlay(self.checkpoint, saved) if saved else self.checkpoint)

    def with_adapter(self, adapter: Adapter) -> Model:
        """Return the same model with ADAPTER live on it."""
        return replace(self, spec=f"{self.spec}+{adapter.path}", adapter=adapter)
