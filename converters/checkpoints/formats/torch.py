"""PyTorch's pickled checkpoints, read as data: whatever asks for code is refused, nothing is called."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from ....errors import BadInputError, UnsupportedError, UntrustedError
from ...common.dtypes import CODE, FLOATS, NUMPY, dtype_of
from ...values import Array
from ..base import Header, is_shape
from .pickles import CodeError, Made, Named, PickleError
from .ranges import chunks, gather
from .storages import Storage, open_source

_NESTED: Final = ("state_dict", "model_state_dict")  # where training frameworks put the weights
_REBUILD: Final = "torch._utils._rebuild_"
_WRAPPERS: Final = frozenset({f"{_REBUILD}parameter", f"{_REBUILD}parameter_with_state"})
_DENSE: Final = frozenset(f"{_REBUILD}tensor{version}" for version in ("", "_v2", "_v3"))
_TYPED: Final = "torch._tensor._rebuild_from_type_v2"  # a tensor with attributes
_PLAIN: Final = frozenset({"torch.Tensor", "torch.nn.parameter.Parameter"})
_SIGNED: Final = {
    "C64": frozenset({"conj", "neg"}),
    **dict.fromkeys(("F16", "BF16", "F32", "F64"), frozenset({"neg"})),
}
_TRAINED: Final = {*_SIGNED, *FLOATS}  # what may require gradients
MOST_REPEATED: Final = 64 << 20  # bytes of a tensor that repeats those of its storage


class View(NamedTuple):
    """A tensor: some of the numbers of a storage.

    Attributes:
        storage: its numbers.
        header: dtype and shape.
        offset: place of the first number.
        strides: from one number to the next along each axis.
        signs: what is still to be done to the numbers: ``conj``, ``neg``.
    """

    storage: Storage
    header: Header
    offset: int
    strides: tuple[int, ...]
    signs: frozenset[str]

    @property
    def end(self) -> int:
        """The place after its last number."""
        steps = zip(self.header.shape, self.strides, strict=True)
        return self.offset + 1 + sum((size - 1) * stride for size, stride in steps)

    @property
    def plain(self) -> bool:
        """Whether its bytes lie in the storage as they are, in C order."""
        step = 1
        for size, stride in zip(reversed(self.header.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != step:
                return not self.header.nbytes
            step *= size
        return not self.signs


class TorchFile:
    """One file written by ``torch.save``; storages stay on disk until a tensor is read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files: tuple[Path, ...] = (path,)
        self.ignored: tuple[Path, ...] = ()
        self.metadata: Mapping[str, str] = {}
        try:
            self._source = open_source(path)
        except CodeError as error:
            names = ", ".join(error.args)
            raise UntrustedError(
                f"{path}: unpickling it would run {names}; save tensors only, best as safetensors"
            ) from error
        except PickleError as error:
            raise BadInputError(f"{path}: not a readable PyTorch file ({error})") from error
        tensors = _state_dict(path, self._source.content)
        self._views = {n: _view(f"{path}: tensor {n}", made) for n, made in tensors.items()}
        self.headers: Mapping[str, Header] = {n: view.header for n, view in self._views.items()}

    def read(self, name: str) -> Array:
        """Return tensor NAME as an array of its own."""
        view = self._views[name]
        header, dtype = view.header, NUMPY[view.header.dtype]
        if view.plain:
            return gather(self._raw(view), header.nbytes).view(dtype).reshape(header.shape)
        numbers = gather(self._raw(view), (view.end - view.offset) * dtype.itemsize).view(dtype)
        steps = [stride * dtype.itemsize for stride in view.strides]
        array = np.lib.stride_tricks.as_strided(numbers, header.shape, steps, writeable=False)
        array = np.conjugate(array) if "conj" in view.signs else array
        return np.negative(array) if "neg" in view.signs else array.copy(order="C")

    def stream(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[memoryview]:
        """Yield the bytes START to STOP of tensor NAME, at most ``CHUNK`` at a time."""
        view = self._views[name]
        stop = view.header.nbytes if stop is None else stop
        return self._raw(view, start, stop) if view.plain else chunks(self.read(name), start, stop)

    def _raw(self, view: View, start: int = 0, stop: int | None = None) -> Iterator[memoryview]:
        """Yield the bytes of the storage from VIEW's first number to its last."""
        item = NUMPY[view.header.dtype].itemsize
        count = (view.end - view.offset) * item if view.header.nbytes else 0
        begin = view.offset * item
        return self._source.stream(
            view.storage.key, begin + start, begin + (count if stop is None else stop)
        )


def _state_dict(path: Path, content: Any) -> dict[str, Made]:
    """Return the tensors of CONTENT by name, each as what would make it.

    Raises:
        BadInputError: there is no state dict, or more than tensors in it.
    """
    for key in _NESTED:
        content = content.get(key, content) if isinstance(content, dict) else content
    if not isinstance(content, dict) or not content:
        kind = "tensor" if isinstance(content, Made) else type(content).__name__
        raise BadInputError(f"{path}: holds no state dict but a {kind}")
    found = {str(name): _unwrapped(value) for name, value in content.items()}
    strange = sorted(n for n, made in found.items() if not _is_tensor(made))
    if strange:
        raise BadInputError(f"{path}: not tensors: {', '.join(strange)}; save the state dict alone")
    if len(found) < len(content):
        raise BadInputError(f"{path}: names two tensors alike, one by a number and one by a text")
    return found


def _unwrapped(value: Any) -> Any:
    """Return what makes a parameter's tensor, or that of a tensor with attributes."""
    while isinstance(value, Made):
        match value:
            case Made(name, (inner, *_)) if name in _WRAPPERS:
                value = inner
            case Made(name, (Named(function), Named(kind), tuple(arguments), *_)) if (
                name == _TYPED and kind in _PLAIN
            ):
                value = Made(function, arguments)
            case _:
                break
    return value


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Made) and value.function.startswith((_REBUILD, _TYPED))


