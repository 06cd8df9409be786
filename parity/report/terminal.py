"""A verdict for a person at a terminal: the answer first, then what it rests on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ..check.stages import quotient
from ..check.verdict import Stage, Verdict

STYLES: Final = {
    "PASS": "green",
    "PASS-REFERENCE": "green",
    "PASS-PRECISION-ONLY": "yellow",
    "DIFFERS": "red",
    "UNVERIFIED": "yellow",
}
MEANINGS: Final = {
    "PASS": "{candidate} computes what {reference} computes.",
    "PASS-REFERENCE": "{candidate} computes what {reference} computes,"
    " run by Weighbridge's own evaluator: the vendor's runtime was not asked.",
    "PASS-PRECISION-ONLY": "{candidate} errs no more than {reference} does in the same precision;"
    " no float32 run was possible, so a fault smaller than rounding would not show.",
    "DIFFERS": "{candidate} does not compute what {reference} computes.",
    "UNVERIFIED": "Whether {candidate} computes what {reference} computes was not established.",
}
MARKS: Final = {
    "pass": ("✓", "green"),
    "fail": ("✗", "bold red"),
    "skipped": ("·", "dim"),
    "unverified": ("?", "yellow"),
}
QUESTIONS: Final = {
    "source file": "the file itself, run with the weights found in it",
    "base": "the base that it was trained on",
    "compressed": "each weight by its codes",
    "dequantized": "codes as MLX itself reads them",
    "loaded": "codes as the library loads them",
    "moved": "what the format cannot hold as it was",
    "pairs": "every pair, every module, nothing over",
    "text": "same words, same ids",
    "configuration": "same settings, by what reads them",
    "fingerprints": "every weight explained",
    "layout": "independent layout check",
    "processor": "same numbers of images and sound",
    "towers": "images and sound, where it takes any",
    "auxiliary": "same inputs",
    "outputs": "names, shapes, finite",
    "structure": "float32 against float64",
    "reach": "ids at the edges, positions far on",
    "lengths": "past windows, chunks and scalings",
    "batch": "rows padded, among others, alone",
    "decoding": "piece by piece with its cache",
    "live": "live against live",
    "precision": "the dtype that ships",
    "activations": "8 bits of what layers read",
}
NARROW: Final = 76  # characters, below which the table of errors has no room for names of probes
BAR: Final = 10  # cells of a full bar: all that is allowed


def bar(allowed: float) -> Text:
    """Draw how much of the allowed error is used; a bar that overflows ends in an arrow.

    >>> bar(0.42).plain, bar(7.0).plain
    ('▰▰▰▰▱▱▱▱▱▱', '▰▰▰▰▰▰▰▰▰▶')
    """
    if not allowed <= 1:
        return Text("▰" * (BAR - 1) + "▶", style="red")
    used = round(allowed * BAR)
    style = "green" if allowed < 0.8 else "yellow"
    return Text("▰" * used, style=style).append("▱" * (BAR - used), style="dim")


def short_name(spec: str) -> str:
    """Return the last part of a path, both parts of ``DIRECTORY+ADAPTER``.

    >>> short_name("/models/minilm+/runs/adapter"), short_name("package.module:build")
    ('minilm+adapter', 'package.module:build')
    """
    return "+".join(PurePath(part).name or part for part in spec.split("+"))


def headline(verdict: Verdict) -> Panel:
    """Return the answer, and the stage that explains it."""
    about = verdict.provenance
    names = {
        side: short_name(str(about.get(side, {}).get("spec", f"the {side}")))
        for side in ("candidate", "reference")
    }
    own = about.get("pass means") if verdict.status == "PASS" else None
    if verdict.passed and verdict.stage("compressed"):
        names["reference"] += ", its weights as the file has compressed them,"
    if verdict.passed and verdict.stage("activations"):
        names["candidate"] += ", but for rounding activations to 8 bits,"
    lines = [Text((own or MEANINGS[verdict.status]).format(**names))]
    lines += [
        Text.assemble((f"{stage.name}: ", "bold"), stage.detail) for stage in explaining(verdict)
    ]
    style = STYLES[verdict.status]
    level = " (quick check)" if verdict.provenance.get("level") == "quick" else ""
    return Panel(
        Group(*lines),
        title=Text(f" {verdict.status}{level} ", style=f"bold reverse {style}"),
        title_align="left",
        border_style=style,
        box=box.ROUNDED,
        padding=(0, 1),
    )


def explaining(verdict: Verdict) -> list[Stage]:
    """Return the first stage that decided against a pass, or what a pass says of codes."""
    codes = [verdict.stage(name) for name in ("compressed", "activations")]
    if verdict.passed and any(codes):
        return [stage for stage in codes if stage]
    wanted = {"DIFFERS": "fail", "UNVERIFIED": "unverified", "PASS-PRECISION-ONLY": "unverified"}
    status = wanted.get(verdict.status)
    return [stage for stage in verdict.stages if stage.status == status][:1]


def stage_table(stages: Sequence[Stage]) -> Table:
    """Return one row per stage."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), expand=True)
    table.add_column("", width=1)
    table.add_column("stage", no_wrap=True, style="bold")
    table.add_column("what was found", ratio=1)
    for stage in stages:
        mark, style = MARKS[stage.status]
        found = Text(stage.detail, style="dim" if stage.status == "skipped" else "")
        name = Text(stage.name).append(f"\n{QUESTIONS[stage.name]}", style="not bold dim")
        table.add_row(Text(mark, style=style), name, found)
    return table


