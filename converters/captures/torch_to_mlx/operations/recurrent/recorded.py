"""Recurrent layers kept whole while ``torch.export`` records a module.

torch unrolls them over time, which fixes the length, and cannot record packed sequences at all, whose
shapes depend on values. Here each is one operation of the graph, and a packed sequence stays padded: its
data has shape ``(time, batch, ...)``, and the lengths travel in the place of ``batch_sizes``.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch.fx import Node

from ......errors import UnsupportedError

_FORM: Final = (
    "Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, "
    "bool batch_first"
)
SCHEMAS: Final = {
    "lstm": f"(Tensor input, Tensor? lengths, Tensor[] hx, {_FORM}) -> (Tensor, Tensor, Tensor)",
    **dict.fromkeys(
        ("gru", "rnn_tanh", "rnn_relu"),
        f"(Tensor input, Tensor? lengths, Tensor hx, {_FORM}) -> (Tensor, Tensor)",
    ),
    "ctc_loss": "(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, "
    "int blank, bool zero_infinity) -> Tensor",
    "linear_scan": "(Tensor decay, Tensor added, int dim) -> Tensor",
    "delta_rule": "(Tensor query, Tensor key, Tensor value, Tensor decay, Tensor beta) -> Tensor",
    "pack": "(Tensor input, Tensor lengths, bool batch_first) -> Tensor",
    "pad": "(Tensor data, Tensor lengths, bool batch_first, float value, SymInt total, bool whole)"
    " -> Tensor",
}
LAYERS: Final = ("lstm", "gru", "rnn_tanh", "rnn_relu")
for _name, _schema in SCHEMAS.items():  # with the tag, passes neither merge nor compute them
    torch.library.define(
        f"weighbridge::{_name}", _schema, tags=(torch.Tag.nondeterministic_seeded,)
    )
OPERATIONS: Final[Any] = torch.ops.weighbridge


def _layer_shapes(x: Tensor, _: Tensor | None, hx: Any, *rest: Any) -> tuple[Tensor, ...]:
    """Return tensors like what a recurrent layer returns."""
    states = [hx] if isinstance(hx, Tensor) else hx
    directions = 1 + rest[5]
    output = x.new_empty(*x.shape[:2], directions * states[0].shape[-1])
    return (output, *(torch.empty_like(state) for state in states))


def _pack_shape(x: Tensor, _: Tensor, batch_first: bool) -> Tensor:
    return torch.empty_like(x.transpose(0, 1) if batch_first else x).contiguous()


def _pad_shape(data: Tensor, _: Tensor, batch_first: bool, *rest: Any) -> Tensor:
    shape = (rest[1], *data.shape[1:])
    return data.new_empty((shape[1], shape[0], *shape[2:]) if batch_first else shape)


for _name in LAYERS:
    torch.library.register_fake(f"weighbridge::{_name}", _layer_shapes)
torch.library.register_fake(
    "weighbridge::linear_scan", lambda _, added, __: torch.empty_like(added)
)
torch.library.register_fake(
    "weighbridge::delta_rule", lambda _, __, value, *___: value.new_empty(value.shape)
)
torch.library.register_fake("weighbridge::ctc_loss", lambda x, *_: x.new_empty(x.shape[1]))
torch.library.register_fake("weighbridge::pack", _pack_shape)
torch.library.register_fake("weighbridge::pad", _pad_shape)


def _ctc_loss(  # noqa: PLR0913, PLR0917 - torch's
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> Tensor:
    """Do as ``torch.ctc_loss``, whose kernel looks at the lengths; REDUCTION is torch's code."""
    batched = log_probs.ndim == 3
    lengths, labels = (torch.as_tensor(x).reshape(-1) for x in (input_lengths, target_lengths))
    probs = log_probs if batched else log_probs.unsqueeze(1)
    losses: Tensor = OPERATIONS.ctc_loss(probs, targets, lengths, labels, blank, zero_infinity)
    if reduction == 1:
        return (losses / labels.clamp(min=1)).mean()
    return losses.sum() if reduction == 2 or not batched else losses


class Longest:
    """The length of the longest sequence, which nothing knows while a module is recorded."""

    def __gt__(self, total: object) -> bool:
        """Let torch take any TOTAL; whether the sequences fit is seen when they are there."""
        return False


@dataclass(frozen=True)
class Lengths:
    """What stands for ``batch_sizes``: the lengths of the sequences, and the sizes torch asks for."""

    lengths: Tensor
    batch: int | torch.SymInt
    device: torch.device = torch.device("cpu")  # noqa: RUF009 - it never changes

    def __getitem__(self, index: int) -> Any:
        """Return the number of sequences that have a first step."""
        if index != 0:
            raise TypeError("only the first of a packed sequence's batch sizes is known")
        return self.batch

    def size(self, axis: int) -> Longest:  # noqa: ARG002 - as a tensor has it
        """Return the number of steps."""
        return Longest()


def _pack(x: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Lengths]:
    data = OPERATIONS.pack(x, lengths, batch_first)
    return data, Lengths(lengths, data.shape[1])


def _pad(
    data: Tensor, sizes: Lengths, batch_first: bool, value: float, total: int | Longest
) -> tuple[Tensor, Tensor]:
    whole = isinstance(total, Longest)
    size = data.shape[0] if whole else total
    return OPERATIONS.pad(data, sizes.lengths, batch_first, value, size, whole), sizes.lengths


