"""Of a model too large for all its inner sites, a part of a text names the fault."""

from __future__ import annotations

from safetensors.numpy import load_file, save_file

from weighbridge.converters.planning.opening import open as open_model
from weighbridge.jobs.api import convert
from weighbridge.parity.blame import locating
from weighbridge.parity.check.check import check
from weighbridge.tests.support.atlas.tiny import make


def test_a_damaged_layer_is_named_from_few_tokens(tmp_path, monkeypatch):
    source, damaged = make("llama", tmp_path / "llama").folder, tmp_path / "damaged"
    convert(source, damaged, to="mlx", check="none")
    file = damaged / "model.safetensors"
    arrays = load_file(file)
    arrays["model.layers.1.mlp.down_proj.weight"][3] = 0
    save_file(arrays, file)
    monkeypatch.setattr(locating, "MEMORY", 1)
    monkeypatch.setattr(locating, "full_tokens", lambda _: 128)
    seen, plain = [], locating.sites_of

    def sites_of(golden, storage, chosen):
        seen.extend(chosen)
        return plain(golden, storage, chosen)

    monkeypatch.setattr(locating, "sites_of", sites_of)
    verdict = check(open_model(source), open_model(damaged), quick=True)
    assert verdict.status == "DIFFERS"
    assert [it.site for it in verdict.faults][:1] == ["model.layers.1.mlp.down_proj"]
    [probe] = seen
    assert probe.inputs["input_ids"].size == locating.LEAST
