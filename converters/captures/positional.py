"""A torch module recorded with the inputs and outputs of a signature, by position, for an exporter."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final
from unittest import mock

import torch
from torch import Tensor

from ...errors import BadInputError, UnsupportedError, WeighbridgeError
from ..common.memory import pass_on_shortage
from ..common.users_code import fault_of, first_line
from ..models.factories import copied
from ..models.signature import Port, Signature
from .throughout import throughout
from .tracing import unused_left_out

EXPERTS: Final = "_experts_implementation_internal"  # in a configuration of transformers
OWN: Final = {"int64": torch.int64, "bool": torch.bool}  # what files have another dtype for
UPPER: Final = 32  # flexible sizes need a bound, and a signature need not give one


class Positional(torch.nn.Module):
    """A module with the inputs and outputs of a signature, by position; outputs in floating point are float32.

    Inputs of int64 may arrive as int32, booleans as either; the module gets them as it takes them.

    Attributes:
        integers: dtype of outputs that are integers or booleans.
    """

    integers = torch.int64

    def __init__(self, module: torch.nn.Module, signature: Signature) -> None:
        super().__init__()
        self.module = module
        self.names = tuple(port.name for port in signature.inputs)
        self.dtypes = tuple(OWN.get(port.dtype) for port in signature.inputs)
        self.outputs = tuple(port.name for port in signature.outputs)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Call the module by name and return its outputs in the order of the signature."""
        named = zip(self.names, inputs, self.dtypes, strict=True)
        result = self.call({name: x.to(own) if own else x for name, x, own in named})
        if isinstance(result, Tensor):
            result = (result,)
        if isinstance(result, Mapping):
            result = tuple(result[name] for name in self.outputs)
        return tuple(map(self.as_output, self.outputs, result))

    def as_output(self, name: str, output: Tensor) -> Tensor:
        """Return OUTPUT, called NAME, in a dtype that files have.

        Raises:
            UnsupportedError: it is complex.
        """
        if output.is_complex():
            raise UnsupportedError(f"{name} is complex: return torch.view_as_real of it")
        return output.float() if output.is_floating_point() else output.to(self.integers)

    def call(self, named: Mapping[str, Tensor]) -> Any:
        """Call the module with its inputs by name."""
        return self.module(**named)


def require_axes(signature: Signature, runtime: str) -> None:
    """Refuse inputs of SIGNATURE that are one number without axes, which RUNTIME does not take.

    Raises:
        UnsupportedError: there are such inputs.
    """
    if alone := [port.name for port in signature.inputs if not port.shape]:
        raise UnsupportedError(
            f"{runtime} takes no input without axes, as {', '.join(alone)}: give it the shape (1,)"
        )


class Halved(Positional):
    """A module in float16; inputs in floating point are rounded for it.

    One that stops in float16, where it asks for float32 by name, is in float16 throughout.
    """

    def fitted(self, inputs: tuple[Tensor, ...]) -> None:
        """Find out by INPUTS whether the module asks for float32."""
        try:
            self(*inputs)
        except Exception as error:  # whatever a user's module raises
            pass_on_shortage(error)
            throughout(self.module, torch.float16)

    def call(self, named: Mapping[str, Tensor]) -> Any:
        """Call the module with its inputs by name."""
        narrow = {n: x.half() if x.is_floating_point() else x for n, x in named.items()}
        return super().call(narrow)


def in_precision(
    module: torch.nn.Module, precision: str
) -> tuple[torch.nn.Module, type[Positional]]:
    """Return MODULE, a rounded copy for ``float16``, and what ``record`` is to wrap it in."""
    if precision == "float32":
        return module, Positional
    from ..runtimes.torch import cast

    return cast(copied(module), precision).eval(), Halved


def bounds(signature: Signature, upper: Mapping[str, int]) -> dict[str, int]:
    """Return the largest size of every named dimension: UPPER's, the signature's, or 32.

    Raises:
        BadInputError: UPPER names dimensions that are not there, or is above what the signature allows.
    """
    found: dict[str, int] = {}
    for port in signature.inputs:
        for size in port.shape:
            if isinstance(size, str):
                found[size] = upper.get(size, port.limit(size, found.get(size, UPPER)))
    if strange := sorted(set(upper) - set(found)):
        known = ", ".join(sorted(found)) or "none"
        raise BadInputError(f"no dimension {', '.join(strange)}; the signature's are {known}")
    limits = {
        (size, port.limit(size, most)) for port in signature.inputs for size, most in found.items()
    }
    if high := sorted(
        f"{size}={found[size]} (at most {it})" for size, it in limits if found[size] > it
    ):
        raise BadInputError(f"the model takes no input of such a size: {', '.join(high)}")
    return found


