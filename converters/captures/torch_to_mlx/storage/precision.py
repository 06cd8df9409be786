"""The census of dtypes: in which ones a captured module stores, and in which ones it computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import mlx.core as mx
from mlx.utils import tree_flatten

from ..dispatch import Call
from ..recording.recorded import Recording
from .wiring import Wiring


class Dtypes(NamedTuple):
    """How often each dtype occurs.

    Attributes:
        trainable: dtype -> number of arrays that can be trained.
        frozen: dtype -> number of arrays that cannot: buffers, frozen parameters, codes and scales.
        operations: dtype of the result -> operation -> number of steps.
    """

    trainable: Mapping[str, int]
    frozen: Mapping[str, int]
    operations: Mapping[str, Mapping[str, int]]


def name_of(dtype: mx.Dtype) -> str:
    """Return the name of DTYPE.

    >>> name_of(mx.bfloat16)
    'bfloat16'
    """
    return str(dtype).rpartition(".")[2]


def dtypes_of(wiring: Wiring, recording: Recording) -> Dtypes:
    """Count the dtypes of the module of WIRING, as RECORDING computes."""
    root: Any = wiring.root
    every = dict(tree_flatten(root.parameters()))
    trained = dict(tree_flatten(root.trainable_parameters()))
    operations: dict[str, Counter[str]] = {}
    for step in recording.graph.steps:
        dtypes = step.run.dtypes if isinstance(step.run, Call) else None
        for dtype in dtypes if isinstance(dtypes, tuple | list) else [dtypes]:
            if isinstance(dtype, mx.Dtype):
                operations.setdefault(name_of(dtype), Counter())[step.operation] += 1
    return Dtypes(
        Counter(name_of(array.dtype) for array in trained.values()),
        Counter(name_of(array.dtype) for name, array in every.items() if name not in trained),
        operations,
    )
