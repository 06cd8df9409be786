"""What hypothesis draws: odd JSON, maps by their grammar, YAML scalars, npy headers, command lines."""

from __future__ import annotations

import functools
import random
from typing import Any

import click
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

POOL = 150  # examples of a strategy that are drawn at a time


class Chance(random.Random):
    """The choices of one input, from its name ``SEED-NUMBER``: the same each time.

    Attributes:
        batch: which examples of hypothesis it may take: drawing some for each input would take long.
    """

    def __init__(self, family: str, name: str) -> None:
        super().__init__(f"{family}:{name}")
        run, _, number = name.partition("-")
        self.batch = 1_000 * int(run) + int(number) // POOL


NAMES = st.sampled_from(
    (
        "embeddings.word_embeddings.weight",
        "encoder.layer.{n}.output.dense.weight",
        "pooler.{p}",
        "{a}",
        "{n}.{n}",
        "x",
        "*",
        "**",
        "a.{b}.c",
        "pooler.dense.{p}",
        "{",
        "}",
        "{}",
        "..",
        "é",
    )
)
AXES = st.lists(
    st.sampled_from(
        ("hidden", "words", "heads d", "(heads d)", "3", "-1", "(", ")", "n", "p", "...")
    ),
    max_size=5,
).map(lambda parts: f"[{' '.join(parts)}]")
RIGHT = st.one_of(
    st.sampled_from(("same", "recomputed", "dropped", "zeros", "", "original", "same same")),
    NAMES,
    AXES,
    st.tuples(NAMES, AXES).map(" ".join),
    st.tuples(NAMES, st.sampled_from("*/+-@|"), st.sampled_from(("2", "0", "1e400", "n", "x"))).map(
        " ".join
    ),
)
ARROWS = st.sampled_from(("<->", "->", "<-", "==", "=", "<=>", "", "<-><->"))
RULE = st.builds(
    lambda may, name, axes, arrow, right: f"{may}{name} {axes} {arrow} {right}",
    st.sampled_from(("", "? ", "! ")),
    NAMES,
    AXES | st.just(""),
    ARROWS,
    RIGHT,
)
WHERE = st.builds(
    lambda name, value: f"where {name} = {value}",
    st.sampled_from(("n", "p", "hidden", "", "n = m", "é", "where")),
    st.sampled_from(
        (
            "num_hidden_layers",
            "hidden_size * 0",
            "a | b",
            "1 // 0",
            "2 ** 9999",
            "x.y.z",
            "n",
            "",
            "hidden_size / num_attention_heads",
            "(" * 2000,
            "9" * 5000,
            "-hidden_size",
            "vocab_size",
        )
    ),
)
LINE = st.one_of(RULE, RULE, WHERE, st.just("# note"), st.text(max_size=30))

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)
SCALAR = st.one_of(
    st.sampled_from(
        (
            "~",
            "yes",
            "0x10",
            "0o7",
            "1_000",
            "1e3",
            ".inf",
            "-.inf",
            ".nan",
            "1e400",
            "9" * 5000,
            "!!python/object/apply:os.system [touch pwned]",
            "!!binary aGk=",
            "!!set {a}",
            "2001-01-01",
            "&a [*a]",
            "*a",
            "&a {b: &b [*a, *b]}",
            "[" * 20000,
            "{" * 3000,
            "|",
            ">",
            "? a",
            "- -",
            "{a: 1, a: 2}",
            "'",
            '"',
            "%",
            "@",
            "`",
            "\t",
            "---",
            "...",
            "a: b: c",
            "[1, 2",
            "1:30:00",
            "12345678901234567890",
            "0.1",
            "-0",
            "+1",
            "=",
            "<<",
            "!!int x",
            "!!float x",
            "null",
            "",
            "[1]",
            "{}",
            "[]",
            "adamw",
            "true",
            "3",
            "'3'",
            "1.0",
            "4e0",
            "../series/train.npz",
        )
    ),
    st.text(max_size=20),
    JSON.map(repr),
)
HEADER = st.builds(
    lambda descr, order, shape, rest: (
        f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}{rest}}}"
    ),
    st.sampled_from(
        (
            "'<f4'",
            "'>f4'",
            "'<f8'",
            "'<f2'",
            "'|O'",
            "'<U4'",
            "'|V2'",
            "'<f9'",
            "''",
            "None",
            "4",
            "[('a', '<f4')]",
            "'<M8[s]'",
            "'<c8'",
            "'|S0'",
            "'<i4'",
            "('<f4', (2,))",
            "'" + "f" * 400 + "'",
            "[" * 300,
            "[('a', [('b', 'O')])]",
            "'<f4', 'descr': '<f8'",
        )
    ),
    st.sampled_from(("False", "True", "0", "None", "'x'", "[")),
    st.sampled_from(
        (
            "(8,)",
            "()",
            "(0,)",
            "(-1,)",
            "(8, 8)",
            "8",
            "(2**40,)",
            "(4611686018427387904, 4)",
            "None",
            "(1099511627776,)",
            "(True,)",
            "(8.0,)",
            "('8',)",
            "(8,",
            "[8]",
            "(" + "1," * 70 + ")",
            "(" + "9" * 5000 + ",)",
            "(0, 9223372036854775807)",
        )
    ),
    st.sampled_from((", ", "", ", 'more': 1", ", " + " " * 70_000)),
)


