"""How well classes are told apart."""

from __future__ import annotations

import numpy as np

from ...converters.values import Array


def class_metrics(found: Array, wanted: Array) -> dict[str, float]:
    """Return accuracy, balanced accuracy, macro F1 and Matthews' correlation, as scikit-learn has them.

    Balanced accuracy is the mean recall of the classes that are wanted somewhere, macro F1 the mean
    over those wanted or found; Matthews' correlation is that of Gorodkin 2004 for several classes.

    Args:
        found: classes, shape ``(examples,)``.
        wanted: the right ones.

    >>> class_metrics(np.array([0, 1, 1]), np.array([0, 1, 0]))["balanced_accuracy"]
    0.75
    """
    count = 1 + int(max(found.max(initial=0), wanted.max(initial=0)))
    table = np.zeros((count, count))  # wanted by found
    np.add.at(table, (wanted, found), 1)
    right, there, predicted = np.diagonal(table), table.sum(1), table.sum(0)
    return {
        "accuracy": float(right.sum() / max(1, len(wanted))),
        "balanced_accuracy": _mean(right, there),
        "macro_f1": _mean(2 * right, there + predicted),
        "matthews": _matthews(right, there, predicted),
    }


def label_metrics(found: Array, wanted: Array) -> dict[str, float]:
    """Return the share of examples and of labels that are right, and macro F1 over the classes.

    Args:
        found: 0 or 1, shape ``(examples, classes)``.
        wanted: the right ones.
    """
    right = (found * wanted).sum(0)
    predicted = found.sum(0) + wanted.sum(0)
    return {
        "accuracy": float((found == wanted).all(1).mean()),
        "label_accuracy": float((found == wanted).mean()),
        "macro_f1": float(np.mean(2 * right / np.maximum(predicted, 1))),
    }


def _mean(part: Array, whole: Array) -> float:
    """Return the mean of PART / WHOLE where there is a whole."""
    return float(np.mean(part[whole > 0] / whole[whole > 0]))


def _matthews(right: Array, there: Array, predicted: Array) -> float:
    total = there.sum()
    spread = [total**2 - float(side @ side) for side in (there, predicted)]
    if not all(spread):
        return 0.0  # one class alone
    return float((right.sum() * total - there @ predicted) / np.sqrt(spread[0] * spread[1]))
