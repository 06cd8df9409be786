"""Python that loads and runs what lies at a path, as ``inspect`` prints it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import numpy as np

from ..converters.adapters import Adapter
from ..converters.captures.continuing import POSITION
from ..converters.captures.mlprogram.features import Feature
from ..converters.documents.fields import IDS, read_fields
from ..converters.libraries.target import OWN
from ..converters.models import PROGRAMS, Model
from ..converters.models import open as open_model
from ..converters.models.library_family import PICTURES
from ..converters.models.program_files import program_in
from ..converters.models.specs import exists
from ..converters.sidefiles import PROCESSORS
from ..converters.values import Array
from ..errors import WeighbridgeError

TEXT: Final = "Once upon a time"
TOKENIZERS: Final = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "tokenizer.model")
OF_PICTURES: Final = 4  # axes

# What is there -> lines; {path} and {base} are quoted, {inputs} are named arguments, {named} a dict.
LINES: Final[Mapping[str, str]] = {
    "mlx-lm": """\
from mlx_lm import generate, load
model, tokenizer = load({path}{trust})
print(generate(model, tokenizer, {text}, max_tokens=32))""",
    "mlx-vlm": """\
from mlx_vlm import generate, load
model, processor = load({path})
print(generate(model, processor, {text}, max_tokens=32))""",
    "mlx-embeddings": """\
from mlx_embeddings import generate, load
model, tokenizer = load({path})
print(generate(model, tokenizer, [{text}]).text_embeds)""",
    "mlx-embeddings mended": """\
from mlx_embeddings import generate, utils; from pathlib import Path; from runpy import run_path
model = utils.load_model(Path({path}), path_to_repo={path}, get_model_classes=lambda config, code=run_path({code}): (code["Model"], code["ModelArgs"], *utils._get_classes(config)[2:]))
print(generate(model, utils.load_tokenizer(Path({path})), [{text}]).text_embeds)""",
    "mlx": """\
import mlx.core as mx, weighbridge
model = weighbridge.mlx_model({path})
print(model({placed}))""",
    "mlx of pictures": """\
import mlx.core as mx, weighbridge
model = weighbridge.mlx_model({path})
print(model({placed}))  # channels last""",
    "mlx ids": """\
import mlx.core as mx, weighbridge
model = weighbridge.mlx_model({path})
print(model({first}))""",
    "mlx-lm ids": """\
import pathlib, mlx.core as mx, mlx_lm.utils as lm
model = lm.load_model(pathlib.Path({path}){trust})[0]
print(model({first}))""",
    "mlx generating": """\
import mlx.core as mx, weighbridge
model = weighbridge.mlx_model({path})
print(model.generate({inputs}, count=8))""",
    "torch": """\
import torch, transformers
model = transformers.{class_name}.from_pretrained({path})
print(model({inputs}))""",
    "torch adapter": """\
import peft, torch, transformers
model = peft.PeftModel.from_pretrained(transformers.{class_name}.from_pretrained({base}), {path})
print(model({inputs}))""",
    "mlx adapter": """\
from mlx_lm import generate, load
model, tokenizer = load({base}, adapter_path={path}{trust})
print(generate(model, tokenizer, {text}, max_tokens=32))""",
    "mlx adapter, no tokenizer": """\
import pathlib, mlx.core as mx, mlx_lm.utils as lm
model = lm.load_adapters(lm.load_model(pathlib.Path({base}){trust})[0], {path})
print(model({first}))""",
    "mlprogram": """\
import coremltools, numpy as np{pictures}
model = coremltools.models.MLModel({path})
print(model.predict({named}{state}))  # on macOS""",
    "onnx": """\
import numpy as np, onnxruntime
session = onnxruntime.InferenceSession({path})
print(session.run(None, {named}))""",
    "coreai": """\
import asyncio, numpy as np; from coreai.authoring import AIModelAsset; from coreai.runtime import NDArray
async def run():
    async with AIModelAsset.load({path}).executable() as model:
        return await model.load_function(model.function_names[0])({named})
print({{name: found.numpy() for name, found in asyncio.run(run()).items()}})""",
    "gguf": """\
import torch, transformers
model = transformers.AutoModelForCausalLM.from_pretrained({folder}, gguf_file={name})
print(model(input_ids=torch.ones((1, 8), dtype=torch.int64)))""",
}
ARRAYS: Final[Mapping[str, Callable[[Array], str]]] = {
    "mlx": lambda it: f"mx.ones({it.shape}, mx.{_narrow(it)})",
    "torch": lambda it: f"torch.ones({it.shape}, dtype=torch.{it.dtype})",
    "numpy": lambda it: f"np.ones({it.shape}, np.{it.dtype})",
    "coreai": lambda it: f"NDArray(np.ones({it.shape}, np.{_narrow(it)}))",
}

