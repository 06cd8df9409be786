"""What happens in the process of a GGUF file: llama.cpp loads and runs it. Nothing else imports this file.

llama.cpp ends the process where an assertion of its fails, so ours never loads it.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

import numpy as np

from ...common.apart.serving import serve
from ...values import Array

F32: Final = 0  # ggml's number of it
NEVER: Final = 0  # flash attention, which rounds keys and values to float16
ERROR: Final = 4  # ggml's level of messages


class Inside:
    """One file, loaded; every public method answers one kind of request."""

    def __init__(self, path: str, _: str) -> None:
        from llama_cpp import llama_cpp

        self._lib = llama_cpp
        self._said: list[str] = []
        self._heard = llama_cpp.llama_log_callback(self._hear)  # kept: C calls it
        self._operations: set[str] = set()
        self._seen = llama_cpp.ggml_backend_sched_eval_callback(self._see)
        llama_cpp.llama_log_set(self._heard, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        settings = llama_cpp.llama_model_default_params()
        settings.n_gpu_layers = 0
        self._model = llama_cpp.llama_model_load_from_file(path.encode(), settings)
        if not self._model:
            raise ValueError(self._last("it does not load it"))
        self._words = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))

    def about(self) -> dict[str, str]:
        """Return versions of the binding and of ggml, and what kernels of ggml this processor runs."""
        import llama_cpp

        ggml = self._c("ggml_version", ctypes.c_char_p)().decode()
        commit = self._c("ggml_commit", ctypes.c_char_p)().decode()
        flags = self._lib.llama_print_system_info() or b""
        return {
            "binding": llama_cpp.__version__,
            "ggml": f"{ggml} ({commit})",
            "kernels": flags.decode(),
        }

    def run(self, ids: Array, mask: Array) -> tuple[Array, frozenset[str]]:
        """Return logits of the tokens IDS, and which operations made them.

        Args:
            ids: shape ``(rows, tokens)``.
            mask: of the same shape; tokens at 0 are left out, and the others keep their positions.

        Returns:
            float32, shape ``(rows, tokens, words)``, 0 where a token was left out.
        """
        found = np.zeros((*ids.shape, self._words), np.float32)
        self._operations.clear()
        context = self._context(ids.shape[1])
        try:
            for row, (tokens, kept) in enumerate(zip(ids, mask, strict=True)):
                places = np.flatnonzero(kept)
                found[row, places] = self._logits(context, tokens[places], places)
        finally:
            self._lib.llama_free(context)
        return found, frozenset(self._operations)

    def _context(self, tokens: int) -> Any:
        """Return a context for so many TOKENS in one call, all of whose own numbers are float32."""
        settings = self._lib.llama_context_default_params()
        settings.n_ctx = settings.n_batch = settings.n_ubatch = max(1, tokens)
        settings.type_k = settings.type_v = F32
        settings.flash_attn_type = NEVER
        settings.cb_eval = self._seen
        context = self._lib.llama_init_from_model(self._model, settings)
        if not context:
            raise ValueError(self._last("it makes no context"))
        return context

    def _logits(self, context: Any, tokens: Array, places: Array) -> Array:
        """Return the logits of TOKENS, which stand at PLACES of their text."""
        lib, count = self._lib, len(tokens)
        if not count:
            return np.zeros((0, self._words), np.float32)
        lib.llama_memory_clear(lib.llama_get_memory(context), True)
        batch = lib.llama_batch_init(count, 0, 1)
        try:
            batch.n_tokens = count
            for at, (token, place) in enumerate(zip(tokens.tolist(), places.tolist(), strict=True)):
                batch.token[at], batch.pos[at], batch.logits[at] = token, place, 1
                batch.n_seq_id[at], batch.seq_id[at][0] = 1, 0
            if status := lib.llama_decode(context, batch):
                raise ValueError(self._last(f"llama_decode returns {status}"))
        finally:
            lib.llama_batch_free(batch)
        pointer = lib.llama_get_logits(context)
        return np.ctypeslib.as_array(pointer, (count, self._words)).copy()

    def _hear(self, level: int, text: bytes, _: Any) -> None:
        """Keep what llama.cpp says went wrong."""
        if level == ERROR:
            self._said.append(text.decode(errors="replace").strip())

    def _see(self, tensor: int, ask: bool, _: Any) -> bool:
        """Note the operation that is about to make TENSOR; its numbers are not asked for."""
        if ask:
            describe = self._c("ggml_op_desc", ctypes.c_char_p, ctypes.c_void_p)
            self._operations.add(describe(tensor).decode())
        return not ask

    def _last(self, otherwise: str) -> str:
        """Return what llama.cpp said last, or OTHERWISE."""
        return next(filter(None, reversed(self._said)), otherwise)

    def _c(self, name: str, result: Any, *arguments: Any) -> Any:
        """Return ggml's function NAME, which the binding does not have."""
        found = getattr(self._lib._lib, name)
        found.restype, found.argtypes = result, list(arguments)
        return found


def main() -> None:
    """Load a file and answer requests, until nobody asks any more."""
    serve(Inside)
