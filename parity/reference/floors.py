"""How far a correct implementation may be from the source: measured, never typed.

``floors.json`` is written by ``benchmarks/null_study.py``, which runs several correct
implementations of the same models and records how their errors compare with the source's own.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ...converters.common.dtypes import unit_roundoff
from ...converters.documents import RECORD, read_object
from ...converters.values import Array
from ...errors import BadInputError
from ..check.distances import Distance, distance

FLOORS = Path(__file__).with_name("floors.json")


class Floor(NamedTuple):
    """What the null study found for one runtime, device, dtype and accumulation.

    Attributes:
        k: a correct whole output errs at most this many times as much as the source.
        k_token: the same for the worst token.
        c: errors below ``c`` unit roundoffs are not told apart.
        null_99_9: where the 99.9 % point of the null's quotient lies (whole output).
        cases: how many correct runs were measured.
        dtype: dtype of the computation, which sets the unit roundoff.
        studied_on: platforms and BLAS libraries that the study covers.
    """

    k: float
    k_token: float
    c: float
    null_99_9: float
    cases: int
    dtype: str = "float32"
    studied_on: tuple[str, ...] = ()

    def ratio(self, target: Distance, source: Distance) -> Distance:
        """Return e_target / max(e_source, c u), for the whole and for the worst token."""
        least = self.c * unit_roundoff(self.dtype)
        return Distance(
            target.whole / max(source.whole, least), target.worst / max(source.worst, least)
        )

    def allowed(self, target: Distance, source: Distance) -> float:
        """Return how much of the allowed error is used; above 1 the target differs.

        >>> Floor(2.0, 3.0, 1.0, 1.9, 10).allowed(Distance(3e-6, 3e-6), Distance(1e-6, 2e-6))
        1.5
        """
        ratio = self.ratio(target, source)
        shares = (ratio.whole / self.k, ratio.worst / self.k_token)
        # max() would lose a NaN, and a NaN is never within anything
        return float("inf") if any(map(math.isnan, shares)) else max(shares)


class Comparison(NamedTuple):
    """One output of one probe against the reference.

    Attributes:
        probe: name of the probe.
        output: name of the output.
        ratio: error over the source's own error.
        allowed: the share of the allowed error that is used.
        target: the error itself.
        source: the source's own error.
    """

    probe: str
    output: str
    ratio: Distance
    allowed: float
    target: Distance
    source: Distance


def compare(
    name: tuple[str, str],
    found: Array,
    wanted: Array,
    mask: Array | None,
    calibration: tuple[Floor, Distance],
) -> Comparison:
    """Compare output NAME (probe, output) with its reference on the scale of CALIBRATION.

    Args:
        name: probe and output.
        found: what the target computed.
        wanted: the float64 reference.
        mask: attention mask of the probe.
        calibration: the floor, and the source's own error on the same probe.
    """
    floor_, source = calibration
    target = distance(found, wanted, mask)
    return Comparison(
        *name, floor_.ratio(target, source), floor_.allowed(target, source), target, source
    )


def floor_key(
    runtime: str, device: str, dtype: str, accumulate: str = "float32", blas: str = ""
) -> str:
    """Return the key of a study; the first word of BLAS names one that has its own.

    >>> floor_key("mlx", "cpu", "float16"), floor_key("mlx", "cpu", "float16", blas="wheel (slow)")
    ('mlx/cpu/float16/float32', 'mlx/cpu/float16/float32/wheel')
    """
    return "/".join([runtime, device, dtype, accumulate, *blas.split()[:1]])


@cache
def _studies(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    studies = read_object(path, RECORD).get("studies")
    if not isinstance(studies, dict):
        raise BadInputError(
            f"{path}: not a null study; write it again with benchmarks/null_study.py"
        )
    return studies


def floor(
    runtime: str,
    device: str,
    dtype: str,
    accumulate: str = "float32",
    *,
    blas: str = "",
    path: Path = FLOORS,
) -> Floor | None:
    """Return the floor studied for exactly this key; ``None`` where there is no study.

    A BLAS that sums in another way than most has a study of its own, which then is the one. A
    neighbouring runtime, device or dtype is never used in place of a missing one.
    """
    studies, key = _studies(path), (runtime, device, dtype, accumulate)
    study = studies.get(floor_key(*key, blas)) or studies.get(floor_key(*key))
    if study is None:
        return None
    return Floor(
        k=float(study["k"]),
        k_token=float(study["k_token"]),
        c=float(study["c"]),
        null_99_9=float(study["null_99_9"]["whole"]),
        cases=int(study["cases"]),
        dtype=dtype,
        studied_on=tuple(study["studied_on"]),
    )


def studied_elsewhere(study: Floor) -> list[str]:
    """Return what is to be said where STUDY ran on no machine like this one."""
    here = f"{platform.system()} {platform.machine()}"
    known = any(here in place for place in study.studied_on)
    return [] if known else [f"the null study ran on {'; '.join(study.studied_on)}, not {here}"]
