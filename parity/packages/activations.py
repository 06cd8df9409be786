"""Activations that a package rounds to 8 bits: are its codes those that inputs need, and what does it cost?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ...converters.common.hints import counted
from ..check.distances import distance
from ..check.verdict import Stage
from ..probes.probes import Probe

NAME: Final = "activations"
SHOWN: Final = 3
LLAMA_CPP: Final = "llama.cpp"
REMEDY: Final = "check it with --inputs on what it was calibrated for, or calibrate it on more"


def activations_stage(runner: Any, probes: Sequence[Probe]) -> Stage:
    """Say by how much outputs move as RUNNER rounds activations on PROBES, and whether its codes fit these.

    They do where no more is cut off than rounding loses, and no bit is left unused by most, nor two by one alone.
    """
    if runner.runtime == LLAMA_CPP:
        return blockwise_stage(runner, probes)
    if not hasattr(runner, "watch_grids"):
        reason = "this runtime cannot do without rounding to 8 bits; --runtime reference can"
        return Stage(NAME, "unverified", reason)
    from ...converters.captures.mlprogram.watching import Grids

    grids, moved = Grids(), dict[str, float]()
    for probe in probes:
        ours, theirs = runner.run(probe.inputs), runner.watch_grids(probe.inputs, grids)
        for name, array in theirs.items():
            if array.dtype.kind == "f":
                gap = distance(ours[name], array, probe.inputs.get("attention_mask")).whole
                moved[name] = max(moved.get(name, 0.0), float(gap))
    cost = ", ".join(f"{name} by {part:.2g}" for name, part in moved.items())
    figures = {"moved": moved}
    if useless := [name for name, part in moved.items() if not part < 1]:
        return Stage(NAME, "fail", f"8 bits leave nothing of {', '.join(useless)}: {cost}", figures)
    if wrong := grids.problems():
        detail = "; ".join(wrong[:SHOWN])
        detail += f"; and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        return Stage(NAME, "unverified", f"{detail}; {REMEDY}", figures | {"problems": wrong})
    detail = f"{counted(len(grids.found), 'value')} rounded to 8 bits, none cut off by more than rounding loses; moves {cost} of its size"
    return Stage(NAME, "pass", detail, figures)


def blockwise_stage(runner: Any, probes: Sequence[Probe]) -> Stage:
    """Say by how much outputs move as llama.cpp rounds what products with blocks take to 8 bits, each block by its own scale.

    That is its way to compute, not the file's, so no number of it can be wrong; how far it is right is not known.
    """
    wide, moved = runner.unrounded(), dict[str, float]()
    for probe in probes:
        ours, theirs = runner.run(probe.inputs), wide.run(probe.inputs)
        for name, array in theirs.items():
            gap = distance(ours[name], array, probe.inputs.get("attention_mask")).whole
            moved[name] = max(moved.get(name, 0.0), float(gap))
    cost = ", ".join(f"{name} by {part:.2g}" for name, part in moved.items())
    detail = (
        f"llama.cpp rounds what products with blocks take to 8 bits, which moves {cost} of its size"
    )
    status = "unverified" if all(part < 1 for part in moved.values()) else "fail"
    return Stage(NAME, status, detail, {"moved": moved})