DIALECTS: Final = {
    "onnx": "numpy",
    "mlx-lm ids": "mlx",
}


def model_lines(spec: str, model: Model) -> list[str]:
    """Return lines of Python that load MODEL, at SPEC, and run it; none where nobody knows how."""
    if model.path is None or model.factory is not None:
        return []
    if model.framework == "mlprogram":
        return package_lines(spec)
    try:
        kind = kind_of(model)
        generates = kind == "mlx generating"
        arrays = _arrays(model, generates=generates) if _asks(kind) else {}
        arrays = _channels_last(arrays) if kind == "mlx of pictures" else arrays
    except WeighbridgeError:  # its inputs are unknown, or its files say nonsense
        return []
    dialect = DIALECTS.get(kind, kind.split(" ")[0])
    file = str(program_in(Path(spec)) or spec)  # of a folder with an ONNX file that file
    return _filled(kind, arrays, dialect, path=repr(file), **_names(model)) if kind else []


def adapter_lines(spec: str, adapter: Adapter) -> list[str]:
    """Return lines of Python that load ADAPTER, at SPEC, over its base, and run both."""
    base = next(iter(adapter.named_bases), "BASE")
    inputs: dict[str, Array] = {"input_ids": np.ones((1, 8), np.int64)}
    names = {"class_name": "AutoModelForCausalLM", "trust": ""}
    kind = f"{adapter.framework} adapter"
    if exists(base):
        model = open_model(base)
        if adapter.framework == "mlx" and not (model.library and model.library.library == "mlx-lm"):
            return []  # no other library reads an adapter
        inputs, names = _arrays(model), names | _names(model)
        bare = adapter.framework == "mlx" and not _has(model, TOKENIZERS)
        kind = f"{kind}, no tokenizer" if bare else kind
    return _filled(kind, inputs, adapter.framework, path=repr(spec), base=repr(base), **names)


def package_lines(path: str) -> list[str]:
    """Return lines of Python that load the Core ML package at PATH and run it by its own inputs, on macOS."""
    from ..converters.captures.mlprogram.contents import states
    from ..converters.captures.mlprogram.package import read_package
    from ..converters.captures.mlprogram.signatures import examples

    package = read_package(Path(path))
    given = {name: _example(name, it) for name, it in examples(package).items()}
    named = ", ".join(f"{name!r}: {value}" for name, value in given.items())
    pictures = "; from PIL import Image" if "Image.new" in named else ""
    state = ", model.make_state()" if states(package) else ""
    words = {"named": f"{{{named}}}", "pictures": pictures, "state": state}
    return LINES["mlprogram"].format(path=repr(path), **words).split("\n")


def _example(name: str, feature: Feature) -> str:
    """Return what makes an input NAME like FEATURE; a text begins at position 0."""
    from ..converters.captures.mlprogram.signatures import PICTURE

    if feature.dtype.endswith(PICTURE):
        height, width = feature.shape
        return f"Image.new({'L' if 'GRAY' in feature.dtype else 'RGB'!r}, {(width, height)})"
    return f"np.{'zeros' if name == POSITION else 'ones'}({feature.shape}, np.{feature.dtype})"


def gguf_lines(path: Path) -> list[str]:
    """Return lines of Python that load the GGUF file PATH and run it."""
    return LINES["gguf"].format(folder=repr(str(path.parent)), name=repr(path.name)).split("\n")


