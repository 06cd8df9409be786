"""Whole programs, built with coremltools, evaluated here."""

from __future__ import annotations

import numpy as np
import pytest

from weighbridge.converters.captures.mlprogram.evaluator import Evaluation
from weighbridge.converters.captures.mlprogram.program import load_program
from weighbridge.converters.captures.mlprogram.toolkit import coremltools as ct
from weighbridge.converters.captures.mlprogram.toolkit import quiet, types
from weighbridge.errors import BadInputError, MismatchError, UnsupportedError

with quiet():
    from coremltools.converters.mil.mil import Builder as mb  # noqa: N813

WEIGHT = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
X = np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32)


def spec(*shape, dtype=None):
    return mb.TensorSpec(shape, dtype=dtype or types.fp32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("packages")


@pytest.fixture(scope="module")
def layer(folder, build_package):
    """A linear layer and a square, in float16."""

    def body(x):
        return mb.square(x=mb.linear(x=x, weight=WEIGHT, name="projection"), name="squared")

    path = build_package(folder / "layer.mlpackage", body, [spec(3, 4)], half=True)
    return load_program(path)


@pytest.fixture(scope="module")
def branch(folder, build_package):
    """``x * 2`` if the flag is set, ``x - 1`` otherwise."""

    def body(flag, x):
        pred = mb.squeeze(x=mb.cast(x=flag, dtype="bool"))
        return mb.cond(
            pred=pred,
            _true_fn=lambda: mb.mul(x=x, y=np.float32(2)),
            _false_fn=lambda: mb.sub(x=x, y=np.float32(1)),
            name="y",
        )

    path = folder / "branch.mlpackage"
    return load_program(build_package(path, body, [spec(1, dtype=types.int32), spec(3, 4)]))


@pytest.fixture(scope="module")
def loop(folder, build_package):
    """Doubles ``x`` while the counter is less than 5, from a start that the caller gives."""

    def body(start, x):
        return mb.while_loop(
            _cond=lambda i, _: mb.squeeze(x=mb.less(x=i, y=np.int32(5))),
            _body=lambda i, y: (mb.add(x=i, y=np.int32(1)), mb.mul(x=y, y=np.float32(2))),
            loop_vars=(start, x),
            name="y",
        )[1]

    path = folder / "loop.mlpackage"
    return load_program(build_package(path, body, [spec(1, dtype=types.int32), spec(3, 4)]))


def test_declared_precision_rounds_every_result_and_float32_none(layer):
    half = lambda array: array.astype(np.float16).astype(np.float32)  # noqa: E731
    weight, x = half(WEIGHT), half(X)
    shadow = layer.run({"x": X}, precision="float32")["squared"]
    np.testing.assert_allclose(shadow, (X @ weight.T) ** 2, rtol=1e-5)
    rounded = layer.run({"x": X})["squared"]
    np.testing.assert_array_equal(rounded, half(half(x @ weight.T) ** 2))
    assert not np.array_equal(rounded, shadow)


def test_outputs_have_the_declared_dtype(layer):
    assert layer.outputs["squared"].dtype == "float32"
    assert layer.run({"x": X})["squared"].dtype == np.float32


def test_constants_keep_float16(layer):
    found = [array for array in layer.constants().values() if array.ndim == 2]
    assert [array.dtype for array in found] == [np.float16]
    np.testing.assert_array_equal(found[0], WEIGHT.astype(np.float16))


def test_the_first_operation_that_overflows_is_named(layer):
    assert layer.first_nonfinite({"x": X}) is None
    found = layer.first_nonfinite({"x": X * 1e3})
    assert (found.operation, found.nans) == ("square", 0)
    assert found.infinities > 0
    assert layer.first_nonfinite({"x": X * 1e3}, precision="float32") is None


def test_trace_records_operations_and_applies_corrections(layer):
    outputs, sites = layer.trace({"x": X}, "float32")
    name = next(name for name in sites if name.startswith("projection"))
    np.testing.assert_allclose(sites[name] ** 2, outputs["squared"], rtol=1e-6)
    corrected, again = layer.trace({"x": X}, "float32", {name: np.full((3, 5), 3.0)})
    np.testing.assert_array_equal(again[name], sites[name])  # what it computed itself
    np.testing.assert_array_equal(corrected["squared"], np.full((3, 5), 9.0))


def test_sites_that_end_at_one_operation_are_corrected_innermost_first(layer):
    _, sites = layer.trace({"x": X}, "float32")
    name = next(name for name in sites if name.startswith("projection"))
    ones = {"inner": np.ones((3, 5))}
    _, found = layer.trace({"x": X}, "float32", ones, {name: ["inner", "outer"]})
    np.testing.assert_array_equal(found["inner"], sites[name])
    np.testing.assert_array_equal(found["outer"], np.ones((3, 5)))


@pytest.mark.parametrize(("flag", "expected"), [(1, X * 2), (0, X - 1)])
def test_one_of_two_branches_runs(flag, expected, branch):
    got = branch.run({"flag": np.int32([flag]), "x": X})
    np.testing.assert_allclose(next(iter(got.values())), expected, rtol=1e-6)


@pytest.mark.parametrize("start", [5, 4, 0])
def test_a_loop_runs_while_its_condition_holds(start, loop):
    got = loop.run({"start": np.int32([start]), "x": X})
    np.testing.assert_allclose(next(iter(got.values())), X * 2 ** (5 - start), rtol=1e-6)


def test_states_live_from_run_to_run_and_begin_at_zero(folder, build_package):
    def body(state, x):
        total = mb.add(x=mb.read_state(input=state), y=mb.cast(x=x, dtype="fp16"))
        kept = mb.coreml_update_state(state=state, value=total)
        return mb.cast(x=kept, dtype="fp32", name="total")

    state_spec = mb.StateTensorSpec((2,), dtype=types.fp16)
    path = folder / "state.mlpackage"
    program = load_program(build_package(path, body, [state_spec, spec(2)], target="iOS18"))
    assert list(program.inputs) == ["x"]
    state, x = program.new_state(), np.float32([1, 2])
    totals = [program.run({"x": x}, state=state)["total"].tolist() for _ in range(3)]
    assert totals == [[1, 2], [2, 4], [3, 6]]
    assert program.run({"x": x})["total"].tolist() == [1, 2]


def test_a_function_of_a_multifunction_package_is_chosen_by_name(folder, build_package):
    def times(factor):
        return lambda x: mb.mul(x=x, y=np.float32(factor), name="y")

    for name, factor in (("double", 2), ("triple", 3)):
        build_package(folder / f"{name}.mlpackage", times(factor), [spec(3, 4)], target="iOS18")
    path = folder / "both.mlpackage"
    with quiet():
        both = ct.utils.MultiFunctionDescriptor()
        for name in ("double", "triple"):
            both.add_function(str(folder / f"{name}.mlpackage"), "main", name)
        both.default_function_name = "triple"
        ct.utils.save_multifunction(both, str(path))
    np.testing.assert_array_equal(load_program(path).run({"x": X})["y"], X * np.float32(3))
    program = load_program(path, "double")
    np.testing.assert_array_equal(program.run({"x": X})["y"], X * np.float32(2))
    with pytest.raises(BadInputError, match="no function main; there are triple, double"):
        load_program(path, "main")


def test_operations_without_a_kernel_are_counted_before_anything_runs(folder, build_package):
    def body(x):
        scores = np.ones((1, 5, 2), np.float32)
        limits = {"iou_threshold": 0.5, "max_boxes": 2}
        found = [mb.non_maximum_suppression(boxes=x, scores=scores, **limits)[0] for _ in range(2)]
        return mb.add(x=found[0], y=found[1])

    path = build_package(folder / "boxes.mlpackage", body, [spec(1, 5, 4)])
    with pytest.raises(UnsupportedError) as caught:
        load_program(path)
    message = str(caught.value)
    assert "operations cannot be evaluated" in message
    assert "non_maximum_suppression (" in message


def test_inputs_that_do_not_fit_are_all_listed(layer):
    with pytest.raises(MismatchError) as caught:
        layer.run({"X": X})
    assert caught.value.problems == ("x is missing", "X is no input")
    with pytest.raises(MismatchError, match=r"x has shape \[4, 3\], expected float32\[3, 4\]"):
        layer.run({"x": X.T})


def test_an_index_out_of_range_is_refused_in_one_line(folder, build_package):
    def body(i):
        return mb.gather(x=WEIGHT, indices=i, axis=0, name="row")

    program = load_program(
        build_package(folder / "gather.mlpackage", body, [spec(2, dtype=types.int32)])
    )
    np.testing.assert_array_equal(program.run({"i": np.int32([4, 0])})["row"], WEIGHT[[4, 0]])
    with pytest.raises(BadInputError, match=r"row \(gather\)"):
        program.run({"i": np.int32([4, 7])})


def test_packages_made_by_others_have_an_empty_manifest(layer):
    assert layer.manifest == {}


def test_the_census_counts_operations_without_constants(branch):
    assert branch.census == {"cast": 1, "squeeze": 1, "cond": 1, "mul": 1, "sub": 1}


def test_what_no_operation_reads_any_more_is_forgotten(layer, loop, monkeypatch):
    runs = []
    begin = Evaluation.__init__
    monkeypatch.setattr(
        Evaluation, "__init__", lambda self, *a, **k: (runs.append(self), begin(self, *a, **k))[1]
    )
    layer.run({"x": X})
    loop.run({"start": np.zeros(1, np.int32), "x": X})
    kept = [{it.name for it in run.values} for run in runs]
    assert kept[0] == {"x", *(it for it in kept[0] if "squared" in it)}
    assert "projection" not in kept[0]
    assert "y_1" in kept[1]


def test_rounding_a_result_changes_nothing_that_is_read_again(folder, build_package):
    """Views of a value, and what several operations read, stay as they are."""

    def body(x):
        whole = mb.add(x=x, y=np.float32(0.1))
        view = mb.reshape(x=whole, shape=(4, 3))
        turned = mb.matmul(x=view, y=whole)
        return mb.add(x=mb.reduce_sum(x=turned), y=mb.reduce_sum(x=whole), name="y")

    path = build_package(folder / "views.mlpackage", body, [spec(3, 4)], half=True)
    half = lambda array: np.asarray(array, np.float16).astype(np.float32)  # noqa: E731
    whole = half(half(X) + half(np.float32(0.1)))
    turned = half(whole.reshape(4, 3) @ whole)
    wanted = half(half(turned.sum()) + half(whole.sum()))
    x = X.copy()
    np.testing.assert_allclose(load_program(path).run({"x": x})["y"], wanted, rtol=2e-3)
    np.testing.assert_array_equal(x, X)
