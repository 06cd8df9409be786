"""What a person sees: results on stdout, progress on stderr."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from ..converters.common.hints import counted
from .stdout import result

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from ..jobs.infer import Inferred
    from ..jobs.pipeline import Outcome
    from ..jobs.training.compare import Comparison
    from ..parity.check.verdict import Verdict
    from ..trainers.preflight import Preflight
    from ..trainers.runs.loop import TrainResult

WORST = 3  # quantized weights
KEPT_ASIDE = {
    "restored": "restored as they were before the conversion to MLX",
    "trained": "of the sidecar left aside: trained since",
}
MANY = 8  # dropped tensors of one reason that are listed by name
MOST_GUESSES = 10  # shown on the terminal; the map has all
WIDEST = 10_000  # characters of a line in a pipe
COLOURS = {"PASS": "green", "PASS-REFERENCE": "green", "DIFFERS": "red"}


@result
def dump(document: Any) -> None:
    """Print DOCUMENT as JSON on stdout."""
    click.echo(json.dumps(document, indent=1, default=str))


@result
def show_text(text: str) -> None:
    """Print TEXT as it is."""
    click.echo(text)


def out() -> Console:
    """Return the console of results."""
    from rich.console import Console

    return Console(highlight=False)


def show_status(status: str, label: str, target: Path) -> None:
    """Print LABEL in the colour of STATUS, and where the result lies; rich takes long to import."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") in ("dumb", "unknown")
    colour = False if plain else True if os.environ.get("FORCE_COLOR") else None
    styled = click.style(label, fg=COLOURS.get(status, "yellow"), bold=True)
    click.echo(f"{styled} {target}", color=colour)


@result
def show_outcome(outcome: Outcome, *, as_json: bool) -> None:
    """Print the plan of a dry run, or what was made and its verdict."""
    if as_json:
        dump(outcome_document(outcome))
        return
    if outcome.target is None:
        click.echo("\n".join([*outcome.plan, "Nothing was written (--dry-run)."]))
        return
    for line in summary_lines(outcome.facts):
        click.echo(line)
    if outcome.verdict:
        show_verdict(outcome.verdict, as_json=False)
    rejected = outcome.status == "DIFFERS"
    quick = outcome.verdict is not None and outcome.verdict.provenance.get("level") == "quick"
    label = (
        f"{outcome.status} (quick check)" if quick else outcome.facts.get("done", outcome.status)
    )
    show_status(outcome.status, label, outcome.target)
    if rejected:
        click.echo("The result was rejected; it is kept under that name for inspection.")
    elif outcome.facts.get("next"):
        click.echo(f"Next: {outcome.facts['next']}")
    if outcome.facts.get("repair"):
        click.echo(
            f"the library's class has a known fault; this mends it: {outcome.facts['repair']}"
        )


