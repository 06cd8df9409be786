"""The table of routes: verbs, documentation and a coverage test are made from it. Importing it is free."""

from __future__ import annotations

from typing import Final, NamedTuple


class Route(NamedTuple):
    """One way from a source to a target.

    Attributes:
        source: framework left behind.
        target: framework arrived at.
        verb: what the command line calls it.
        exact: what is bit-exact on this route.
        checked: which runtime checks the result, and where.
        summary: one line of help.
        example: a command that runs.
    """

    source: str
    target: str
    verb: str
    exact: str
    checked: str
    summary: str
    example: str = ""

    @property
    def help(self) -> str:
        """All of the help of the verb."""
        return f"{self.summary}\n\nExample: {self.example}" if self.example else self.summary


ROUTES: Final = (
    Route(
        "torch",
        "mlx",
        "convert torch-to-mlx",
        "every weight (renames, permutations, stacks, splits)",
        "MLX, against PyTorch in float64",
        "Make an MLX directory from a PyTorch one.",
        "weighbridge convert torch-to-mlx all-MiniLM-L6-v2 minilm-mlx",
    ),
    Route(
        "mlx",
        "torch",
        "convert mlx-to-torch",
        "every weight; a LoRA merge is rounded once, its survival measured",
        "PyTorch, against float64 with the adapter live",
        "Export an MLX directory back to PyTorch, merging an adapter on the way.",
        "weighbridge convert mlx-to-torch minilm-mlx minilm-tuned --adapter run",
    ),
    Route(
        "torch",
        "coreml",
        "export coreml",
        "float32 weights; float16 is rounded once",
        "Core ML on macOS; our ML-program evaluator elsewhere (PASS-REFERENCE)",
        "Export a model to a Core ML package.",
    ),
    Route(
        "mlx",
        "coreml",
        "export coreml",
        "float32 weights; float16 is rounded once",
        "Core ML on macOS; our ML-program evaluator elsewhere (PASS-REFERENCE)",
        "Export a model to a Core ML package.",
    ),
    *(
        Route(
            framework,
            "onnx",
            "export onnx",
            "float32 weights",
            "onnxruntime, against PyTorch in float64",
            "Export a model to an ONNX file.",
        )
        for framework in ("torch", "mlx")
    ),
    *(
        Route(
            framework,
            "coreai",
            "export coreai",
            "float32 weights; float16 is rounded once",
            "Core AI's own runtime (a beta) in a process of its own, against PyTorch in float64",
            "Export a model to a Core AI asset.",
        )
        for framework in ("torch", "mlx")
    ),
    *(
        Route(
            program,
            framework,
            f"convert {program}-to-{framework}",
            "float32 weights; what was folded is computed back",
            f"{runtime}, and the result against it",
            "Make a directory from an exported file.",
        )
        for program, runtime in (
            ("coreml", "the package's runtime"),
            ("onnx", "onnxruntime"),
            ("coreai", "Core AI's own runtime"),
        )
        for framework in ("torch", "mlx")
    ),
)
CONVERSIONS: Final = ROUTES[:2]  # between directories


class Dialect(NamedTuple):
    """A dialect that adapters are converted to.

    Attributes:
        name: what the jobs call it.
        verb: what the command line calls the conversion.
        summary: one line of help.
        help: all of the help.
    """

    name: str
    verb: str
    summary: str
    help: str


_CHECKS: Final = """

    Every pair must be complete, every module that the adapter names must be in BASE, nothing may be
    left over; then both adapters run live, each by the loader of its own dialect, and are compared.
"""
DIALECTS: Final = (
    Dialect(
        "peft",
        "mlx-to-peft",
        "Make a PEFT adapter of one trained with MLX.",
        f"""Make a PEFT adapter of ADAPTER, one trained with MLX.
{_CHECKS}
    Example: weighbridge convert mlx-to-peft run/ adapter-peft --base Qwen3-8B --trained-on Qwen3-8B-4bit
    """,
    ),
    Dialect(
        "mlx",
        "peft-to-mlx",
        "Make an mlx-lm adapter of a PEFT one.",
        f"""Make an mlx-lm adapter of ADAPTER, a PEFT one.
{_CHECKS}
    Example: weighbridge convert peft-to-mlx adapter-peft adapter-mlx --base Qwen3-8B
    """,
    ),
)
