"""Losses; classes lie along axis 1, or 0 where there is no batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import mlx.core as mx

from ...dtypes import is_float
from ..elementwise.elementary import exp, softplus
from ..elementwise.kinks import clamp, relu, xlogy
from ..gradients import elementwise, where
from ..reductions import log_softmax
from ..registry import operation, register
from .linear import matmul

NONE, MEAN, SUM = 0, 1, 2  # torch's codes of a reduction
NEVER: Final = -(2**63)  # the class to ignore where none is to be
_REDUCTIONS: Final[dict[int, Callable[[mx.array], mx.array]]] = {
    NONE: lambda loss: loss,
    MEAN: mx.mean,
    SUM: mx.sum,
}


def _elementwise(loss: Callable[..., mx.array]) -> Callable[..., mx.array]:
    """Make a handler of LOSS (prediction, target, options) -> loss per element."""

    def reduced(
        self: mx.array, target: mx.array, reduction: int = MEAN, **options: Any
    ) -> mx.array:
        return _REDUCTIONS[reduction](loss(self, target, **options))

    return reduced


def _smooth_l1(x: mx.array, y: mx.array, beta: float = 1.0) -> mx.array:
    gap = mx.abs(x - y)
    if beta == 0:
        return gap
    return mx.where(gap < beta, 0.5 * gap * gap / beta, gap - 0.5 * beta)


def _huber(x: mx.array, y: mx.array, delta: float = 1.0) -> mx.array:
    gap = mx.abs(x - y)
    return mx.where(gap <= delta, 0.5 * gap * gap, delta * (gap - 0.5 * delta))


def _kl(x: mx.array, y: mx.array, log_target: bool = False) -> mx.array:
    if log_target:
        return exp(y) * (y - x)
    return xlogy(y, y) - y * x


def _bce(x: mx.array, y: mx.array, weight: mx.array | None = None) -> mx.array:
    loss = _cross_entropy_of_two(x, y)
    return loss if weight is None else loss * weight


def _of_two(x: mx.array, y: mx.array) -> mx.array:
    """Clamp logarithms at -100 as torch does."""
    return -(y * mx.maximum(mx.log(x), -100) + (1 - y) * mx.maximum(mx.log1p(-x), -100))


_cross_entropy_of_two = elementwise(
    _of_two,
    lambda g, _, x, y: (
        g * (x - y) / mx.maximum((1 - x) * x, 1e-12),
        g * (mx.log1p(-x) - mx.log(x)),
    ),
)


def _bce_with_logits(
    x: mx.array,
    y: mx.array,
    weight: mx.array | None = None,
    pos_weight: mx.array | None = None,
) -> mx.array:
    positive = 1 if pos_weight is None else 1 + (pos_weight - 1) * y
    loss = (1 - y) * x + positive * softplus(-x)
    return loss if weight is None else loss * weight


def _hinge(x: mx.array, y: mx.array, margin: float = 1.0) -> mx.array:
    """Return X where Y is 1, what it lacks of MARGIN where Y is -1, and both elsewhere."""
    lacking, zeros = clamp(margin - x, low=0), mx.zeros_like(x)
    return mx.where(y != 1, lacking, zeros) + mx.where(y != -1, x, zeros)


register(
    {
        "hinge_embedding_loss": _elementwise(_hinge),
        "mse_loss": _elementwise(lambda x, y: (x - y) * (x - y)),
        "l1_loss": _elementwise(lambda x, y: mx.abs(x - y)),
        "smooth_l1_loss": _elementwise(_smooth_l1),
        "huber_loss": _elementwise(_huber),
        "kl_div": _elementwise(_kl),
        "soft_margin_loss": _elementwise(lambda x, y: softplus(-x * y)),
        "binary_cross_entropy": _elementwise(_bce),
        "binary_cross_entropy_with_logits": _elementwise(_bce_with_logits),
    },
    promote="result",
)


def _class_axis(x: mx.array) -> int:
    return 0 if x.ndim == 1 else 1


def _class_weights(x: mx.array, weight: mx.array | None) -> mx.array:
    """Return WEIGHT shaped along the classes of X."""
    weight = mx.ones((x.shape[_class_axis(x)],), x.dtype) if weight is None else weight
    return weight.reshape([-1 if axis == _class_axis(x) else 1 for axis in range(x.ndim)])


class _Targets(NamedTuple):
    """Classes, 0 for those that are ignored, what each counts, and whether it does; ``None`` where all count alike."""

    classes: mx.array
    weights: mx.array | None
    counted: mx.array | None

    def reduce(self, loss: mx.array, reduction: int) -> mx.array:
        """Reduce what counts of LOSS; the mean is over the weights."""
        each = loss if self.weights is None else loss * self.weights
        each = self.only(each)
        return self.mean(each) if reduction == MEAN else _REDUCTIONS[reduction](each)

    def mean(self, each: mx.array) -> mx.array:
        """Return the sum of EACH over that of the weights, NaN where these are all 0."""
        return mx.mean(each) if self.weights is None else mx.sum(each) / mx.sum(self.weights)

    def only(self, loss: mx.array) -> mx.array:
        """Return LOSS, 0 where it is ignored: it may be infinite there."""
        return loss if self.counted is None else where(self.counted, loss, 0)


def _targets(
    target: mx.array, weight: mx.array | None, ignore_index: int, dtype: mx.Dtype
) -> _Targets:
    if ignore_index == NEVER:
        return _Targets(target, None if weight is None else weight[target], None)
    counted = target != ignore_index
    classes = mx.where(counted, target, mx.zeros_like(target))
    weights = counted.astype(dtype)
    return _Targets(classes, weights if weight is None else weights * weight[classes], counted)


@operation("nll_loss_nd", "nll_loss", "nll_loss2d")
def _nll(
    self: mx.array,
    target: mx.array,
    weight: mx.array | None = None,
    reduction: int = MEAN,
    ignore_index: int = -100,
) -> mx.array:
    targets = _targets(target, weight, ignore_index, self.dtype)
    return targets.reduce(-_picked(self, targets.classes), reduction)


def _picked(x: mx.array, classes: mx.array) -> mx.array:
    axis = _class_axis(x)
    return mx.take_along_axis(x, mx.expand_dims(classes, axis), axis=axis).squeeze(axis)


@operation("cross_entropy_loss")
def _cross_entropy(
    self: mx.array,
    target: mx.array,
    weight: mx.array | None = None,
    reduction: int = MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> mx.array:
    """Compare logits with classes or, where TARGET is floating, with their probabilities."""
    axis = _class_axis(self)
    if weight is None and not label_smoothing and _fusible(self, target):
        targets = _targets(target, None, ignore_index, self.dtype)
        return targets.reduce(
            mx.fast.cross_entropy(self, targets.classes).astype(self.dtype), reduction
        )
    logs = log_softmax(self, axis)
    if is_float(target):
        return _soft_cross_entropy(logs, target, weight, reduction, label_smoothing)
    hard = _nll(logs, target, weight, reduction, ignore_index)
    if not label_smoothing:
        return hard
    targets = _targets(target, weight, ignore_index, self.dtype)
    spread = targets.only(-mx.sum(logs * _class_weights(self, weight), axis=axis))
    smooth = targets.mean(spread) if reduction == MEAN else _REDUCTIONS[reduction](spread)
    return (1 - label_smoothing) * hard + label_smoothing / self.shape[axis] * smooth


@operation("torch_nn._linear_cross_entropy_batch_chunked_no_reduction.default")
def _linear_cross_entropy(  # noqa: PLR0913, PLR0917 - the schema's
    input_: mx.array,
    linear_weight: mx.array,
    target: mx.array,
    linear_bias: mx.array | None,
    weight: mx.array | None,
    ignore_index: int,
    reduction: str = "none",
    **_: Any,
) -> mx.array:
    """Classify and compare in one; torch's chunks and how it adds them up change no value."""
    logits = matmul(input_, linear_weight.T)
    logits = logits if linear_bias is None else logits + linear_bias
    kind = ["none", "mean", "sum"].index(reduction)
    return _cross_entropy(logits, target, weight, kind, ignore_index)