def errors(stage: Stage, width: int) -> RenderableType:
    """Return one row per probe and output, and where the null lies.

    A terminal of less than NARROW characters of WIDTH gets a paragraph a row: figures are never cut.
    """
    rows: Sequence[Mapping[str, Any]] = stage.figures["rows"]
    several = len({row["output"] for row in rows}) > 1
    named = [(f"{row['probe']} {row['output']}" if several else row["probe"], row) for row in rows]
    shown = error_table(named) if width >= NARROW else Group(*map(error_line, named))
    return Group(Text(f"{stage.name}, {stage.figures['dtype']}", style="bold"), shown, null(stage))


def error_line(named: tuple[str, Mapping[str, Any]]) -> Text:
    """Return a row of the table of errors in words."""
    name, row = named
    ratios = f"{quotient(row['ratio'])}x, worst token {quotient(row['ratio_worst_token'])}x"
    return Text(
        f"{name}: error {row['error']:.2e}, source's {row['source_error']:.2e}, {ratios},"
        f" {quotient(row['allowed'])} of the allowed"
    )


def error_table(named: Sequence[tuple[str, Mapping[str, Any]]]) -> Table:
    """Return one row per probe and output."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(
        "probe", overflow="fold", max_width=26
    )  # of all columns it alone may be broken
    for heading in ("error", "source's", "ratio", "worst token"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("of the allowed", no_wrap=True)
    for name, row in named:
        table.add_row(
            name,
            f"{row['error']:.2e}",
            f"{row['source_error']:.2e}",
            f"{quotient(row['ratio'])}x",
            f"{quotient(row['ratio_worst_token'])}x",
            bar(row["allowed"]).append(f" {quotient(row['allowed'])}", style="default not dim"),
        )
    return table


def null(stage: Stage) -> Text:
    """Return what the allowance rests on, and the figure that people ask for."""
    figures = stage.figures
    cosine = min((row["cosine"] for row in figures["rows"]), default=1.0)
    return Text(
        f"allowed {figures['k']:.2f}x (worst token {figures['k_token']:.2f}x): a log-normal fit to"
        f" {figures['cases']:,} correct runs puts their 99.9 % point at {figures['null_99_9']:.2f}x"
        f" (extrapolated, 95 % bound). Cosine, not decisive: {cosine:.9f}",
        style="dim",
    )


def fault_table(verdict: Verdict) -> Table:
    """Return the culprits, worst first."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("culprit", overflow="fold", style="bold red", ratio=3)
    table.add_column("fault", no_wrap=True)
    table.add_column("error", justify="right", no_wrap=True)
    table.add_column("evidence", overflow="fold", ratio=4)
    for fault in verdict.faults:
        table.add_row(fault.site, fault.kind, f"{quotient(fault.ratio)}x", fault.evidence)
    return table


def provenance_lines(about: Mapping[str, Any]) -> Iterator[Text]:
    """Yield what ran where."""
    runner = about.get("candidate", {}).get("runner", {})
    if runner:
        blas = f", BLAS: {runner['blas']}" if runner.get("blas") else ""
        yield Text(
            f"ran in {runner.get('runtime')} {runner.get('version', '')} on {runner.get('device')},"
            f" {about.get('platform', '')}{blas}",
            style="dim",
        )
    if runner.get("plan"):
        yield Text(f"Core ML's plan: {runner['plan']}", style="dim")
    libraries = about.get("reference", {}).get("libraries", {})
    if libraries:
        named = ", ".join(f"{name} {version}" for name, version in libraries.items())
        yield Text(f"reference in float64 by {named}", style="dim")


def sections(verdict: Verdict, width: int) -> Iterator[RenderableType]:
    """Yield the parts of the report, top to bottom, for a terminal of WIDTH characters."""
    yield headline(verdict)
    if verdict.faults:
        yield Padding(fault_table(verdict), (1, 0, 0, 1))
    yield stage_table(verdict.stages)
    for stage in verdict.stages:
        if stage.figures.get("rows"):
            yield Padding(errors(stage, width), (0, 0, 1, 1))
    missed = verdict.provenance.get("not_checked", ())
    if missed:
        yield Padding(Text("not checked", style="bold"), (0, 0, 0, 1))
        for line in missed:
            yield Padding(Text(f"· {line}"), (0, 0, 0, 1))
    yield Padding(Group(*provenance_lines(verdict.provenance)), (1, 0, 0, 1))


def render(verdict: Verdict, console: Console | None = None) -> None:
    """Print VERDICT to CONSOLE, standard output by default."""
    console = console or Console()
    for section in sections(verdict, console.width):
        console.print(section)
