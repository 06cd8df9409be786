"""GGUF files converted: their blocks kept as they are, under the names of another framework."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ...converters.checkpoints import Checkpoint, Header
from ...converters.checkpoints.open import FORMATS
from ...converters.common.arrays import from_torch
from ...converters.common.dtypes import CODE
from ...converters.libraries.transformers import hub_headers
from ...converters.maps.sources.torch_side import torch_side, with_torch_side
from ...converters.models import Model
from ...converters.models.config_fields import read_config
from ...converters.models.specs import map_text, with_factory
from ...converters.planning.instead import require_taken
from ...converters.planning.opening import open as open_model
from ...converters.planning.transcoding import DTYPES, is_quantized, quantized_view
from ...converters.quantization import Dequantized
from ...converters.quantization.recipe import KEY
from ...converters.runtimes.pretrained import torch_config
from ...errors import BadInputError
from ..converting import move
from ..options import Options
from ..pipeline import Outcome


class Like(NamedTuple):
    """The model whose weights a file holds, as its own directory tells of it.

    Attributes:
        path: the directory.
        config: its configuration, as transformers reads it.
        values: its weights by PyTorch's names, where it has any.
        headers: dtype and shape of each of its tensors.
    """

    path: Path
    config: Mapping[str, Any]
    values: Checkpoint | None
    headers: dict[str, Header]


def convert_gguf(
    source: Path, target: Path, to: str, *, like: Path, options: Options = Options()
) -> Outcome:
    """Convert the GGUF file SOURCE to the framework TO at TARGET, every code and scale as it is.

    Args:
        source: the file.
        target: a new directory.
        to: ``mlx`` or ``torch``.
        like: the model's directory: ``config.json`` and tokenizer. Its weights, where it has them,
            tell what llama.cpp did to the rows.
        options: see :class:`Options`.

    Raises:
        WeighbridgeError: bad input; nothing is left behind.
    """
    place = options.begin(target, "model", source, like)
    require_taken(source, "gguf")
    model = gguf_model(source, like, options)
    keeps_codes = is_quantized(model) and not options.dequantize
    return move(model, place, to, options, keeps_codes=keeps_codes)


def gguf_model(source: Path, like: Path, options: Options) -> Model:
    """Return the model in the GGUF file SOURCE, seen dense, its blocks behind it.

    Raises:
        WeighbridgeError: the file and LIKE are not of one model, or say that other numbers are
            computed, or its types are not read.
    """
    from ...converters.gguf import GgufFile
    from ...converters.gguf.metadata.settings import require_same
    from ...converters.gguf.reading import read

    file = GgufFile(source)
    known = known_from(like)
    require_same(file, known.config, like)
    found = read(file, known.headers, known.values, str(like))
    dtype = DTYPES[options.dequantize] if options.dequantize else "F32"
    tensors: Checkpoint = found.tensors
    if found.section:
        tensors = Dequantized(found.tensors, {KEY: found.section}, dtype=dtype)
    return model_like(source, known, tensors, options)


def model_like(source: Path, like: Like, tensors: Checkpoint, options: Options) -> Model:
    """Return the model of LIKE with the TENSORS, by PyTorch's names, that were found in SOURCE.

    Code that ``options`` trust builds it.
    """
    model = Model(
        spec=str(source),
        framework="torch",
        path=like.path,
        config=like.config,
        map_text=map_text(options.map, {}),
        map_name=options.map,
        tensors=tensors,
    )
    code = options.trust_code
    return with_torch_side(with_factory(model, code) if code else model)


def known_from(like: Path, code: str | None = None) -> Like:
    """Return what the directory LIKE tells; that of an MLX model is brought to PyTorch's names.

    Args:
        like: the directory.
        code: ``module:function`` that builds the model, where no library does.

    Raises:
        BadInputError: it has no ``config.json``.
        MismatchError: it is an MLX model that does not go back to PyTorch alone.
    """
    if not (like / "config.json").is_file():
        raise BadInputError(f"{like}: no config.json; name the model's directory with --like")
    if not any(path.name.endswith(tuple(FORMATS)) for path in like.iterdir()):
        config = read_config(like)
        headers = headers_built_by(code) if code else hub_headers(config, "F16")
        return Like(like, config, None, headers)
    model = quantized_view(open_model(str(like), trust_code=code))
    found = torch_side(model).arrays.checkpoint if model.framework == "mlx" else model.checkpoint
    return Like(like, torch_config(model), found, dict(found.headers))


def headers_built_by(code: str) -> dict[str, Header]:
    """Return the tensors of the module that CODE builds.

    Raises:
        BadInputError: it is none of PyTorch.
    """
    built = open_model(code)
    if built.framework != "torch":
        raise BadInputError(
            f"{code} builds a module of MLX; name a function that builds PyTorch's, whose names the"
            " weights come back under"
        )
    arrays = {name: from_torch(tensor) for name, tensor in built.factory.state_dict().items()}
    return {name: Header(CODE[it.dtype], it.shape) for name, it in arrays.items()}
