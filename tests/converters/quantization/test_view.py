"""A quantized checkpoint, as mlx-lm writes and loads it, seen as the dense one it stands for."""

from __future__ import annotations

import json

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm.models.switch_layers import QuantizedSwitchLinear
from mlx_lm.utils import dequantize_model, load_model

from weighbridge.converters.checkpoints import open_checkpoint
from weighbridge.converters.common.dtypes import NUMPY
from weighbridge.converters.quantization import Dequantized, Scheme, dequantize, quantize
from weighbridge.errors import BadInputError, MismatchError

from .conftest import AFFINE, FLOATS, LLAMA, MOE, Arrays, parts_of, save, to_numpy, weights

QUANTIZED = (nn.QuantizedLinear, nn.QuantizedEmbedding, QuantizedSwitchLinear)
MIXED = {
    "lm_head": {"group_size": 32, "bits": 8},
    "model.embed_tokens": {"group_size": 64, "bits": 6},
    "model.layers.0.self_attn.q_proj": False,
    "model.layers.0.self_attn.v_proj": {"group_size": 32, "bits": 8, "mode": "mxfp8"},
    "model.layers.0.mlp.switch_mlp.up_proj": {"group_size": 16, "bits": 4, "mode": "nvfp4"},
}


def opened(folder):
    return Dequantized(open_checkpoint(folder), json.loads((folder / "config.json").read_text()))


def schemes_of(model):
    return {
        f"{path}.weight": Scheme(module.bits, module.group_size, module.mode)
        for path, module in model.named_modules()
        if isinstance(module, QUANTIZED)
    }


def compare(folder):
    """Compare the view of FOLDER with the model that mlx-lm loads and dequantizes."""
    view, (model, _) = opened(folder), load_model(folder)
    assert view.schemes == schemes_of(model)
    dense = dict(tree_flatten(dequantize_model(model).parameters()))
    assert set(view.headers) == set(dense)
    for name, array in dense.items():
        assert view.headers[name].shape == array.shape
        ours, theirs = view.read(name), to_numpy(array)
        # theirs is rounded twice to bfloat16; the middle of it can be as large as the bias
        largest = np.abs(theirs.astype(np.float32)).max()
        np.testing.assert_allclose(ours.astype(np.float32), theirs, rtol=0, atol=largest * 2**-6)
        if name not in view.schemes:
            assert ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("config", [LLAMA, MOE], ids=["llama", "qwen3_moe"])
def test_a_model_that_mlx_lm_converted_has_the_values_it_loads(config, tmp_path):
    save(tmp_path, config, group_size=32, bits=4)
    compare(tmp_path)


@pytest.mark.parametrize("config", [LLAMA, MOE], ids=["llama", "qwen3_moe"])
def test_a_mixed_recipe_is_followed_path_by_path(config, tmp_path):
    _, written = save(
        tmp_path, config, group_size=32, bits=3, predicate=lambda path, _: MIXED.get(path, True)
    )
    assert written["quantization"]["lm_head"] == MIXED["lm_head"]
    compare(tmp_path)
    assert len(set(opened(tmp_path).schemes.values())) >= 4


@pytest.mark.parametrize("mode", ["mxfp4", "mxfp8", "nvfp4"])
def test_a_floating_point_recipe_has_the_values_of_mlx_exactly(mode, tmp_path):
    scheme = Scheme.of({"mode": mode})
    save(tmp_path, MOE, **scheme.record)
    view, (model, _) = opened(tmp_path), load_model(tmp_path)
    dense = dict(tree_flatten(dequantize_model(model).parameters()))
    assert Scheme(8, 64) in view.schemes.values()  # qwen3_moe's own predicate: the router
    for name in (name for name, used in view.schemes.items() if used == scheme):
        np.testing.assert_array_equal(view.read(name), to_numpy(dense[name]).astype(np.float32))


def test_a_global_scale_of_experts_is_seen(tmp_path):
    save(tmp_path, MOE, group_size=16, bits=4, mode="nvfp4", global_scale=True)
    view, (model, _) = opened(tmp_path), load_model(tmp_path)
    name = "model.layers.0.mlp.switch_mlp.gate_proj.weight"
    assert set(view.parts(name)) == {"weight", "scales", "global_scale"}
    layer = model.model.layers[0].mlp.switch_mlp.gate_proj
    for expert in range(4):
        theirs = mx.dequantize(
            layer.weight[expert],
            layer.scales[expert],
            mode="nvfp4",
            global_scale=layer.global_scale[expert],
            dtype=mx.float32,
        )
        np.testing.assert_allclose(view.read(name)[expert], theirs, rtol=3e-7)
    assert b"".join(map(bytes, view.stream(name))) == view.read(name).tobytes()


@pytest.mark.parametrize("size", [1, 100, 200, 1000])
def test_so_it_is_in_any_piece(size, monkeypatch):
    from weighbridge.converters.quantization import mlx

    scheme, random = Scheme(4, 16, "nvfp4"), np.random.default_rng(0)
    array = random.standard_normal((3, 5, 64)) * [[[1]], [[30]], [[0.01]]]
    parts = quantize(array, scheme, "float32", global_scale=True)
    view = Dequantized(
        Arrays({f"up.{part}": it for part, it in parts.items()}), {"quantization": scheme.record}
    )
    whole = view.read("up.weight").tobytes()
    monkeypatch.setattr(mlx, "BLOCK", size)
    assert b"".join(map(bytes, view.stream("up.weight"))) == whole
    assert b"".join(map(bytes, view.stream("up.weight", 1500, 2600))) == whole[1500:2600]


