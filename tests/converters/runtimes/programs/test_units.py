"""Which unit runs what, read from a stand-in for Core ML's own plan: nothing here was run on a Mac."""

from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from weighbridge.cli import main
from weighbridge.converters.runtimes.programs import units
from weighbridge.parity.report.terminal import provenance_lines


def device(name):
    return SimpleNamespace(preferred_compute_device=type(name, (), {})())


def operation(name, *inside):
    blocks = [SimpleNamespace(operations=list(inside))] if inside else []
    return SimpleNamespace(operator_name=name, blocks=blocks)


WHERE = {
    "linear": device("MLNeuralEngineComputeDevice"),
    "while_loop": device("MLCPUComputeDevice"),
    "add": device("MLGPUComputeDevice"),
    "gelu": device("MLNeuralEngineComputeDevice"),
}


class Plan:
    """A plan of a linear layer on the Neural Engine and a loop on the CPU, whose body the GPU runs."""

    def __init__(self):
        loop = operation("while_loop", operation("add"))
        block = SimpleNamespace(
            operations=[operation("const"), operation("linear"), operation("gelu"), loop]
        )
        program = SimpleNamespace(functions={"main": SimpleNamespace(block=block)})
        self.model_structure = SimpleNamespace(program=program)

    def get_compute_device_usage_for_mlprogram_operation(self, asked):
        return WHERE.get(asked.operator_name)


def test_operations_are_counted_by_the_unit_that_runs_them():
    assert units.by_unit(Plan()) == {"Neural Engine": 2, "CPU": 1, "GPU": 1}


def test_the_plan_is_read_from_the_compiled_model(monkeypatch):
    from coremltools.models import compute_plan

    asked = []

    def load(path, compute_units):
        asked.append((path, compute_units))
        return Plan()

    monkeypatch.setattr(compute_plan.MLComputePlan, "load_from_path", load)
    model = SimpleNamespace(get_compiled_model_path=lambda: "m.mlmodelc")
    found = units.planned(model, "ALL")
    assert found == "2 operations on Neural Engine, 1 operation on CPU, 1 operation on GPU"
    assert asked == [("m.mlmodelc", "ALL")]
    runner = {"runtime": "coreml", "device": "all", "plan": found}
    lines = [str(it) for it in provenance_lines({"candidate": {"runner": runner}})]
    assert lines[-1] == f"Core ML's plan: {found}"


def test_without_a_plan_nothing_is_said():
    assert units.planned(SimpleNamespace(), "ALL") == ""


@pytest.mark.parametrize("name", ["gpu", "ane", "all"])
def test_another_device_than_the_cpu_is_refused_off_a_mac(name, tmp_path, monkeypatch):
    monkeypatch.setattr("platform.system", lambda: "Linux")
    source = "weighbridge.tests.support.coreml.modules:gated"
    result = CliRunner().invoke(main, ["parity", "check", source, source, "--device", name])
    assert result.exit_code == 3
    assert f"--device {name} is for Core ML packages on a Mac" in " ".join(result.output.split())