def _view(where: str, made: Made) -> View:
    """Return the tensor WHERE that MADE describes, after checking that its storage has it whole."""
    if made.function not in _DENSE:
        raise UnsupportedError(f"{where} is sparse or quantized; save it dense")
    match made.arguments:
        case (Storage() as storage, int(offset), tuple(shape), tuple(strides), *rest):
            view = View(
                storage, _header(where, storage, shape, rest), offset, strides, _signs(rest)
            )
        case _:
            raise BadInputError(f"{where}: not described as torch.save does")
    if len(strides) != len(shape) or not all(
        type(it) is int and 0 <= it < 2**62 for it in (offset, *strides)
    ):
        raise BadInputError(
            f"{where}: strides {list(strides)} and offset {offset} are not possible"
        )
    if rest and rest[0] and view.header.dtype not in _TRAINED:
        raise BadInputError(f"{where}: {view.header} cannot require gradients")
    if not view.signs <= _SIGNED.get(view.header.dtype, frozenset()):
        raise BadInputError(f"{where}: {view.header} has no sign to change")
    size = storage.nbytes // NUMPY[view.header.dtype].itemsize
    if view.header.nbytes and view.end > size:
        raise BadInputError(f"{where}: {view.header} ends beyond its storage of {size:,} numbers")
    if view.header.nbytes > max(storage.nbytes, MOST_REPEATED):
        raise BadInputError(
            f"{where}: {view.header} repeats a storage of {size:,} numbers; save it contiguous"
        )
    return view


def _header(where: str, storage: Storage, shape: tuple[Any, ...], rest: list[Any]) -> Header:
    named = [value.name for value in rest if isinstance(value, Named)]  # only version 3 names one
    kind = named[0].removeprefix("torch.") if named else storage.dtype
    if not is_shape(shape):
        raise BadInputError(f"{where}: shape {list(shape)} is not possible")
    try:
        return Header(CODE[dtype_of(kind)], shape)
    except (KeyError, TypeError):
        raise UnsupportedError(f"{where}: dtype {kind} is not supported") from None


def _signs(rest: list[Any]) -> frozenset[str]:
    """Return what of REST, the arguments after the strides, changes about the numbers' signs."""
    attributes = rest[-1] if rest and isinstance(rest[-1], dict) else {}
    return frozenset(sign for sign in ("conj", "neg") if attributes.get(sign))