def outcome_document(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome as JSON-ready data."""
    verdict = outcome.verdict.to_json() if outcome.verdict else None
    return {
        "target": outcome.target,
        "status": outcome.status if outcome.target else "DRY-RUN",
        "plan": outcome.plan,
        "facts": outcome.facts,
        "verdict": verdict,
    }


def summary_lines(facts: Mapping[str, Any]) -> list[str]:
    """Return the facts of a conversion that a person wants to read."""
    from ..converters.planning.transcoding import lines_of

    lines = []
    if "tensors" in facts:
        lines.append(f"{counted(len(facts['tensors']), 'tensor')} written, hashed with xxh3")
    if facts.get("merged"):
        lines += survival_lines(facts["merged"])
    lines += lines_of(facts.get("transcoded"), MANY) + quantized_lines(facts.get("quantized") or {})
    lines += code_lines(facts.get("codes") or {})
    lines += quantized_lines(facts.get("compressed") or {}, "compressed")
    lines += [
        f"{name} moved by {part:.2%} of its size at most on trial inputs"
        for name, part in (facts.get("outputs") or {}).items()
    ]
    lines += calibration_lines(facts.get("calibration") or {})
    lines += cost_lines(facts.get("measured") or {})
    if "updates" in facts:
        lines.append(f"{facts['updates']} of {facts['updates']} updates converted")
    lines += figure_lines(facts.get("figures") or {})
    lines += dropped_lines(facts.get("dropped", ()))
    for key, what in KEPT_ASIDE.items():
        if facts.get(key):
            lines.append(f"{counted(len(facts[key]), 'tensor')} {what}")
    lines += config_lines(facts.get("config") or {})
    lines += [f"note: {note}" for note in facts.get("notes") or ()]
    side = facts.get("side_files") or {}
    if side.get("copied"):
        lines.append(f"{counted(len(side['copied']), 'side file')} copied byte for byte")
    lines += facts.get("found", [])
    if side.get("left_out"):
        lines.append(f"left out: {', '.join(side['left_out'])}")
    return lines


def quantized_lines(quantized: Mapping[str, Any], done: str = "quantized") -> list[str]:
    r"""Return what was DONE to weights: bytes, and how far the weights were moved, the worst ones by name.

    >>> error = {"of": "all numbers", "mean": 0.0976, "worst": "b", "largest": 0.11}
    >>> weights = {"a": {"scheme": "4-bit", "error": 0.09}, "b": {"scheme": "4-bit", "error": 0.11}}
    >>> sizes = {"before": 2000, "after": 500}
    >>> print(*quantized_lines({"bytes": sizes, "error": error, "weights": weights}), sep="\n")
    2 weights quantized: 2,000 bytes before, 500 after (25.0%)
    weights moved by 9.76% of their size on average (all numbers), the most:
      b  11.00%  4-bit
      a   9.00%  4-bit
    """
    if not quantized:
        return []
    sizes, error, weights = (quantized[key] for key in ("bytes", "error", "weights"))
    before, after = sizes["before"], sizes["after"]
    head = f"{len(weights)} weights {done}: {before:,} bytes before, {after:,} after"
    mean = f"{error['mean']:.2%} of their size on average ({error['of']})"
    worst = sorted(weights, key=lambda name: -weights[name]["error"])[:WORST]
    width = max(map(len, worst))
    lines = [f"  {n:<{width}}  {weights[n]['error']:6.2%}  {weights[n]['scheme']}" for n in worst]
    size = f"{head} ({after / max(before, 1):.1%})"
    return [
        size,
        *left_lines(quantized.get("dense", ())),
        f"weights moved by {mean}, the most:",
        *lines,
    ]


def left_lines(names: Sequence[str]) -> list[str]:
    """Return which large weights, NAMES, were left dense.

    >>> left_lines(["a", "b", "c", "d"])
    ['4 more stay dense, as their columns do not divide into blocks: a, b, c and 1 more']
    """
    if not names:
        return []
    more = f" and {len(names) - WORST} more" if len(names) > WORST else ""
    listed = ", ".join(names[:WORST])
    return [
        f"{len(names)} more stay dense, as their columns do not divide into blocks: {listed}{more}"
    ]


def code_lines(codes: Mapping[str, Any]) -> list[str]:
    r"""Return which weights of a package have the codes of a quantized source, and which are dense and why.

    >>> print(*code_lines({"codes": {"a": 0.004}, "dense": {"b": "its zero is no code"}}), sep="\n")
    1 of 2 weights keep the source's codes, none moved by more than 0.004 of a step
      b stays dense: its zero is no code
    """
    if not codes:
        return []
    kept, dense = codes["codes"], codes["dense"]
    head = f"{len(kept)} of {len(kept) + len(dense)} weights keep the source's codes"
    far = f", none moved by more than {max(kept.values()):.2g} of a step" if kept else ""
    some = [f"  {name} stays dense: {why}" for name, why in [*dense.items()][:WORST]]
    more = [f"  and {len(dense) - WORST} more"] if len(dense) > WORST else []
    return [head + far, *some, *more]


def calibration_lines(calibration: Mapping[str, Any]) -> list[str]:
    """Return for what text codes were chosen.

    >>> print(*calibration_lines({"weights": 7, "tokens": 16384, "text": "my.txt"}))
    codes of 7 weights chosen for what they are given as the model reads 16,384 tokens of my.txt
    """
    if not calibration:
        return []
    given = f"{calibration['tokens']:,} tokens of {calibration['text']}"
    what = f"codes of {calibration['weights']} weights chosen for what they are given"
    return [f"{what} as the model reads {given}"]


def cost_lines(measured: Mapping[str, Any]) -> list[str]:
    r"""Return what quantizing changed in the outputs, and in their time.

    >>> seconds = {"before": 1.0, "after": 0.8, "by mx.quantize": 1.0}
    >>> found = {"after": 0.05, "by mx.quantize": 0.1, "ratio": 0.5}
    >>> measured = {"text": "my.txt", "tokens": 4096, "outputs": found, "seconds": seconds}
    >>> print(*cost_lines(measured), sep="\n")
    on 4,096 tokens of my.txt, and with what mx.quantize makes:
      error of the outputs 0.05, 0.1 (ratio 0.500)
      seconds 1.00 before, 0.80 after
    """
    if not measured:
        return []
    lines = [
        f"on {measured['tokens']:,} tokens of {measured['text']}, and with what mx.quantize makes:"
    ]
    for key, what in (("outputs", "error of the outputs"), ("divergence", "KL divergence")):
        if costs := measured.get(key):
            both = f"{costs['after']:.4g}, {costs['by mx.quantize']:.4g}"
            lines.append(f"  {what} {both} (ratio {costs['ratio']:.3f})")
    if costs := measured.get("perplexity"):
        after = f"{costs['after']:.4g}, {costs['by mx.quantize']:.4g}"
        lines.append(f"  perplexity {after} ({costs['before']:.4g} before)")
    seconds = measured["seconds"]
    return [*lines, f"  seconds {seconds['before']:.2f} before, {seconds['after']:.2f} after"]


def figure_lines(figures: Mapping[str, float]) -> list[str]:
    """Return what a live adapter's outputs differ by: through its conversion, and through its base.

    >>> figure_lines({"conversion": 3.5e-7, "change of base": 0.21})
    ['live outputs differ by 3.5e-07 (conversion)', 'live outputs differ by 2.1e-01 (change of base)']
    """
    shown = ("conversion", "change of base")
    return [
        f"live outputs differ by {figures[name]:.1e} ({name})" for name in shown if name in figures
    ]


def survival_lines(merged: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return what survived of each merged update, the worst first; the manifest has them all."""
    from ..converters.adapters.merging.survival import Survival, heading, lines

    named = {
        f"{name}  ({it['form']})" if it.get("form") else name: it for name, it in merged.items()
    }
    fields = Survival._fields
    survivals = {name: Survival(*(merge[key] for key in fields)) for name, merge in named.items()}
    table = lines(survivals)
    more = [f"  ... {len(merged) - MANY} more, none worse"] if len(merged) > MANY else []
    return [heading(survivals), *table[: MANY + 1], *more]


def dropped_lines(dropped: Sequence[Mapping[str, str]]) -> list[str]:
    """Return what was dropped and why: a line each, or one for each module if there are many.

    >>> dropped_lines([{"name": "tower.a", "policy": "original"}])
    ['dropped tower.a (original)']
    """
    if len(dropped) <= MANY:
        return [f"dropped {item['name']} ({item['policy']})" for item in dropped]
    modules = Counter((module_of(item["name"]), item["policy"]) for item in dropped)
    return [
        f"dropped {count} tensors of {module} ({policy})"
        for (module, policy), count in modules.items()
    ]


def module_of(name: str) -> str:
    """Return the module on top that a tensor's NAME lies in.

    >>> module_of("model.visual.blocks.0.norm.weight"), module_of("vision_tower.head.bias")
    ('model.visual', 'vision_tower')
    """
    first, *rest = name.split(".")
    return ".".join([first, *rest[:1]]) if first == "model" else first


def config_lines(config: Mapping[str, Any]) -> list[str]:
    """Return which fields of ``config.json`` were rewritten."""
    lines = []
    for what in ("added", "changed", "removed"):
        keys = sorted(config.get(what, ()))
        if keys:
            lines.append(f"config.json: {what} {', '.join(keys)}")
    return [*lines, *(f"note: {note}" for note in config.get("notes", ()))]


@result
def show_verdict(verdict: Verdict, *, as_json: bool) -> None:
    """Print a verdict."""
    from ..parity.report import render

    if as_json:
        dump(verdict.to_json())
    else:
        render(verdict, out())


@result
def show_inferred(inferred: Inferred, target: Path, *, as_json: bool) -> None:
    """Print what an inferred map rests on, what was guessed, and the verdict over it."""
    if as_json:
        verdict = inferred.verdict.to_json() if inferred.verdict else None
        facts = {"status": inferred.status, "done": inferred.done, "proofs": inferred.proofs}
        guesses = [str(guess) for guess in inferred.guesses]
        dump({"target": target, **facts, "guesses": guesses, "verdict": verdict})
        return
    for proof, count in inferred.proofs.items():
        click.echo(f"{count} tensors by {proof}")
    for guess in inferred.ambiguous[:MOST_GUESSES]:
        click.echo(f"ambiguous: {guess}")
    if (more := len(inferred.ambiguous) - MOST_GUESSES) > 0:
        click.echo(f"ambiguous: {more} more; in {target} each is marked AMBIGUOUS")
    for note in inferred.notes:
        click.echo(note)
    if inferred.verdict:
        show_verdict(inferred.verdict, as_json=False)
    show_status(inferred.status, inferred.status, target)


@result
def show_facts(facts: Mapping[str, Any], *, as_json: bool) -> None:
    """Print facts as aligned lines; lists and tables indented below their name."""
    if as_json:
        dump(facts)
        return
    for name, value in facts.items():
        if value in ({}, [], (), ""):
            click.echo(f"{name}: none")
        elif isinstance(value, Mapping):
            click.echo(f"{name}:")
            width = max((len(str(key)) for key in value), default=0)
            click.echo("\n".join(f"  {key:<{width}}  {item}" for key, item in value.items()))
        elif isinstance(value, list | tuple):
            click.echo("\n".join([f"{name}:", *(f"  {item}" for item in value)]))
        else:
            click.echo(f"{name}: {value}")


@result
def show_preflight(result: Preflight, *, as_json: bool) -> None:
    """Print the per-parameter table of a preflight and its verdict."""
    if as_json:
        dump(result.document())
        return
    show_table(*result.table())
    click.echo(result.summary())


@result
def show_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print ROWS under COLUMNS, the first to the left and figures to the right.

    A terminal that is too narrow for that gets a paragraph a row: figures are never cut.
    """
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = out()
    wanted = console.measure(table, options=console.options.update(width=WIDEST)).maximum
    if wanted <= console.width or not console.is_terminal:
        console.width = max(wanted, console.width)
        console.print(table)
        return
    for name, *figures in rows:
        words = [f"{column} {it}" for column, it in zip(columns[1:], figures, strict=True) if it]
        console.print(f"{name}: {', '.join(words)}", markup=False, highlight=False)


@result
def show_training(result: TrainResult | Comparison, *, as_json: bool) -> None:
    """Print what a training run did."""
    if as_json:
        dump(result.document())
    else:
        click.echo(result.summary())