@functools.cache
def pool(name: str, number: int) -> tuple[Any, ...]:
    """Return many examples of the strategy NAME, the same for the same NUMBER."""
    found: list[Any] = []

    @seed(number)
    @settings(
        max_examples=POOL,
        database=None,
        phases=[Phase.generate],
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(STRATEGIES[name]())
    def collect(value: Any) -> None:
        found.append(value)

    collect()
    return tuple(found)


def arguments(values: tuple[str, ...]) -> st.SearchStrategy[list[str]]:
    """Return a strategy of command lines: a verb of ours with options of its own, VALUES for values."""
    lines = [line_of(path, command, values) for path, command in commands()]
    noise = st.lists(st.sampled_from(values), max_size=4)
    return st.one_of(*lines, st.builds(lambda line, more: line + more, st.one_of(*lines), noise))


def commands(group: Any = None, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """Return every verb with the words that lead to it."""
    if group is None:
        from weighbridge.cli import main as group
    found: list[tuple[tuple[str, ...], Any]] = []
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            found += commands(command, (*path, name))
        else:
            found.append(((*path, name), command))
    return found


def line_of(
    path: tuple[str, ...], command: Any, values: tuple[str, ...]
) -> st.SearchStrategy[list[str]]:
    """Return a strategy of command lines of COMMAND."""
    options = [it for it in command.params if isinstance(it, click.Option)]
    words = [it for it in command.params if isinstance(it, click.Argument)]
    odd = st.lists(
        st.sampled_from(values), min_size=max(0, len(words) - 1), max_size=len(words) + 1
    )
    likely = st.tuples(*(st.sampled_from(LIKELY.get(str(it.name), ("bert",))) for it in words))
    flags = [option_of(it, values) for it in options] or [st.just([])]
    needed = [option_of(it, values) for it in options if it.required]
    return st.builds(
        lambda words, more, musts: [*path, *words, *(x for it in (*musts, *more) for x in it)],
        st.one_of(likely, likely, odd),
        st.lists(st.one_of(*flags), max_size=4),
        st.tuples(*needed),
    )


def option_of(option: click.Option, values: tuple[str, ...]) -> st.SearchStrategy[list[str]]:
    """Return a strategy of OPTION with a value that it takes, or one that it does not."""
    name = st.sampled_from(option.opts)
    if option.is_flag:
        return name.map(lambda it: [it])
    good = (*map(str, getattr(option.type, "choices", ())), *LIKELY.get(str(option.name), ()))
    return st.tuples(name, st.sampled_from((*good * 8, *values))).map(list)


# Relative ones alone: what a command line may destroy by mistake lies in the input's own folder.
VALUES = (
    *("bert", "mlx", "peft", "mlx-adapter", "llama", "like-f32.gguf", "golden", "recipe.yaml"),
    *("bert", "mlx", "out", "out", "new/deep/out", "series", "pairs", "run", "inputs.npz"),
    *("bert/model.safetensors", "bert/config.json", "bert+peft", "mlx+mlx-adapter", "bert+", "+"),
    *(
        ".",
        "..",
        "",
        " ",
        "-",
        "x" * 300,
        "a/" * 300,
        "nul\x7f",
        "é",
        "[bold]",
        "port:make",
        "no:such",
    ),
    *(
        "os:getcwd",
        "json:loads",
        "0",
        "-1",
        "1e9",
        "nan",
        "inf",
        "9" * 400,
        "sequence=8",
        "batch=0",
    ),
    *("=", "steps=1", "steps=" + "9" * 5_000, "model=", "a.b.c=1", "optimizer=1", "bert", "none"),
    *("bert.wmap", "nowhere", "nowhere.wmap", "out.mlpackage", "out.gguf", "out.wmap", "../away"),
)
# Arguments and options by name, and what they may be for.
TARGETS = ("out", "out", "out.mlpackage", "out.gguf", "out.wmap", "new/deep/out")
LIKELY: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("source", "model", "path"), ("bert", "mlx", "llama", "bert+peft", "golden")),
    **dict.fromkeys(("base", "reference", "original", "trained_on"), ("bert", "mlx", "llama")),
    **dict.fromkeys(("candidate", "port"), ("mlx", "bert", "mlx+mlx-adapter")),
    **dict.fromkeys(("trust_code", "candidate_code"), ("port:make", "no.such:thing")),
    "adapter": ("peft", "mlx-adapter"),
    "target": TARGETS,
    "like": ("like-f32.gguf",),
    "recipe": ("recipe.yaml", "minilm-lora"),
    "overrides": ("steps=2", "optimizer.learning_rate=1e-3", "compile=false"),
    "inputs": ("inputs.npz",),
    "map_name": ("bert.wmap", "bert"),
    "upper": ("sequence=8", "batch=2"),
    "sizes": ("sequence=8", "sequence=4,8", "batch=1"),
    "names": ("input_ids=tokens", "no_such=x"),
    "max_shard_size": ("1", "0.00001"),
}
STRATEGIES: dict[str, Any] = {
    "json": lambda: JSON,
    "scalar": lambda: SCALAR,
    "header": lambda: HEADER,
    "line": lambda: LINE,
    "argv": lambda: arguments(VALUES),
}


def draw(name: str, chance: Chance) -> Any:
    """Return an example of the strategy NAME."""
    return chance.choice(pool(name, chance.batch))
