"""Inputs and outputs that a package has otherwise than its model: other names, pictures, class labels.

Pictures become the numbers that a model takes inside; labels are read, and not computed here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar

import numpy as np

from ...models.pictures import LAYOUTS, Picture
from ...values import Array

Value = TypeVar("Value")
CLASSIFY: Final = "classify"  # gives the likeliest label, and a score by label
COLORS: Final = {"GRAY": "GRAYSCALE"}  # ours -> Core ML's; others are called alike
UNITS_KEY: Final = "computeUnits"  # of the note that says where a package should run
ABOUT: Final[Mapping[str, str]] = {  # ours -> Core ML's
    "author": "author",
    "description": "shortDescription",
    "license": "license",
    "release": "versionString",
}
CARRYING: Final = frozenset({"cast", "identity"})


def names_of(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return the model's name -> the package's, of what MANIFEST has under another name.

    >>> names_of({"names": {"input_ids": "tokens", "x": 3}}), names_of({"names": []})
    ({'input_ids': 'tokens'}, {})
    """
    entry = manifest.get("names")
    pairs = entry.items() if isinstance(entry, Mapping) else ()
    return {name: there for name, there in pairs if isinstance(there, str)}


def renamed(named: Mapping[str, Value], names: Mapping[str, str]) -> dict[str, Value]:
    """Return what is NAMED under its names in NAMES, where it has others.

    >>> renamed({"a": 1, "b": 2}, {"a": "c"})
    {'c': 1, 'b': 2}
    """
    return {names.get(name, name): value for name, value in named.items()}


def turned(names: Mapping[str, str]) -> dict[str, str]:
    """Return NAMES the other way round."""
    return {there: name for name, there in names.items()}


def pictures_of(manifest: Mapping[str, Any]) -> dict[str, Picture]:
    """Return the model's inputs that are pictures in the package, by the model's names.

    >>> pictures_of({"pictures": {"x": {"mean": [0.0], "std": [1.0], "layout": "GRAY"}, "y": 3}})
    {'x': Picture(mean=(0.0,), std=(1.0,), layout='GRAY')}
    """
    entry = manifest.get("pictures")
    rows = entry.items() if isinstance(entry, Mapping) else ()
    return {name: found for name, row in rows if (found := _picture(row)) is not None}


def _picture(row: Any) -> Picture | None:
    try:
        mean, std = (tuple(float(it) for it in row[key]) for key in ("mean", "std"))
        known = LAYOUTS.get(row["layout"]) == len(mean) == len(std)
    except (KeyError, TypeError, ValueError):
        return None
    return Picture(mean, std, row["layout"]) if known and min(std) > 0 else None


def inward(manifest: Mapping[str, Any], inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return INPUTS of a model as the package with MANIFEST takes them: under its names, pictures as such.

    Raises:
        MismatchError: numbers that were made of no picture.
    """
    known = pictures_of(manifest)
    given = {
        name: known[name].picture(name, np.asarray(it)) if name in known else it
        for name, it in inputs.items()
    }
    return renamed(given, names_of(manifest))


def classifiers(body: Any) -> list[Any]:
    """Return the operations of a function that give labels."""
    return [it for it in body.operations if it.op_type == CLASSIFY]


def results(body: Any) -> list[Any]:
    """Return the variables that a function gives, labels aside."""
    return [it for it in body.outputs if it.op is None or it.op.op_type != CLASSIFY]


def classes_of(body: Any) -> tuple[str, ...]:
    """Return the labels of a function, in the order of its scores; none where it gives none."""
    found = [it.inputs["classes"].val for it in classifiers(body)]
    return tuple(str(it) for it in getattr(found[0], "ls", found[0])) if found else ()


def problems_of_labels(body: Any, scores: str) -> Iterator[str]:
    """Yield why the labels of a function are not those of the largest of its SCORES, an output."""
    made = classifiers(body)
    if len(made) != 1:
        yield f"it is said to give labels of {scores}, and gives none"
        return
    softmax = _behind(made[0].inputs["probabilities"])
    given = softmax.op.inputs if softmax.op is not None and softmax.op.op_type == "softmax" else {}
    axis = given["axis"].val if given else None
    if axis not in (-1, 1) or _behind(given["x"]) is not _behind(_output(body, scores)):
        yield f"its labels are not those of the softmax of {scores}"


def _output(body: Any, name: str) -> Any:
    return next((it for it in body.outputs if it.name == name), None)


def _behind(variable: Any) -> Any:
    """Return what VARIABLE carries in another dtype."""
    while variable is not None and variable.op is not None and variable.op.op_type in CARRYING:
        variable = variable.op.inputs["x"]
    return variable