def test_a_dense_checkpoint_is_seen_as_it_is(tmp_path):
    save(tmp_path, LLAMA)
    view = opened(tmp_path)
    assert view.headers == view.raw.headers
    assert not view.schemes
    assert (
        b"".join(map(bytes, view.stream("model.norm.weight")))
        == view.read("model.norm.weight").tobytes()
    )


def stored(scheme, shape=(3, 5, 128), **more):
    parts = quantize(to_numpy(weights(shape, "bfloat16")), scheme, "bfloat16")
    return Arrays({f"up.{part}": array for part, array in parts.items()} | more)


@given(st.sampled_from(AFFINE + FLOATS), st.integers(0, 7680), st.integers(0, 7680))
def test_any_bytes_may_be_asked_for(scheme, start, stop):
    view = Dequantized(stored(scheme), {"quantization": scheme.record})
    whole = view.read("up.weight").tobytes()
    assert len(whole) == view.headers["up.weight"].nbytes == 7680
    assert b"".join(map(bytes, view.stream("up.weight", start, stop))) == whole[start:stop]


def test_a_large_weight_is_streamed_in_pieces(monkeypatch):
    from weighbridge.converters.quantization import mlx

    scheme = Scheme(4, 32)
    view = Dequantized(stored(scheme), {"quantization": scheme.record})
    monkeypatch.setattr(mlx, "BLOCK", 300)
    pieces = [bytes(piece) for piece in view.stream("up.weight")]
    assert len(pieces) == 8
    assert b"".join(pieces) == dequantize(view.parts("up.weight"), scheme).tobytes()


def test_the_dtype_of_what_is_read_is_the_one_of_the_header():
    view = Dequantized(stored(Scheme(4, 32)), {"quantization": Scheme(4, 32).record})
    assert view.read("up.weight").dtype == NUMPY[view.headers["up.weight"].dtype]


def test_what_is_packed_without_a_recipe_is_refused():
    with pytest.raises(BadInputError, match=r"1 weights are quantized, up.weight first"):
        Dequantized(stored(Scheme(4, 32)), {})


@pytest.mark.parametrize("said", ["8", 8, None, [4]])
def test_an_override_that_is_no_scheme_is_refused(said):
    scheme = Scheme(4, 32)
    with pytest.raises(MismatchError, match=r"up: config.json says .*, expected an object, true"):
        Dequantized(stored(scheme), {"quantization": {**scheme.record, "up": said}})


def test_everything_that_does_not_fit_the_recipe_is_told_together():
    scheme = Scheme(4, 32)
    arrays = dict(stored(scheme).arrays)
    del arrays["up.biases"]
    for part, array in parts_of(weights((4, 64)), Scheme(8, 32)).items():
        arrays[f"down.{part}"] = array
    arrays["gate.weight"] = np.zeros((4, 64), np.float16)
    arrays["head.weight"], arrays["head.scales"] = arrays["down.weight"], arrays["up.scales"][0]
    config = {"quantization": {**scheme.record, "down": False, "gate": scheme.record}}
    with pytest.raises(MismatchError) as caught:
        Dequantized(Arrays(arrays), config)
    assert len(caught.value.problems) == 4
    for word in ("up.biases is missing", "down: config.json says false", "without scales", "head"):
        assert any(word in problem for problem in caught.value.problems)


def test_biases_beside_floating_point_codes_are_refused():
    scheme = Scheme(4, 32, "mxfp4")
    extra = {"up.biases": np.zeros((3, 5, 4), np.float16)}
    with pytest.raises(MismatchError, match=r"up.biases is not part of 4-bit mxfp4"):
        Dequantized(stored(scheme, **extra), {"quantization": scheme.record})


def test_a_shape_that_is_known_tells_how_a_weight_is_packed_that_the_config_does_not_name():
    config = {"quantization": Scheme(4, 64).record}
    raw, other = stored(Scheme(8, 32)), stored(Scheme(4, 64))  # as many bits in a group
    raw = Arrays(raw.arrays | {f"down.{n.split('.')[-1]}": it for n, it in other.arrays.items()})
    assert Dequantized(raw, config).headers["up.weight"].shape == (3, 5, 256)
    view = Dequantized(raw, config, {"up.weight": (3, 5, 128)})
    assert view.schemes == {"up.weight": Scheme(8, 32), "down.weight": Scheme(4, 64)}


@pytest.mark.parametrize("changed", [{"bits": 8}, {"group_size": 32}, {"bits": 2}])
def test_a_default_that_no_weight_has_is_refused(tmp_path, changed):
    _, config = save(tmp_path, LLAMA, group_size=64, bits=4)
    section = config["quantization"] | changed
    config |= {"quantization": section, "quantization_config": section}
    (tmp_path / "config.json").write_text(json.dumps(config))
    says = str(Scheme.of(section))
    with pytest.raises(
        MismatchError, match=rf"\w+: config.json says {says}, and names it not; stored is U32"
    ):
        opened(tmp_path)