def kind_of(model: Model) -> str:
    """Return which of ``LINES`` loads MODEL; empty where none does."""
    if model.framework in PROGRAMS:
        return model.framework
    if model.framework == "torch":
        return "torch" if _class_name(model) else ""
    if model.framework != "mlx" or model.library is None or _headless(model):
        return ""
    if model.library.library == OWN:
        return "mlx generating" if _begins(model) else "mlx"
    library = model.library.library
    pictures = library == "mlx-vlm" and model.library.model_type in PICTURES
    if not pictures and _has(model, PROCESSORS if library == "mlx-vlm" else TOKENIZERS):
        mended = library == "mlx-embeddings" and model.library.repaired
        return f"{library} mended" if mended else library
    # The others call what they are given otherwise.
    plain = {"mlx-embeddings": "mlx", "mlx-lm": "mlx-lm ids"}.get(library, "mlx ids")
    return "mlx of pictures" if pictures else plain


def _headless(model: Model) -> bool:
    """Say whether MODEL has a head that the class of mlx-embeddings has no place for."""
    of_texts = model.library is not None and model.library.library == "mlx-embeddings"
    return of_texts and model.tabled is not None and not model.tabled.native


def _asks(kind: str) -> bool:
    """Say whether the lines of KIND name the inputs."""
    return any(
        place in LINES.get(kind, "") for place in ("{inputs}", "{placed}", "{named}", "{first}")
    )


def _begins(model: Model) -> bool:
    """Say whether MODEL generates, and its directory says what a text begins with."""
    if not _class_name(model).endswith("ForConditionalGeneration"):
        return False
    start = "decoder_start_token_id"
    settings = read_fields(Path(str(model.path)) / "generation_config.json", {start: IDS})
    return settings.get(start) is not None


def _class_name(model: Model) -> str:
    """Return the class of transformers that MODEL was saved from; empty where none is named."""
    names = model.config.get("architectures")
    name = names[0] if isinstance(names, list) and names else ""
    return name if isinstance(name, str) and name.isidentifier() else ""


def _names(model: Model) -> dict[str, str]:
    """Return what lines about MODEL name beside its path."""
    trust = ", trust_remote_code=True" if model.config.get("model_file") else ""
    code = repr(str(Path(str(model.path)) / str(model.config.get("model_file"))))
    return {
        "class_name": _class_name(model) or "AutoModelForCausalLM",
        "trust": trust,
        "code": code,
    }


def _has(model: Model, names: tuple[str, ...]) -> bool:
    """Say whether one of the files NAMES lies in the directory of MODEL."""
    return any((Path(str(model.path)) / name).is_file() for name in names)


def _arrays(model: Model, *, generates: bool = False) -> dict[str, Array]:
    """Return inputs of the smallest shapes that MODEL is checked with; without what it GENERATES."""
    from ..parity.probes.probes import make_probes

    given = make_probes(model.signature, tokenizer=None, quick=True)[0].inputs
    return {k: it for k, it in given.items() if not generates or not k.startswith("decoder_")}


def _channels_last(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return ARRAYS, pictures among them as classes of mlx-vlm take those that stand alone."""
    return {
        k: it.transpose(0, 2, 3, 1) if it.ndim == OF_PICTURES else it for k, it in arrays.items()
    }


def _filled(kind: str, inputs: Mapping[str, Array], dialect: str, **names: str) -> list[str]:
    """Return the lines of KIND with INPUTS, written in DIALECT, and NAMES in them."""
    written = {name: ARRAYS[dialect](array) for name, array in inputs.items()} if inputs else {}
    arguments = ", ".join(f"{name}={value}" for name, value in written.items())
    named = ", ".join(f"{name!r}: {value}" for name, value in written.items())
    values = {"inputs": arguments, "named": f"{{{named}}}", "text": repr(TEXT)}
    values["first"] = next(iter(written.values()), "")
    rest = [f"{name}={value}" for name, value in [*written.items()][1:]]
    values["placed"] = ", ".join([values["first"], *rest])
    return LINES[kind].format(**values, **names).split("\n")


def _narrow(array: Array) -> str:
    """Return the name of the dtype of ARRAY, of 32 bits where it has 64."""
    return {"int64": "int32", "float64": "float32"}.get(str(array.dtype), str(array.dtype))
