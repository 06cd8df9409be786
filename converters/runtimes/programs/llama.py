"""Run a GGUF file in llama.cpp, in a process of its own; what reads such a file is imported where one is there."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Mapping
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from ....errors import BadInputError, UnsupportedError
from ...common.apart.process import Library, Process
from ...common.policy import Policy
from ...models import Model
from ...values import Array
from ..base import Arrays, Trace

if TYPE_CHECKING:
    from ...gguf.checked.tensors import GgufTensors

CODE: Final = f"from {__package__}.llama_inside import main; main()"
DOING: Final[Mapping[str, str]] = {"about": "loading", "run": "running"}
LLAMA_CPP: Final = Library("llama.cpp", "llama_cpp", CODE, DOING)
# Operations whose numbers ggml looks up in a table of float16, in a run in float32 too.
IN_TABLES: Final = frozenset({"GELU", "GELU_QUICK", "GEGLU", "GEGLU_QUICK"})
TABLES: Final = "float32 with gelu in float16"


class LlamaRunner:
    """A GGUF file in llama.cpp; see ``converters.runtimes.base.Runner``.

    Keys and values are kept in float32 and attention is not fused, so that nothing is rounded but what
    the file's types ask for: a product with weights in 16 bits rounds what it takes to these, one with
    blocks to 8 bits.
    """

    runtime = "llama.cpp"

    def __init__(self, model: Model, policy: Policy) -> None:
        if model.framework != "gguf":
            raise BadInputError(f"{model.spec} is no GGUF file; export it first")
        if policy.device != "cpu":
            raise UnsupportedError(f"llama.cpp runs on the cpu here, not on {policy.device}")
        self.signature = model.signature
        self._tensors = cast("GgufTensors", model.tensors)
        self._process = Process(self._tensors.file.path, LLAMA_CPP)
        self._wide = False
        self._operations: frozenset[str] = frozenset()
        roles = {port.role: port.name for port in self.signature.inputs}
        outputs = [port.name for port in self.signature.outputs]
        if "token_ids" not in roles or outputs != ["logits"]:
            raise UnsupportedError(
                f"{model.spec}: llama.cpp is asked for the logits of token ids; the source gives"
                f" {', '.join(outputs)} for {', '.join(it.name for it in self.signature.inputs)}"
            )
        self._ids, self._mask = roles["token_ids"], roles.get("attention_mask")

    def shadow(self, _: Arrays | None = None) -> LlamaRunner:
        """Return the same file with all of it in float32, which shows its structure."""
        return self._in_float32

    def unrounded(self) -> LlamaRunner:
        """Return the same file with all of it in float32, so that nothing is rounded to 8 bits."""
        return self._in_float32

    @cached_property
    def _in_float32(self) -> LlamaRunner:
        if self._wide or self._tensors.types == {"F32"}:
            return self
        other, folder = (
            copy(self),
            tempfile.TemporaryDirectory(prefix="weighbridge-", ignore_cleanup_errors=True),
        )
        place = Path(folder.name) / self._tensors.file.path.name
        from ...gguf.checked.widened import write_widened

        write_widened(self._tensors.file, place)
        other._process, other._wide = Process(place, LLAMA_CPP), True
        weakref.finalize(other._process, folder.cleanup)
        return other

    def run(self, inputs: Arrays) -> dict[str, Array]:
        """Return the logits, float32; 0 for tokens that are masked out."""
        ids = np.asarray(inputs[self._ids])
        given = inputs.get(self._mask) if self._mask else None
        mask = np.ones(ids.shape, bool) if given is None else np.asarray(given) != 0
        self._refuse_beyond(ids)
        found, made = self._process.ask("run", ids, mask)
        self._operations = self._operations | made
        return {"logits": found}

    def trace(self, inputs: Arrays, _: Arrays | None = None) -> Trace:
        """Run; llama.cpp's parts are not the source's submodules, so there are no sites."""
        return Trace(self.run(inputs))

    def describe(self) -> dict[str, str]:
        """Return runtime, version, device and dtype, for the verdict."""
        return {
            "runtime": self.runtime,
            "version": self._version,
            "device": "cpu",
            "dtype": self._dtype,
            "accumulate": TABLES if self._operations & IN_TABLES else "float32",
        }

    @cached_property
    def _version(self) -> str:
        if not self._process.library.installed:
            return "not installed"
        about = self._process.ask("about")
        return f"llama-cpp-python {about['binding']}, ggml {about['ggml']}"

    @property
    def _dtype(self) -> str:
        """The dtype that its products take; ``float32`` of a file in blocks, which says so otherwise."""
        from ...gguf.types import FLOATS

        kinds = [] if self._wide else [FLOATS[it] for it in self._tensors.types if it in FLOATS]
        narrow = [it for it in kinds if it != "float32"]
        return narrow[0] if narrow and not self._tensors.coded else "float32"

    def _refuse_beyond(self, ids: Array) -> None:
        """Refuse IDS that the file has no embedding for: llama.cpp says no more than -1 of them."""
        words = self._tensors.file.tensors["token_embd.weight"].shape[0]
        if ids.size and not (ids.min() >= 0 and ids.max() < words):
            worst: Any = ids.max() if ids.min() >= 0 else ids.min()
            raise BadInputError(
                f"{self._tensors.file.path}: token id {worst} is beyond its vocabulary of {words:,}"
            )