operation("torch_nn._linear_cross_entropy_batch_chunked.default")(
    lambda input_, **options: (_linear_cross_entropy(input_, **options), None, None, None)
)


def _fusible(logits: mx.array, target: mx.array) -> bool:
    """Tell whether MLX's kernel applies: on the CPU it has none."""
    on_gpu = mx.default_device().type != mx.DeviceType.cpu
    return on_gpu and logits.ndim <= 2 and not is_float(target)


def _soft_cross_entropy(
    logs: mx.array, target: mx.array, weight: mx.array | None, reduction: int, smoothing: float
) -> mx.array:
    classes = logs.shape[_class_axis(logs)]
    smooth = target * (1 - smoothing) + smoothing / classes
    loss = -mx.sum(logs * smooth * _class_weights(logs, weight), axis=_class_axis(logs))
    return _REDUCTIONS[reduction](loss)


@operation("multilabel_margin_loss")
def _multilabel_margin(self: mx.array, target: mx.array, reduction: int = MEAN) -> mx.array:
    """Hinge loss of every class against every label, labels being those before the first below 0.

    torch's own decomposition counts those after it, too.
    """
    self, target = (it if it.ndim else it.reshape(1) for it in (self, target))
    labelled = mx.cumprod((target >= 0).astype(mx.int32), axis=-1).astype(mx.bool_)
    labels = mx.where(labelled, target, mx.zeros_like(target))
    classes = mx.arange(self.shape[-1])
    owned = mx.any((labels[..., None] == classes) & labelled[..., None], axis=-2)
    scores = mx.take_along_axis(self, mx.stop_gradient(labels), axis=-1)
    pairs = labelled[..., None] & mx.logical_not(owned)[..., None, :]
    gaps = where(pairs, relu(1 - scores[..., None] + self[..., None, :]), 0.0)
    return _REDUCTIONS[reduction](mx.sum(gaps, axis=(-2, -1)) / self.shape[-1])


@operation("cosine_similarity")
def _cosine_similarity(x1: mx.array, x2: mx.array, dim: int = 1, eps: float = 1e-8) -> mx.array:
    x1, x2 = x1.reshape(x1.shape or (1,)), x2.reshape(x2.shape or (1,))
    x1, x2 = mx.broadcast_arrays(x1, x2)  # an axis of one counts as often as the other's
    squares = [mx.maximum(mx.sum(x * x, axis=dim), eps * eps) for x in (x1, x2)]
    return mx.sum(x1 * x2, axis=dim) * mx.rsqrt(squares[0]) * mx.rsqrt(squares[1])


register(
    {
        "margin_ranking_loss": lambda input1, input2, target, margin=0.0, reduction=MEAN: (
            _REDUCTIONS[reduction](clamp(-target * (input1 - input2) + margin, low=0))
        ),
    }
)