def bounded(signature: Signature, limits: Mapping[str, int]) -> Signature:
    """Return SIGNATURE with LIMITS as the largest sizes, as the exported file has it."""

    def narrow(port: Port) -> Port:
        return replace(port, upper=tuple({**dict(port.upper), **limits}.items()))

    return replace(signature, inputs=tuple(map(narrow, signature.inputs)))


def example_sizes(limits: Mapping[str, int]) -> dict[str, int]:
    """Return a small size for every dimension, all different, so that no two are taken for one.

    >>> example_sizes({"batch": 8, "sequence": 512, "channels": 1})
    {'batch': 2, 'sequence': 3, 'channels': 1}
    """
    return {name: min(limit, i) for i, (name, limit) in enumerate(limits.items(), start=2)}


def example(port: Port, sizes: Mapping[str, int], integers: torch.dtype = torch.int32) -> Tensor:
    """Return an input for PORT: random floats, ones for INTEGERS (a mask that hides nothing)."""
    shape = [sizes[size] if isinstance(size, str) else size for size in port.shape]
    if port.dtype.startswith(("int", "uint", "bool")):
        return torch.ones(shape, dtype=integers)
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def record(
    module: torch.nn.Module,
    signature: Signature,
    limits: Mapping[str, int],
    integers: torch.dtype = torch.int32,
    wrapper: Callable[[torch.nn.Module, Signature], Positional] = Positional,
) -> Any:
    """Return the ``ExportedProgram`` of MODULE in WRAPPER with the signature's flexible sizes.

    Integers, of inputs and outputs, are INTEGERS.

    Raises:
        UnsupportedError: torch.export cannot record it.
    """
    sizes = example_sizes(limits)
    dims = {n: torch.export.Dim(n, min=1, max=limit) for n, limit in limits.items() if limit > 1}
    dynamic = tuple(
        {axis: dims[size] for axis, size in enumerate(port.shape) if size in dims}
        for port in signature.inputs
    )
    inputs = tuple(example(port, sizes, integers) for port in signature.inputs)
    try:
        # Of what it cannot record torch prints the whole graph to stderr.
        unread = contextlib.redirect_stderr(io.StringIO())
        with warnings.catch_warnings(), torch.no_grad(), unread, experts_chosen(module):
            warnings.simplefilter("ignore")
            whole = wrapper(module.eval(), signature).eval()
            whole.integers = integers
            if isinstance(whole, Halved):
                whole.fitted(inputs)
            with unused_left_out(varying=bool(dims)):
                return torch.export.export(whole, inputs, dynamic_shapes=(dynamic,))
    except WeighbridgeError:
        raise
    except Exception as error:
        pass_on_shortage(error)
        raise UnsupportedError(unrecorded(error, wrapper, varying=bool(dims))) from error


def unrecorded(error: Exception, wrapper: Any, *, varying: bool) -> str:
    """Return what ERROR says of a module that is called by WRAPPER, and what to try, with sizes VARYING or not."""
    halved = isinstance(wrapper, type) and issubclass(wrapper, Halved)
    where = " in float16" if halved else ""
    precise = "; if it needs float32 there, export it by --precision fp32" if halved else ""
    sized = "; where a size cannot vary, give it a fixed number in the signature" if varying else ""
    fault = fault_of(error) or first_line(error)
    return f"torch.export cannot record the module{where}: {fault}{precise}{sized}"


def record_layers(known: bool, *asked: Any) -> Any:
    """Return what ``record`` does of what is ASKED, recurrent layers as one operation each where it fails.

    torch writes them out step by step, which fixes their length. They are KNOWN where the format has
    translations of all that the module has; the scans of Mamba every format has.
    """
    try:
        return record(*asked)
    except UnsupportedError:
        from .scans import scanned

        if not known and not scanned(asked[0]):
            raise
        from .torch_to_mlx.operations.recurrent.recorded import kept_whole

        with kept_whole():
            return record(*asked)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep warnings and log lines of an exporter to itself."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def experts_chosen(module: torch.nn.Module) -> Iterator[None]:
    """Let transformers' MODULE look up the weights of each token's experts, in the block.

    What it does by itself depends on how many tokens an expert gets, which no graph can record.
    """
    with contextlib.ExitStack() as stack:
        for part in module.modules():
            own = getattr(getattr(part, "config", None), "__dict__", {})
            if EXPERTS in own:
                stack.enter_context(mock.patch.dict(own, {EXPERTS: "batched_mm"}))
        yield