def _layer(name: str) -> Callable[..., Any]:
    operation = getattr(OPERATIONS, name)

    def run(x: Tensor, *rest: Any) -> Any:
        if isinstance(rest[0], Lengths):
            return operation(x, rest[0].lengths, *rest[1:], False)
        return operation(x, None, *rest)

    return run


def _checked(check: Callable[..., None]) -> Callable[..., None]:
    """Let CHECK see no packed input, which it knows in torch's shape only."""

    def run(self: nn.RNNBase, x: Tensor, hidden: Any, sizes: Any) -> None:
        if not isinstance(sizes, Lengths):
            check(self, x, hidden, sizes)

    return run


SCANNED: Final = ("mamba",)  # of transformers


def _scan(combine: Any, operands: Any, dim: int, **options: Any) -> Any:
    """Stand for ``associative_scan`` where transformers' Mambas call it, for a linear recurrence."""
    if combine.__module__ not in {f"transformers.models.{n}.modeling_{n}" for n in SCANNED}:
        return associative_scan(combine, operands, dim, **options)
    return None, OPERATIONS.linear_scan(*operands, dim)


def _scans_whole(stack: ExitStack) -> None:
    """Let Mambas of transformers that are loaded take their own way without a loop over time."""
    for name in SCANNED:
        module = sys.modules.get(f"transformers.models.{name}.modeling_{name}")
        if hasattr(module, "is_torchdynamo_compiling") and hasattr(
            module, "is_torchdynamo_exporting"
        ):
            stack.enter_context(patch.object(module, "is_torchdynamo_compiling", lambda: True))
            stack.enter_context(patch.object(module, "is_torchdynamo_exporting", lambda: False))
            owner = sys.modules[associative_scan.__module__]
            stack.enter_context(patch.object(owner, "associative_scan", _scan))


RULES: Final = {"torch_chunk_gated_delta_rule", "chunk_kimi_delta_attention"}  # of transformers


def _rule(module: Any, own: Callable[..., Any]) -> Callable[..., Any]:
    """Return what stands for OWN, a delta rule of MODULE, which loops over steps and chunks."""

    def run(query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, **rest: Any) -> Any:
        if rest.get("initial_state") is not None or rest.get("output_final_state"):
            return own(query, key, value, g=g, beta=beta, **rest)
        dtype, times = query.dtype, value.shape[2] // key.shape[2]
        query, key = (x.repeat_interleave(times, 2) if times > 1 else x for x in (query, key))
        query, key, value, g, beta = (x.float() for x in (query, key, value, g, beta))
        if rest.get("use_qk_l2norm_in_kernel"):
            query, key = (module.l2norm(x, dim=-1, eps=1e-6) for x in (query, key))
        decay = g if g.ndim == key.ndim else g[..., None]
        scaled = query * query.shape[-1] ** -0.5
        return OPERATIONS.delta_rule(scaled, key, value, decay, beta[..., None]).to(dtype), None

    return run


def _rules_whole(stack: ExitStack) -> None:
    """Let models of transformers that are loaded compute their delta rule as one operation."""
    loaded = [it for name, it in sys.modules.items() if name.startswith("transformers.models.")]
    for module in loaded:
        for name in RULES & vars(module).keys():
            stack.enter_context(patch.object(module, name, _rule(module, vars(module)[name])))


@contextmanager
def kept_whole() -> Iterator[None]:
    """Record recurrent layers, packed sequences and losses over alignments as one operation each."""
    functions = {
        **{name: _layer(name) for name in LAYERS},
        "_pack_padded_sequence": _pack,
        "_pad_packed_sequence": _pad,
    }
    with ExitStack() as stack:
        for name, function in functions.items():
            stack.enter_context(patch.object(torch._VF, name, function, create=True))
        for owner in (nn.RNNBase, nn.LSTM):
            check = _checked(owner.check_forward_args)
            stack.enter_context(patch.object(owner, "check_forward_args", check))
        stack.enter_context(patch.object(torch, "ctc_loss", _ctc_loss))
        _scans_whole(stack)
        _rules_whole(stack)
        yield


ROW_BY_ROW: Final = frozenset(
    f"aten.{name}.default"
    for name in [
        "alias",
        "clone",
        "detach",
        "dropout",
        "embedding",
        "gelu",
        "layer_norm",
        "leaky_relu",
        "linear",
        "native_dropout",
        "relu",
        "sigmoid",
        "silu",
        "tanh",
        "_to_copy",
    ]
)


def _stays_packed(node: Node) -> bool:
    """Tell whether NODE, which takes data of a packed sequence, gives such data in turn."""
    if node.target is operator.getitem:
        return bool(node.args[1] == 0)
    name = str(node.target)
    layer = name.removeprefix("weighbridge.").removesuffix(".default") in LAYERS
    if name in ROW_BY_ROW or (layer and node.args[1] is not None):
        return True
    raise UnsupportedError(
        f"{name} takes the data of a packed sequence, which a capture keeps padded: "
        "use pad_packed_sequence before it"
    )


def check_packed(graph: torch.fx.Graph) -> None:
    """Refuse a graph in which padding would change what is computed from packed sequences."""
    packed: set[Node] = set()
    for node in graph.nodes:
        name = str(node.target)
        takes = bool(packed & set(node.all_input_nodes)) and name != "weighbridge.pad.default"
        if name == "weighbridge.pack.default" or (takes and _stays_packed(node)):
            packed.add(node)
