"""Compressed packages weighed by the command line: each weight by its codes, and then what they compute."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from click.testing import CliRunner

from weighbridge.cli import main
from weighbridge.converters.captures.mlprogram.package import read_package
from weighbridge.converters.coreml.export import export_coreml
from weighbridge.converters.coreml.writing import write_metadata
from weighbridge.parity.packages.compressed import out_of_order
from weighbridge.tests.support.coreml import modules
from weighbridge.tests.support.coreml.foreign import WAYS, compressed
from weighbridge.tests.support.coreml.models import make

SOURCE = f"{modules.__name__}:heads8"
INTEGERS = (21, 31)  # int8 and uint8 in Core ML's format
pytestmark = pytest.mark.filterwarnings("ignore")


def judged(package, source=SOURCE):
    """Check PACKAGE against SOURCE; return the exit code and the verdict."""
    result = CliRunner().invoke(main, ["parity", "check", source, str(package), "--json"])
    return result.exit_code, json.loads(result.stdout)


def stage(verdict, name):
    """Return the stage NAME of VERDICT."""
    return next(it for it in verdict["stages"] if it["name"] == name)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Return a package of the source as it is."""
    target = tmp_path_factory.mktemp("exported") / "m.mlpackage"
    module, signature = modules.heads8()
    export_coreml(module, signature, target)
    return target


@pytest.mark.heavy
@pytest.mark.parametrize("way", WAYS)
def test_a_compressed_package_computes_what_its_weights_predict(way, exported, tmp_path):
    code, verdict = judged(compressed(exported, way, tmp_path / "m.mlpackage"))
    assert (code, verdict["status"]) == (0, "PASS-REFERENCE")
    found = stage(verdict, "compressed")
    assert found["status"] == "pass"
    assert "3 weights are the nearest" in found["detail"]
    assert all(0 < moved < 1 for moved in found["figures"]["moved"].values())


def without_manifest(path):
    """Take what Weighbridge wrote out of the package at PATH; return PATH."""
    package = read_package(path)
    package.spec.description.metadata.userDefined.clear()
    write_metadata(package, {})
    return path


@pytest.mark.heavy
def test_a_compressed_package_without_a_manifest_is_explained_by_its_values(exported, tmp_path):
    code, verdict = judged(
        without_manifest(compressed(exported, "palette", tmp_path / "m.mlpackage"))
    )
    assert (code, verdict["status"]) == (0, "PASS-REFERENCE"), verdict["stages"]


@pytest.mark.heavy
@pytest.mark.parametrize(("build", "code"), [("gated", 0), ("ungated", 1)])
def test_gates_of_a_package_without_a_manifest_are_found_by_their_values(build, code, tmp_path):
    package = tmp_path / "m.mlpackage"
    export_coreml(*getattr(modules, build)(), package)
    found, verdict = judged(without_manifest(package), f"{modules.__name__}:gated")
    assert found == code
    assert verdict["status"] == ("DIFFERS" if code else "PASS-REFERENCE")
    assert ("blocks.0.alpha: missing" in json.dumps(verdict)) == bool(code)


@pytest.mark.heavy
@pytest.mark.parametrize("way", WAYS)
def test_a_package_compressed_from_other_weights_differs_and_they_are_named(way, tmp_path):
    module, signature = modules.heads8()
    module.attention.out.weight.data[3] *= -1
    package = tmp_path / "m.mlpackage"
    export_coreml(module, signature, package)
    code, verdict = judged(compressed(package, way, tmp_path / "c.mlpackage"))
    assert (code, verdict["status"]) == (1, "DIFFERS")
    found = stage(verdict, "compressed")
    assert found["status"] == "fail"
    assert "not the nearest to attention.out.weight" in found["detail"]


