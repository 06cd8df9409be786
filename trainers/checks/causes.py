"""Why an operation makes values that are not finite, and what to do about it: one table."""

from __future__ import annotations

from typing import Final, NamedTuple


class Cause(NamedTuple):
    """Why an operation makes a value that is not finite.

    Attributes:
        operations: the names, as in ATen, that it holds for.
        says: what happens.
        advice: what to do next.
    """

    operations: frozenset[str]
    says: str
    advice: str


def _cause(operations: str, says: str, advice: str) -> Cause:
    return Cause(frozenset(operations.split()), says, advice)


FORWARD: Final = (
    _cause(
        "exp exp2 expm1 sinh cosh pow square mul mm bmm addmm matmul linear convolution sum "
        "mse_loss huber_loss",
        "is too large for its dtype",
        "scale the inputs (normalise the data), subtract the maximum before exp (logsumexp, log_softmax),"
        " or clamp",
    ),
    _cause(
        "log log2 log10 log1p xlogy",
        "is the logarithm of zero or less",
        "add a small number or clamp(min=1e-6) before it, or take log_softmax or logsigmoid in place of"
        " the logarithm of softmax or sigmoid",
    ),
    _cause(
        "div reciprocal rsqrt remainder fmod",
        "divides by zero",
        "add a small number to the divisor, or clamp(min=...) it: a count or a norm may be zero",
    ),
    _cause("sqrt", "is the root of a negative number", "clamp(min=0) before it"),
    _cause(
        "softmax _softmax log_softmax _log_softmax scaled_dot_product_attention logsumexp",
        "has a row in which everything is hidden or infinite",
        "let every row of the mask keep a position (-inf everywhere has no softmax)",
    ),
    _cause(
        "binary_cross_entropy nll_loss",
        "gets a probability outside of 0 to 1, or its logarithm",
        "give logits to the loss: binary_cross_entropy_with_logits, cross_entropy",
    ),
    _cause("acos asin acosh atanh", "is outside its domain", "clamp what it is given"),
)
BACKWARD: Final = (
    _cause(
        "sqrt rsqrt norm linalg_vector_norm pow cdist std var",
        "has no finite gradient at zero",
        "add a small number inside the root: sqrt(x + 1e-6), or normalize(x, eps=1e-6)",
    ),
    _cause(
        "div reciprocal log log2 log10 xlogy",
        "has a gradient that divides by (nearly) zero",
        "add a small number to what it divides by or takes the logarithm of",
    ),
    _cause(
        "where",
        "passes on a gradient of the branch that is not taken",
        "make both branches finite: where(ok, f(where(ok, x, 1)), 0)",
    ),
    _cause(
        "acos asin acosh atanh",
        "has no finite gradient at the end of its domain",
        "clamp inside it",
    ),
)
OTHER: Final = _cause("", "makes a value that is not finite", "look at what it is given")


def cause_of(operation: str, *, backward: bool) -> Cause:
    """Return why OPERATION makes a value that is not finite.

    >>> cause_of("sqrt", backward=True).says
    'has no finite gradient at zero'
    """
    name = operation.rstrip("_")
    table = BACKWARD if backward else FORWARD
    return next((it for it in table if {name, operation} & it.operations), OTHER)
