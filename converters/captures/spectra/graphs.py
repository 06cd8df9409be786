"""Graphs whose Fourier transforms become products, and complex numbers pairs of real ones."""

from __future__ import annotations

from typing import Any, Final

import torch

from ....errors import UnsupportedError
from ..interpolated.graphs import MATRICES, constant, none_of_it
from ..mlprogram.arithmetic import evaluate
from .matrices import factors

ATEN: Final = torch.ops.aten
STFT: Final = ATEN.stft.default
RFFT: Final = ATEN.fft_rfft.default
WINDOWS: Final = {  # by their middle; arguments are a size, and whether it is periodic
    ATEN.hann_window.default: 0.5,
    ATEN.hann_window.periodic: 0.5,
    ATEN.hamming_window.default: 0.54,
    ATEN.hamming_window.periodic: 0.54,
}
MOVES: Final = frozenset(  # what does the same to both parts of complex numbers
    {
        ATEN.alias.default,
        ATEN.clone.default,
        ATEN.contiguous.default,
        ATEN.mT.default,
        ATEN.neg.default,
        ATEN.permute.default,
        ATEN.select.int,
        ATEN.slice.Tensor,
        ATEN.squeeze.dim,
        ATEN.transpose.int,
        ATEN.unsqueeze.default,
        ATEN.view.default,
    }
)
SCALED: Final = frozenset({ATEN.mul.Tensor, ATEN.div.Tensor})  # by real numbers
MOST: Final = 4096  # elements of a transform: twice the square of a prime number's are constants


