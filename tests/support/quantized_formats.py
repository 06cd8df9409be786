"""Quantized formats of Hugging Face decoded by their own libraries' formulas, written out with numpy.

Each takes the tensors of one module, called ``up``, with the ``quantization_config``, and returns its weight
in float64, outputs by inputs. They share nothing with the readers of this program.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np


def bits_of(row, bits, count):
    """Return COUNT codes of a row of words: element i begins at bit ``i * bits``."""
    number = int.from_bytes(row.tobytes(), "little")
    return [(number >> (place * bits)) & (2**bits - 1) for place in range(count)]


def across(words, bits, count):
    """Return COUNT codes of each row of WORDS."""
    return np.array([bits_of(row, bits, count) for row in np.ascontiguousarray(words)])


def down(words, bits, count):
    """Return COUNT codes of each column of WORDS."""
    return across(words.T, bits, count).T


def wide(groups, columns):
    """Return numbers of GROUPS for each of COLUMNS, in float64."""
    return np.repeat(groups.astype(np.float64), columns // groups.shape[1], axis=1)


def by_metal(tensors, section):
    """`transformers/integrations/metal_quantization.py`, ``_affine_dequantize_tensor``."""
    bits, words = section["bits"], tensors["up.weight"]
    codes = across(words, bits, words.shape[1] * 32 // bits)
    scales, biases = (wide(tensors[f"up.{it}"], codes.shape[1]) for it in ("scales", "qbiases"))
    return codes * scales + biases


def by_compressed_tensors(tensors, section):
    """`compressed_tensors/compressors` of 0.20: pack_quantized, nvfp4, mxfp4 and mxfp8."""
    [group] = section["config_groups"].values()
    weights, scale = group["weights"], tensors["up.weight_scale"]
    if weights["type"] == "float":
        return _floats(tensors, weights["num_bits"], scale)
    bits, (rows, columns) = weights["num_bits"], tensors["up.weight_shape"]
    codes = across(tensors["up.weight_packed"], bits, columns)
    zeros = np.full(scale.shape, 2 ** (bits - 1))
    if not weights["symmetric"]:
        zeros = down(tensors["up.weight_zero_point"], bits, rows)
    return (codes - wide(zeros, columns)) * wide(scale, columns)


def _floats(tensors, bits, scale):
    if bits == 8:
        values = tensors["up.weight"].astype(np.float64)
    else:
        packed = tensors["up.weight_packed"]
        codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(len(packed), -1)
        values = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    powers = scale.dtype == np.uint8
    scales = 2.0 ** (scale.astype(np.float64) - 127) if powers else scale.astype(np.float64)
    factor = tensors.get("up.weight_global_scale", np.ones(1))
    return values * wide(scales / factor, values.shape[1])


def by_gptq(tensors, section):
    """`gptqmodel/nn_modules/qlinear/__init__.py`, ``dequantize_weight``."""
    bits, order = section["bits"], tensors["up.g_idx"]
    codes = down(tensors["up.qweight"], bits, len(order))
    zeros = across(tensors["up.qzeros"], bits, codes.shape[1])
    zeros = zeros + (section["checkpoint_format"] == "gptq")
    scales = tensors["up.scales"].astype(np.float64)
    return (scales[order] * (codes - zeros[order])).T


def by_awq(tensors, section):
    """`awq/utils/packing_utils.py`, ``dequantize_gemm``."""

    def unpacked(words):
        codes = (words.view(np.uint32)[..., None] >> np.arange(0, 32, 4, dtype=np.uint32)) & 15
        return codes[..., [0, 4, 1, 5, 2, 6, 3, 7]].reshape(len(words), -1).astype(np.int64)

    size = section["group_size"]
    zeros = np.repeat(unpacked(tensors["up.qzeros"]), size, axis=0)
    scales = np.repeat(tensors["up.scales"].astype(np.float64), size, axis=0)
    return ((unpacked(tensors["up.qweight"]) - zeros) * scales).T


def by_mxfp4(tensors, section):
    """`transformers/integrations/mxfp4.py`, ``_convert_moe_packed_tensors``; outputs before inputs."""
    blocks, scales = tensors["up_blocks"], tensors["up_scales"]
    codes = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*scales.shape, 32)
    values = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    worth = values * 2.0 ** (scales.astype(np.float64) - 127)[..., None]
    return worth.reshape(*scales.shape[:-1], -1)


def by_fp8(tensors, section):
    """`transformers/integrations/finegrained_fp8.py`, ``Fp8Dequantize``, for blocks that divide."""
    values, scales = (
        tensors[f"up.{it}"].astype(np.float64) for it in ("weight", "weight_scale_inv")
    )
    tall, broad = (a // b for a, b in zip(values.shape, scales.shape, strict=True))
    return values * np.kron(scales, np.ones((tall, broad)))


def by_bitnet(tensors, section):
    """`transformers/integrations/bitnet.py`, ``unpack_weights`` and ``AutoBitLinear``."""
    packed = tensors["up.weight"]
    codes = np.concatenate([packed >> (2 * place) & 3 for place in range(4)]).astype(np.float64)
    return (codes - 1) * tensors["up.weight_scale"].astype(np.float64)


BY = {
    "metal": by_metal,
    "compressed-tensors": by_compressed_tensors,
    "gptq": by_gptq,
    "awq": by_awq,
    "mxfp4": by_mxfp4,
    "fp8": by_fp8,
    "bitnet": by_bitnet,
}
