"""What a user wants quantized, and how: a scheme for all, and rules for some modules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from ...converters.common.arguments import typed
from ...converters.common.dtypes import CODE, dtype_of
from ...converters.quantization.scheme import OFFERED, Scheme
from ...errors import BadInputError

KEEP: Final = "none"
GLOB: Final = frozenset("*?[")
PLAIN: Final = "mlx"
METHODS: Final = ("search", PLAIN)  # the first by default
DTYPES: Final = ("bfloat16", "float16", "float32")


class Rule(NamedTuple):
    """What becomes of modules by their path.

    Attributes:
        pattern: a glob for the whole path, or a part of the path.
        scheme: ``None`` to keep them in floating point.
        text: as the user wrote it.
    """

    pattern: str
    scheme: Scheme | None
    text: str

    def fits(self, path: str) -> bool:
        """Say whether this is about the module PATH.

        >>> Rule("down_proj", None, "").fits("layers.0.mlp.down_proj")
        True
        >>> Rule("*.0.*", None, "").fits("layers.1.mlp.down_proj")
        False
        """
        if GLOB & set(self.pattern):
            return fnmatchcase(path, self.pattern)
        return self.pattern in path


class Request(NamedTuple):
    """How a model is to be quantized.

    Attributes:
        scheme: of all modules that no rule is about.
        rules: for some of them.
        dtype: safetensors code of the scales; ``None`` for that of each weight.
        method: how codes are chosen, one of ``METHODS``.
        calibrate: file with a text; codes are chosen for what the layers are given as it is read.
        bits_per_weight: what weights may take on average, scales included, where no rule is about
            them; the schemes are found by that.
        group_size: that the user asked for; ``None`` where it may be found as well.
        found: these schemes, by module.
        measure: file with a text, on which the outputs before and after are compared.
    """

    scheme: Scheme
    rules: tuple[Rule, ...] = ()
    dtype: str | None = None
    method: str = METHODS[0]
    calibrate: Path | None = None
    bits_per_weight: float | None = None
    group_size: int | None = None
    found: Mapping[str, Scheme] = MappingProxyType({})
    measure: Path | None = None

    def wish(self, path: str) -> Scheme | bool:
        """Return the scheme that the rules have for the module PATH; ``False`` to keep it, ``True`` if none has one.

        Raises:
            BadInputError: two rules contradict each other.
        """
        found = [rule for rule in self.rules if rule.fits(path)]
        if not found:
            return self.found.get(path, True)
        other = next((rule for rule in found if rule.scheme != found[0].scheme), None)
        if other:
            raise BadInputError(
                f"{path}: --rule {found[0].text} and --rule {other.text} contradict each other; make"
                " one of the patterns narrower"
            )
        return found[0].scheme or False

    def lines(self) -> list[str]:
        """Return it, a line each."""
        return [
            f"quantize as {self.scheme}, method {self.method}",
            *(f"rule {it.text}" for it in self.rules),
            *(f"calibrated with {path}" for path in [self.calibrate] if path),
            *(f"{bits:g} bits per weight" for bits in [self.bits_per_weight] if bits),
        ]


@typed
def request_of(  # noqa: PLR0913  # the options of a verb, by keyword
    *,
    bits: int | None = None,
    group_size: int | None = None,
    mode: str = "affine",
    rules: Iterable[str] = (),
    dtype: str | None = None,
    method: str | None = None,
    calibrate: Path | None = None,
    bits_per_weight: float | None = None,
    measure: Path | None = None,
) -> Request:
    """Return what these options of a user mean.

    Raises:
        BadInputError: a rule, dtype or method that there is not, or options that contradict.
        UnsupportedError: MLX has no such scheme.
    """
    known_mode(mode)
    scheme = Scheme.of({"bits": bits, "group_size": group_size, "mode": mode})
    if method not in (None, *METHODS):
        raise BadInputError(f"--method {method} is unknown; choose {' or '.join(METHODS)}")
    if dtype not in (None, *DTYPES):
        raise BadInputError(f"--dtype {dtype} is unknown; choose {', '.join(DTYPES)}")
    if calibrate and method == PLAIN:
        raise BadInputError(f"--method {PLAIN} knows no calibration; leave out one of the two")
    require_free(bits, mode, bits_per_weight)
    code = CODE[dtype_of(dtype)] if dtype else None
    made = Request(scheme, tuple(map(parse_rule, rules)), code, method or METHODS[0], calibrate)
    return made._replace(bits_per_weight=bits_per_weight, group_size=group_size, measure=measure)


def require_free(bits: int | None, mode: str, bits_per_weight: float | None) -> None:
    """Refuse BITS or a MODE beside BITS_PER_WEIGHT, by which they are found, and numbers beyond all.

    Raises:
        BadInputError: there are such.
    """
    if bits_per_weight is None:
        return
    if bits is not None or mode != "affine":
        raise BadInputError("--bits-per-weight finds the bits itself; leave out --bits and --mode")
    if not 2 < bits_per_weight < 16:
        raise BadInputError(f"--bits-per-weight {bits_per_weight:g} is not between 2 and 16")


def known_mode(mode: str) -> None:
    """Refuse a MODE that MLX has not.

    Raises:
        BadInputError: it has not.
    """
    if mode not in OFFERED:
        raise BadInputError(f"--mode {mode} is unknown; MLX has {', '.join(OFFERED)}")


def parse_rule(text: str) -> Rule:
    """Return the rule that TEXT is, ``PATTERN=VALUE``.

    >>> parse_rule("down_proj=6").scheme
    Scheme(bits=6, group_size=64, mode='affine')

    Raises:
        BadInputError: it is none.
        UnsupportedError: MLX has no such scheme.
    """
    pattern, equals, value = text.rpartition("=")
    if not (pattern and equals and value):
        raise BadInputError(
            f"--rule {text!r} is not PATTERN=VALUE, such as 'down_proj=6' or 'lm_head=none'"
        )
    return Rule(pattern, None if value == KEEP else parse_scheme(value), text)


def parse_scheme(text: str) -> Scheme:
    """Return the scheme that TEXT names: ``BITS``, ``BITS:GROUP`` or a mode.

    >>> str(parse_scheme("8:32")), str(parse_scheme("nvfp4"))
    ('8-bit affine, groups of 32', '4-bit nvfp4, groups of 16')

    Raises:
        BadInputError: it names none.
        UnsupportedError: MLX has no such scheme.
    """
    if text in OFFERED:
        return Scheme.of({"mode": text})
    bits, colon, group = text.partition(":")
    if not (bits.isdecimal() and len(text) < 9 and (group.isdecimal() or not colon)):
        raise BadInputError(
            f"{text!r} is no scheme: write BITS, BITS:GROUP or {', '.join(list(OFFERED)[1:])}"
        )
    record: dict[str, Any] = {"bits": int(bits), "group_size": int(group) if colon else None}
    return Scheme.of(record)