class Parts:
    """A graph whose complex values become pairs of real ones.

    Attributes:
        program: an ``ExportedProgram``, changed in place.
        pairs: node -> its real and its imaginary part.
        made: what the graph multiplies by, as arithmetic.
    """

    def __init__(self, program: Any) -> None:
        self.program, self.graph = program, program.graph
        self.pairs: dict[Any, tuple[Any, Any]] = {}
        self.made: list[Any] = []

    def call(self, target: Any, *given: Any) -> Any:
        """Return a new node that applies TARGET to what it is GIVEN."""
        node = self.graph.call_function(target, given)
        values = torch.fx.node.map_arg(given, lambda it: it.meta["val"])
        node.meta["val"] = target(*values)
        return node

    def constant(self, made: Any, like: Any) -> Any:
        """Return a new constant, MADE by arithmetic, in the dtype of node LIKE."""
        value = like.meta["val"]
        self.made.append(made)
        found = torch.from_numpy(evaluate(made, none_of_it)).to(value.dtype)
        return constant(self.program, f"turns_{len(self.made)}", found, value)

    def product(self, x: Any, made: Any) -> Any:
        """Return the product of the last axis of X with a constant, MADE by arithmetic, shape (new, old).

        Of what does not lie in order in memory torch makes as many products, each by a constant of its own.
        """
        return self.call(
            ATEN.linear.default, self.call(ATEN.contiguous.default, x), self.constant(made, x)
        )

    def transform(self, x: Any, size: int) -> tuple[Any, Any]:
        """Return the parts of the transform of X along its last axis of SIZE real numbers, not those that repeat."""
        wide, short = factors(size)
        x = self.call(
            ATEN.transpose.int, self.call(ATEN.unflatten.int, x, -1, [wide, short]), -1, -2
        )
        both = self.product(x, ["turns_of_real", float(wide)])
        real, imaginary = self.halves(both, wide)
        if short > 1:
            real, imaginary = self.second(real, imaginary, wide, short)
        kept = size // 2 + 1
        flat = [self.call(ATEN.flatten.using_ints, it, -2, -1) for it in (real, imaginary)]
        real, imaginary = (self.call(ATEN.slice.Tensor, it, -1, 0, kept) for it in flat)
        return real, imaginary

    def halves(self, x: Any, size: int) -> tuple[Any, Any]:
        """Return the first SIZE elements of the last axis of X and the others."""
        first, second = (
            self.call(ATEN.slice.Tensor, x, -1, start, start + size) for start in (0, size)
        )
        return first, second

    def second(self, real: Any, imaginary: Any, wide: int, short: int) -> tuple[Any, Any]:
        """Return the transforms of SHORT numbers of what those of WIDE ones gave, shape (..., SHORT, WIDE)."""
        about = float(wide * short), float(short), float(wide)
        cosine, sine = (self.constant(["turns_between", at, *about], real) for at in (0.0, 1.0))
        mul, sub, add = ATEN.mul.Tensor, ATEN.sub.Tensor, ATEN.add.Tensor
        turned = (
            self.call(sub, self.call(mul, real, cosine), self.call(mul, imaginary, sine)),
            self.call(add, self.call(mul, real, sine), self.call(mul, imaginary, cosine)),
        )
        rows = [self.call(ATEN.transpose.int, it, -1, -2) for it in turned]
        both = self.product(self.call(ATEN.cat.default, rows, -1), ["turns_of_pairs", float(short)])
        one, other = (self.call(ATEN.transpose.int, it, -1, -2) for it in self.halves(both, short))
        return one, other

    def windowed(self, frames: Any, window: Any, width: int, size: int) -> Any:
        """Return FRAMES of SIZE numbers times a WINDOW of WIDTH in their middle, which stays as it is or is made now."""
        middle, left = WINDOWS.get(window.target), (size - width) // 2
        if middle is not None:
            count, periodic = (*window.args, True)[:2]
            made = ["cosines", float(count - (not periodic)), float(count), middle]
            window = self.constant(made, frames)
        inner = self.call(ATEN.slice.Tensor, frames, -1, left, left + width)
        found = self.call(ATEN.mul.Tensor, inner, window)
        ends = [left, size - width - left]
        return self.call(ATEN.constant_pad_nd.default, found, ends) if any(ends) else found

    def stft(self, node: Any) -> tuple[Any, Any]:
        """Return the parts of NODE, a transform of windows."""
        x, size, hop, width, window, normalized = (*node.args, None, None, None, False)[:6]
        frames = self.call(ATEN.unfold.default, x, -1, size, hop or size // 4)
        if window is not None:
            frames = self.windowed(frames, window, width or size, size)
        parts = self.transform(frames, size)
        scaled = [self.call(ATEN.mul.Tensor, it, size**-0.5) if normalized else it for it in parts]
        real, imaginary = (self.call(ATEN.transpose.int, it, -1, -2) for it in scaled)
        return real, imaginary

    def rfft(self, node: Any) -> tuple[Any, Any]:
        """Return the parts of NODE, a transform along one axis."""
        given: list[Any] = [*node.args, *(None, -1, None)[len(node.args) - 1 :]]
        x, size, axis, norm = given
        length = x.meta["val"].shape[axis]
        x = self.call(ATEN.transpose.int, x, axis, -1)
        if size is not None and size < length:
            x = self.call(ATEN.slice.Tensor, x, -1, 0, size)
        elif size is not None and size > length:
            x = self.call(ATEN.constant_pad_nd.default, x, [0, size - length])
        size = length if size is None else size
        factor = {"ortho": size**-0.5, "forward": 1 / size}.get(norm)
        parts = [self.call(ATEN.transpose.int, it, axis, -1) for it in self.transform(x, size)]
        real, imaginary = (self.call(ATEN.mul.Tensor, it, factor) if factor else it for it in parts)
        return real, imaginary

    def real_of(self, node: Any) -> Any:
        """Return what NODE makes of complex numbers, if it makes real ones."""
        real, imaginary = self.pairs[node.args[0]]
        if node.target is ATEN.abs.default:
            squares = (self.call(ATEN.mul.Tensor, it, it) for it in (real, imaginary))
            return self.call(ATEN.sqrt.default, self.call(ATEN.add.Tensor, *squares))
        if node.target is ATEN.angle.default:
            return self.call(ATEN.atan2.default, imaginary, real)
        if node.target is ATEN.view_as_real.default:
            return self.call(ATEN.stack.default, [real, imaginary], -1)
        return real if node.target is ATEN.real.default else imaginary

    def replace(self, node: Any) -> None:
        """Put products or parts in the place of NODE, which makes or takes complex numbers."""
        with self.graph.inserting_before(node):
            if node.target is STFT:
                self.pairs[node] = self.stft(node)
            elif node.target is RFFT:
                self.pairs[node] = self.rfft(node)
            elif node.target in MOVES | SCALED:
                x, *rest = node.args
                real, imaginary = (self.call(node.target, it, *rest) for it in self.pairs[x])
                self.pairs[node] = real, imaginary
            else:
                node.replace_all_uses_with(self.real_of(node))


REAL: Final = frozenset(
    {
        ATEN.abs.default,
        ATEN.angle.default,
        ATEN.imag.default,
        ATEN.real.default,
        ATEN.view_as_real.default,
    }
)


def size_of(node: Any) -> Any:
    """Return of how many numbers NODE, which is a transform, makes one."""
    if node.target is STFT:
        return node.args[1]
    x, size, axis = (*node.args, *(None, -1)[len(node.args) - 1 :])[:3]
    return x.meta["val"].shape[axis] if size is None else size


def is_known(node: Any) -> bool:
    """Say whether NODE, which makes or takes complex numbers, has another form here."""
    if node.kwargs:
        return False
    if node.target in (STFT, RFFT):
        size, x = size_of(node), node.args[0]
        plain = node.target is RFFT or not (False in node.args[6:8] or any(node.args[8:]))
        fixed = all(isinstance(it, int) for it in (size, x.meta["val"].shape[-1]))
        wide = x.meta["val"].dtype is torch.float32
        return plain and fixed and wide and 1 < size <= MOST
    return (
        not any(map(is_complex, node.all_input_nodes[1:])) and node.target in MOVES | SCALED | REAL
    )


def is_complex(node: Any) -> bool:
    """Say whether NODE makes complex numbers."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_complex()


def as_products(program: Any, runtime: str = "") -> Any:
    """Return PROGRAM, an ``ExportedProgram``, with Fourier transforms of fixed sizes as products, in place.

    It stays as it is where sizes vary or something else is computed of the complex numbers.

    Raises:
        UnsupportedError: there is a RUNTIME, which has no complex numbers, and one of these is so.
    """
    found: dict[Any, None] = {}
    for node in program.graph.nodes:
        complex_ones = filter(is_complex, node.all_input_nodes)
        if node.target in (STFT, RFFT) or any(it in found for it in complex_ones):
            found[node] = None
    if unknown := [node.target for node in found if not is_known(node)]:
        if not runtime:
            return program
        raise UnsupportedError(
            f"{runtime} has no complex numbers: of torch.stft and torch.fft.rfft of float32 and fixed sizes up to {MOST} take abs(),"
            f" .real, .imag, angle() or torch.view_as_real alone, not {unknown[0]}"
        )
    if not found:
        return program
    parts = Parts(program)
    for node in found:
        parts.replace(node)
    program.graph.eliminate_dead_code()
    notes = program.graph_module.meta
    notes[MATRICES] = [*notes.get(MATRICES, []), *parts.made]
    program.graph_module.recompile()
    return program
