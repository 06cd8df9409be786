"""Core AI assets by plain coreai-torch, by mlx2coreai, and by us: exported, run in Apple's runtime, held to torch.

    python benchmarks/coreai_plain.py [torch|mlx] [NAME ...]

Plain coreai-torch is what its own pages say: torch.export, its decompositions, its converter, of fixed sizes, of a
module that gives the outputs by position. Both are given the same float32 module and inputs. Of modules of
MLX the other side is mlx2coreai (0.1.1, which needs coreai-core 1.0.0b1), where it is on the path; ours goes by
PyTorch. Printed, and kept in
``results/coreai_plain.json``, is the largest error over the largest output, or why there is none.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from weighbridge.converters.checkpoints.formats.coreai.asset import Asset
from weighbridge.converters.coreai_export import export_coreai
from weighbridge.converters.models import open as open_model
from weighbridge.converters.models.signature import Signature
from weighbridge.jobs.export import merged_in_memory
from weighbridge.parity.probes.probes import make_probes
from weighbridge.tests.support.coreml.families import NAMES, source
from weighbridge.tests.support.coreml.models import MORE, PACKAGED

RESULTS: Final = Path(__file__).with_name("results") / "coreai_plain.json"
FAMILIES: Final = (*NAMES, *MORE, *PACKAGED)
Arrays = Mapping[str, Any]
Write = Callable[[Path], None]


class ByPosition(torch.nn.Module):
    """A module that takes and gives by position what SIGNATURE names."""

    def __init__(self, module: torch.nn.Module, signature: Signature) -> None:
        super().__init__()
        self.module, self.signature = module, signature

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Call the module by names."""
        names = (it.name for it in self.signature.inputs)
        result = self.module(**dict(zip(names, inputs, strict=True)))
        if isinstance(result, torch.Tensor | tuple):
            return result if isinstance(result, tuple) else (result,)
        return tuple(result[it.name] for it in self.signature.outputs)


def plain(module: torch.nn.Module, signature: Signature, inputs: Arrays, target: Path) -> None:
    """Write MODULE as TARGET as coreai-torch comes."""
    from coreai_torch import TorchConverter, get_decomp_table

    example = tuple(torch.from_numpy(inputs[it.name]) for it in signature.inputs)
    graph = torch.export.export(ByPosition(module, signature).eval(), example)
    converter = TorchConverter()
    converter.add_exported_program(
        graph.run_decompositions(get_decomp_table()),
        input_names=[it.name for it in signature.inputs],
        output_names=[it.name for it in signature.outputs],
    )
    converter.to_coreai().save_asset(target)


def error(write: Write, target: Path, inputs: Arrays, wanted: Arrays) -> float | str:
    """Return how far what WRITE makes at TARGET is from what is WANTED of INPUTS, or why it does not run."""
    try:
        write(target)
    except Exception as problem:  # whatever others raise
        return f"not exported: {type(problem).__name__}: {str(problem).strip()[:120]}"
    try:
        found = Asset(target).process.ask("run", dict(inputs))
    except Exception as problem:
        return f"does not run: {str(problem).strip()[:120]}"
    return max(
        float(np.abs(found[name] - it).max() / np.abs(it).max())
        if found[name].shape == it.shape
        else np.inf
        for name, it in wanted.items()
    )


def of_family(name: str, folder: Path) -> dict[str, float | str]:
    """Return the errors of both for the family NAME of PyTorch."""
    model = open_model(source(name, folder))
    signature, module = model.signature, merged_in_memory(model)
    (probe, *_) = make_probes(signature, tokenizer=None, quick=True)
    tensors = {it: torch.from_numpy(np.asarray(x)) for it, x in probe.inputs.items()}
    with torch.no_grad():
        found = ByPosition(module, signature)(*(tensors[it.name] for it in signature.inputs))
    wanted = {it.name: x.numpy() for it, x in zip(signature.outputs, found, strict=True)}
    sides: dict[str, Write] = {
        "coreai-torch": lambda at: plain(module, signature, probe.inputs, at),
        "ours": lambda at: export_coreai(module, signature, at) and None,
    }
    return {
        side: error(write, folder / f"{side}.aimodel", probe.inputs, wanted)
        for side, write in sides.items()
    }


def of_module(name: str, folder: Path) -> dict[str, float | str]:
    """Return the error of mlx2coreai for the module NAME of MLX, where that is installed, else of ours."""
    import mlx.core as mx

    from weighbridge.benchmarks.captures.mlx_to_torch import SIZES, inputs_of
    from weighbridge.converters.captures import capture
    from weighbridge.tests.support.mlx_modules import built

    module, signature = built(name)
    inputs = inputs_of(signature, SIZES[0])
    port = signature.outputs[0].name
    wanted = np.array(module(**{it: mx.array(x) for it, x in inputs.items()}))

    if find_spec("mlx2coreai"):  # needs a release of coreai-core in which ours does not write
        return {"mlx2coreai": of_mlx2coreai(module, inputs, wanted, folder / "theirs.aimodel")}
    captured = capture(module, to="torch", inputs=inputs, dynamic=signature.dynamic)

    def ours(at: Path) -> None:
        export_coreai(captured, signature, at)

    return {"ours": error(ours, folder / "ours.aimodel", inputs, {port: wanted})}


def of_mlx2coreai(module: Any, inputs: Arrays, wanted: Any, target: Path) -> float | str:
    """Return how far what mlx2coreai makes of MODULE is from what is WANTED, or its own words."""
    from mlx2coreai import convert_mlx_to_coreai, run_aimodel_sync

    narrow = {it: x.astype(np.int32) if x.dtype == np.int64 else x for it, x in inputs.items()}
    try:
        convert_mlx_to_coreai(module, narrow, output_path=target)
        (found,) = run_aimodel_sync(target, narrow).outputs.values()
    except Exception as problem:  # whatever others raise
        return f"{type(problem).__name__}: {str(problem).strip()[:160]}"
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def tried(kind: str, names: list[str]) -> Iterator[tuple[str, dict[str, float | str]]]:
    """Yield each of NAMES, or of all, with its errors."""
    from weighbridge.tests.support.mlx_modules import MODULES

    for name in names or (FAMILIES if kind == "torch" else MODULES):
        with tempfile.TemporaryDirectory() as folder:
            yield name, (of_family if kind == "torch" else of_module)(name, Path(folder))


def main() -> None:
    """Compare the families or modules named on the command line, or all."""
    kind, *names = sys.argv[1:] or ["torch"]
    rows = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    for name, row in tried(kind, names):
        rows.setdefault(kind, {}).setdefault(name, {}).update(row)
        print(name, row, flush=True)
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
