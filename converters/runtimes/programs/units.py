"""Which unit of a Mac Core ML means to run each operation of a package on, by its own plan."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from ...common.hints import counted
from ...common.memory import pass_on_shortage

# coremltools' classes of devices, in models/compute_device.py -> what they are called.
UNITS: Final = {
    "MLCPUComputeDevice": "CPU",
    "MLGPUComputeDevice": "GPU",
    "MLNeuralEngineComputeDevice": "Neural Engine",
}


def by_unit(plan: Any) -> Counter[str]:
    """Return how many operations the units run by PLAN, an ``MLComputePlan``; constants run on none."""
    from ...captures.mlprogram.package import operations

    found: Counter[str] = Counter()
    for function in plan.model_structure.program.functions.values():
        for operation in operations(function.block):
            usage = plan.get_compute_device_usage_for_mlprogram_operation(operation)
            if usage is not None:
                kind = type(usage.preferred_compute_device).__name__
                found[UNITS.get(kind, kind)] += 1
    return found


def planned(model: Any, units: Any) -> str:
    """Return what runs where of MODEL, an ``MLModel``, loaded for UNITS; empty where Core ML makes no plan.

    Plans are there from macOS 14.4 on.
    """
    try:
        from coremltools.models.compute_plan import MLComputePlan

        plan = MLComputePlan.load_from_path(model.get_compiled_model_path(), compute_units=units)
        found = by_unit(plan)
    except Exception as error:  # a plan is a note beside a verdict, and no ground for one
        pass_on_shortage(error)
        return ""
    return ", ".join(
        f"{counted(count, 'operation')} on {unit}" for unit, count in found.most_common()
    )