def spoil(path, names, change):
    """Put CHANGE of the parameter of one of NAMES in its place in every compressed constant at PATH."""
    package = read_package(path)
    file = next(path.rglob("weight.bin"))
    data = bytearray(file.read_bytes())
    for function in package.spec.mlProgram.functions.values():
        for operation in function.block_specializations[function.opset].operations:
            given = {it: operation.attributes[it] for it in names if it in operation.attributes}
            given |= {
                it: operation.inputs[it].arguments[0].value
                for it in names
                if it in operation.inputs
            }
            for value in given.values() if operation.type.startswith("constexpr_") else ():
                kind = np.int8 if value.type.tensorType.dataType in INTEGERS else np.float16
                if value.HasField("blobFileValue"):
                    at = value.blobFileValue.offset + 16
                    size, begin = struct.unpack_from("<QQ", data, at - 8)
                    data[begin : begin + size] = spoiled(data[begin : begin + size], kind, change)
                else:
                    held = value.immediateValue.tensor.bytes
                    held.values = spoiled(held.values, kind, change)
    file.write_bytes(data)
    next(path.rglob("*.mlmodel")).write_bytes(package.spec.SerializeToString())
    return path


def spoiled(data, kind, change):
    return change(np.frombuffer(bytes(data), kind)).astype(kind).tobytes()


def third_up(codes):
    """Return CODES, every third one more where there is room."""
    return np.where((np.arange(codes.size) % 3 == 0) & (np.abs(codes) < 60), codes + 1, codes)


SPOILED = {
    "scales of 0": ("int8", ("scale",), np.zeros_like, "DIFFERS"),
    "scales a thousandth": ("int8", ("scale",), lambda scale: scale / 1000, "DIFFERS"),
    "tables of one number": ("palette", ("lut",), lambda lut: np.full_like(lut, 0.5), "DIFFERS"),
    "codes one off": ("int8", ("quantized_data", "data"), third_up, "DIFFERS"),
}


@pytest.mark.heavy
@pytest.mark.parametrize("what", SPOILED)
def test_codes_and_scales_that_are_not_the_sources_do_not_pass(what, exported, tmp_path):
    way, names, change, status = SPOILED[what]
    package = compressed(exported, way, tmp_path / "m.mlpackage")
    code, verdict = judged(spoil(package, names, change))
    assert verdict["status"] == status, verdict["stages"]
    assert code != 0
    assert stage(verdict, "compressed")["status"] != "pass"


@pytest.mark.heavy
def test_a_golden_does_not_judge_compressed_weights(exported, tmp_path):
    package = compressed(exported, "palette", tmp_path / "m.mlpackage")
    golden = str(tmp_path / "golden")
    assert CliRunner().invoke(main, ["parity", "record", SOURCE, golden]).exit_code == 0
    result = CliRunner().invoke(main, ["parity", "check", golden, str(package)])
    assert result.exit_code == 3
    assert "name the source itself" in result.stderr


def test_a_sparse_weight_has_lost_its_smallest_numbers_of_all_or_of_each_run():
    sizes = np.float64([[1, 2, 3, 4], [5, 6, 7, 8]])
    of_all = sizes < 5
    of_each_pair = np.array([[True, False] * 2] * 2)
    assert out_of_order(sizes, of_all) == 0
    assert out_of_order(sizes, of_each_pair) == 0
    assert out_of_order(sizes, ~of_all) == 4


@pytest.mark.heavy
def test_experts_that_are_computed_together_are_each_told_by_their_codes(tmp_path):
    source, package = make("Qwen3-MoE", tmp_path / "source"), tmp_path / "m.mlpackage"
    words = ("export", "coreml", str(source), str(package), "--quantize", "int4", "--block", "4")
    result = CliRunner().invoke(main, [*words, "--json"])
    verdict = json.loads(result.stdout)["verdict"]
    assert (result.exit_code, verdict["status"]) == (0, "PASS-REFERENCE")
    assert "mlp.experts.0.gate_proj.weight" in stage(verdict, "compressed")["detail"]
