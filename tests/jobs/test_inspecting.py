"""What ``doctor`` says of a machine that has the core alone, or everything."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from weighbridge.cli import main
from weighbridge.converters.routes import CONVERSIONS, ROUTES
from weighbridge.jobs import inspecting

CORE = {"numpy", "safetensors"}


def routes():
    result = CliRunner().invoke(main, ["doctor", "--json"])
    return json.loads(result.stdout)["routes"]


def test_with_the_core_alone_a_table_converts_and_nothing_else_runs(monkeypatch):
    found = inspecting.version_of
    monkeypatch.setattr(inspecting, "version_of", lambda it: found(it) if it in CORE else None)
    said = routes()
    tabled = {f"{route.source} to {route.target}" for route in CONVERSIONS}
    assert {name for name, state in said.items() if state.startswith("converts")} == tabled
    others = {f"{route.source} to {route.target}" for route in ROUTES} - tabled
    assert {name for name, state in said.items() if state.startswith("does not run")} == others
    assert all("pip install " in state for state in said.values())


@pytest.mark.parametrize("name", ["torch to mlx", "mlx to onnx"])
def test_what_is_installed_runs_and_is_checked(name):
    assert routes()[name] == "runs and is checked"
