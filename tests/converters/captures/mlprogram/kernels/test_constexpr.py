"""Compressed constants, against what coremltools itself decompresses."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.converters.captures.mlprogram.closest import closest
from weighbridge.converters.captures.mlprogram.kernels.constexpr import (
    CONSTEXPR,
    expand,
    shift_scale,
    unpack,
)
from weighbridge.converters.captures.mlprogram.program import load_program
from weighbridge.converters.captures.mlprogram.toolkit import coremltools as ct
from weighbridge.converters.captures.mlprogram.toolkit import quiet

with quiet():
    import coremltools.optimize.coreml as compression
    from coremltools.converters.mil.mil import Builder as mb  # noqa: N813
    from coremltools.optimize._utils import pack_elements_into_bits

OUT, IN = 64, 32
RANDOM = np.random.default_rng(0)
# Few distinct values and many zeros: k-means and pruning have something to find.
WEIGHT = RANDOM.standard_normal((OUT, IN)).astype(np.float32)


def quantize(config, **options):
    def run(model):
        op = getattr(compression, config)(weight_threshold=0, **options)
        function = {"OpLinear": "linear_quantize_weights", "OpPalett": "palettize_weights"}
        name = function.get(config[:8], "prune_weights")
        return getattr(compression, name)(model, compression.OptimizationConfig(op))

    return run


def joint(model):
    pruned = quantize("OpMagnitudePrunerConfig", target_sparsity=0.5)(model)
    op = compression.OpLinearQuantizerConfig(weight_threshold=0)
    config = compression.OptimizationConfig(op)
    return compression.linear_quantize_weights(pruned, config, joint_compression=True)


def joint_palette(model):
    pruned = quantize("OpMagnitudePrunerConfig", target_sparsity=0.5)(model)
    op = compression.OpPalettizerConfig(mode="uniform", nbits=4, weight_threshold=0)
    config = compression.OptimizationConfig(op)
    return compression.palettize_weights(pruned, config, joint_compression=True)


# name -> (deployment target, compression, constexpr operations that it must give)
SCHEMES = {
    "int8 per channel, iOS 16": ("iOS16", quantize("OpLinearQuantizerConfig"),
                                 {"constexpr_affine_dequantize"}),
    "uint8 with offset, iOS 18": ("iOS18", quantize("OpLinearQuantizerConfig", mode="linear",
                                                    dtype="uint8"),
                                  {"constexpr_blockwise_shift_scale"}),
    "int4 in blocks of 16": ("iOS18", quantize("OpLinearQuantizerConfig", dtype="int4", mode="linear",
                                               granularity="per_block", block_size=16),
                             {"constexpr_blockwise_shift_scale"}),
    "palette of 4 bits, iOS 16": ("iOS16", quantize("OpPalettizerConfig", mode="uniform", nbits=4),
                                  {"constexpr_lut_to_dense"}),
    "palette of 3 bits in groups": ("iOS18", quantize("OpPalettizerConfig", mode="uniform", nbits=3,
                                                      granularity="per_grouped_channel",
                                                      group_size=16),
                                    {"constexpr_lut_to_dense"}),
    "palette of vectors": ("iOS18", quantize("OpPalettizerConfig", mode="kmeans", nbits=4,
                                             cluster_dim=4),
                           {"constexpr_lut_to_dense"}),
    "palette with a scale per channel": ("iOS18", quantize("OpPalettizerConfig", mode="uniform",
                                                           nbits=4,
                                                           enable_per_channel_scale=True),
                                         {"constexpr_lut_to_dense",
                                          "constexpr_blockwise_shift_scale"}),
    "sparse, iOS 16": ("iOS16", quantize("OpMagnitudePrunerConfig", target_sparsity=0.6),
                       {"constexpr_sparse_to_dense"}),
    "sparse, iOS 18": ("iOS18", quantize("OpMagnitudePrunerConfig", target_sparsity=0.6),
                       {"constexpr_sparse_to_dense"}),
    "sparse and int8": ("iOS18", joint, {"constexpr_sparse_blockwise_shift_scale",
                                         "constexpr_sparse_to_dense"}),
    "sparse and palette": ("iOS18", joint_palette, {"constexpr_lut_to_sparse",
                                                    "constexpr_sparse_to_dense"}),
}  # fmt: skip


@pytest.fixture(scope="module")
def models():
    """Return one small model for each deployment target, uncompressed."""

    def build(target):
        @mb.program(input_specs=[mb.TensorSpec((1, IN))], opset_version=getattr(ct.target, target))
        def program(x):
            return mb.linear(x=x, weight=WEIGHT, name="y")

        with quiet():
            return ct.convert(
                program,
                convert_to="mlprogram",
                minimum_deployment_target=getattr(ct.target, target),
                compute_precision=ct.precision.FLOAT32,
                skip_model_load=True,
            )

    return {target: build(target) for target in ("iOS16", "iOS18")}


def weight_of(model, folder):
    path = folder / "model.mlpackage"
    with quiet():
        model.save(str(path))
    program = load_program(path)
    return program, max(program.constants().values(), key=np.size)  # the other is a zero bias


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_compressed_weights_expand_to_what_coremltools_makes_of_them(scheme, models, tmp_path):
    target, compress, operations = SCHEMES[scheme]
    with quiet():
        compressed = compress(models[target])
    program, weight = weight_of(compressed, tmp_path)
    assert operations <= set(program.census)
    with quiet():
        plain = compression.decompress_weights(compressed)
    (tmp_path / "plain").mkdir()
    _, expected = weight_of(plain, tmp_path / "plain")
    np.testing.assert_array_equal(weight, expected)
    x = RANDOM.standard_normal((1, IN)).astype(np.float32)
    np.testing.assert_allclose(program.run({"x": x})["y"], x @ expected.T, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_a_compressed_weight_is_the_nearest_to_its_own_source_and_to_no_other(
    scheme, models, tmp_path
):
    target, compress, _ = SCHEMES[scheme]
    with quiet():
        compressed = compress(models[target])
    program, held = weight_of(compressed, tmp_path)
    (variable,) = program.compressed().values()

    def missed(source):
        found = closest(variable, source.astype(np.float64))
        gap, least = np.abs(held - source), np.abs(found.values - source)
        return np.mean(~(gap - least <= found.room))

    assert missed(WEIGHT) == 0
    assert missed(WEIGHT[::-1]) > 0.1


def test_the_schemes_cover_every_constexpr_operation_but_the_cast():
    covered = Counter(name for _, _, names in SCHEMES.values() for name in names)
    assert set(covered) == set(CONSTEXPR) - {"constexpr_cast"}


def test_constexpr_cast_widens():
    (wide,) = expand("constexpr_cast", {"source_val": np.float16([0.1]), "output_dtype": "fp32"})
    assert wide.dtype == np.float32
    assert wide[0] == np.float16(0.1)


@given(st.sampled_from([1, 2, 3, 4, 6, 8]), st.lists(st.integers(0, 255), min_size=1, max_size=20))
def test_unpack_reads_what_coremltools_packs(bits, numbers):
    elements = np.uint8([number % 2**bits for number in numbers])
    packed = pack_elements_into_bits(elements, bits)
    np.testing.assert_array_equal(unpack(packed, bits, len(elements)), elements)


def test_offsets_may_be_floats():
    """So that an affine group, ``scale * q + bias``, is the offset ``-bias / scale``."""
    q, scale, bias = np.int8([[1, 2, 3, 4]]), np.float32([[0.5, 0.25]]), np.float32([[1.0, -2.0]])
    expanded = shift_scale(q, scale, -bias / scale)
    np.testing.assert_allclose(expanded, [[1.5, 2.0, -1.25, -1.0]])


def test_the_iOS18_documentation_of_grouped_palettes_holds():  # noqa: N802
    indices = np.uint8([[2, 3], [3, 0], [1, 0], [3, 0], [2, 1], [0, 3]])
    lut = np.float16([1, 5, 9, 13, 2, 10, 18, 26]).reshape(2, 1, 4, 1)
    (dense,) = expand("constexpr_lut_to_dense", {"indices": indices, "lut": lut})
    assert dense.tolist() == [[9, 13], [13, 1], [5, 1], [26, 2], [18, 10], [2, 26]]
