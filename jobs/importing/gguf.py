"""GGUF files converted: their blocks kept as they are, under the names of another framework."""

from __future__ import annotations

from pathlib import Path

from ...converters.checkpoints import Checkpoint, Header
from ...converters.checkpoints.open import FORMATS
from ...converters.libraries.transformers import hub_headers
from ...converters.maps.sources.torch_side import with_torch_side
from ...converters.models import Model
from ...converters.models.config_fields import read_config
from ...converters.models.specs import map_text
from ...converters.planning.opening import open as open_model
from ...converters.planning.transcoding import DTYPES, is_quantized
from ...converters.quantization import Dequantized
from ...converters.quantization.recipe import KEY
from ...errors import BadInputError
from ..converting import move
from ..options import Options
from ..pipeline import Outcome


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
    model = gguf_model(source, like, options)
    keeps_codes = is_quantized(model) and not options.dequantize
    return move(model, place, to, options, keeps_codes=keeps_codes)


def gguf_model(source: Path, like: Path, options: Options) -> Model:
    """Return the model in the GGUF file SOURCE, seen dense, its blocks behind it.

    Raises:
        WeighbridgeError: the file and LIKE are not of one model, or its types are not read.
    """
    from ...converters.gguf import GgufFile
    from ...converters.gguf.reading import read

    file = GgufFile(source)
    values, headers = known(like)
    found = read(file, headers, values, str(like))
    dtype = DTYPES[options.dequantize] if options.dequantize else "F32"
    tensors: Checkpoint = found.tensors
    if found.section:
        tensors = Dequantized(found.tensors, {KEY: found.section}, dtype=dtype)
    return model_like(source, like, tensors, options)


def model_like(source: Path, like: Path, tensors: Checkpoint, options: Options) -> Model:
    """Return the model of LIKE with the TENSORS, by PyTorch's names, that were found in SOURCE."""
    model = Model(
        spec=str(source),
        framework="torch",
        path=like,
        config=read_config(like),
        map_text=map_text(options.map, {}),
        tensors=tensors,
    )
    return with_torch_side(model)


def known(like: Path) -> tuple[Checkpoint | None, dict[str, Header]]:
    """Return the weights in the directory LIKE, if it has any, and the headers of its model.

    Raises:
        BadInputError: it has no ``config.json``, or weights that are not PyTorch's.
    """
    if not (like / "config.json").is_file():
        raise BadInputError(f"{like}: no config.json; name the model's directory with --like")
    if any(path.name.endswith(tuple(FORMATS)) for path in like.iterdir()):
        model = open_model(str(like))
        if model.framework == "torch":
            return model.checkpoint, dict(model.checkpoint.headers)
        raise BadInputError(
            f"{like} has the names of MLX; name the directory that it was made from"
        )
    return None, hub_headers(read_config(like), "F16")
