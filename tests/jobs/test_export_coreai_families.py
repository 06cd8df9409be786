"""Families as Core AI assets: those that pass, and those that are known not to."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from weighbridge.cli import main
from weighbridge.tests.support.coreml.families import NAMES
from weighbridge.tests.support.coreml.families import source as family
from weighbridge.tests.support.coreml.models import MORE

pytest.importorskip("coreai", reason="Core AI has no package for this machine")
GAPS = {
    "ResNet": "the converter folds batch norms into the weights of convolutions",
    "wav2vec2": "the converter folds the weight norm",
}


def tried(name):
    """Return the case NAME, expected to fail where a gap is known: so a gap that closes is noticed."""
    gap = [pytest.mark.xfail(strict=True, reason=GAPS[name])] if name in GAPS else []
    return pytest.param(name, marks=[pytest.mark.heavy, *gap], id=name)


@pytest.mark.parametrize("name", [tried(name) for name in (*NAMES, *MORE)])
def test_every_family_passes_in_core_ai(name, tmp_path):
    words = ("export", "coreai", family(name, tmp_path), str(tmp_path / "m.aimodel"), "--json")
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["verdict"]["status"] == "PASS"
