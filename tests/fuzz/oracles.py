"""What a success must mean: results compared with what independent readers say of the spoiled source."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from . import readers
from .goods import gguf_tensors
from .judge import Oracle, Ran
from .readers import Tensors
from .watch import in_child, verb

Read = Callable[[Path], Tensors]
RECOMPUTED = "embeddings.position_ids"
MENDED = "model_mlx_embeddings.py"
CONFIG = ("hidden_size", "num_hidden_layers", "vocab_size", "intermediate_size", "model_type")


def read_whole(name: str, read: Read) -> Read:
    """Return a reader of the file NAME of a folder."""
    return lambda folder: read(folder / name)


SAFETENSORS = read_whole("model.safetensors", readers.safetensors)
NPZ = read_whole("weights.npz", readers.npz)
PT = read_whole("model.pt", readers.torch_file)
BIN = read_whole("pytorch_model.bin", readers.torch_file)


NPZ_HEADERS = read_whole("weights.npz", readers.npz_headers)
PT_HEADERS = read_whole("model.pt", readers.torch_unchecked)


def results(folder: Path) -> Tensors:
    """Return the tensors that were written to FOLDER."""
    found: Tensors = {}
    for path in sorted(folder.glob("model*.safetensors")):
        found |= readers.safetensors(path)
    return found


def different(expected: Tensors, found: Tensors) -> Iterable[str]:
    """Yield how FOUND is not what was EXPECTED."""
    wanted = {name: it for name, it in expected.items() if name != RECOMPUTED}
    for name in sorted(wanted.keys() ^ found.keys()):
        yield f"{name[:100]} is only in the {'source' if name in wanted else 'result'}"
    for name in sorted(wanted.keys() & found.keys()):
        if wanted[name] != found[name]:
            yield f"{name[:100]}: {wanted[name].header} in the source, other values in the result"


def moved(source: str, read: Read, target: str = "out") -> Oracle:
    """Return an oracle: every tensor of SOURCE lies in TARGET, name and bytes the same.

    That is what converting a BERT means, and a Llama.
    """

    def oracle(ran: Ran) -> list[str]:
        return list(different(read(ran.folder / source), results(ran.folder / target)))

    return oracle


def mended(ran: Ran) -> list[str]:
    """Say where the tensors of the encoder are not those of the result, or its code is not ours."""
    wanted = {f"model.{name}": it for name, it in SAFETENSORS(ran.folder / "encoder").items()}
    return [*different(wanted, results(ran.folder / "out")), *other_code(ran, "out")]


def unmended(ran: Ran) -> list[str]:
    """Say where a result is not the encoder that was mended, or other code than ours was accepted."""
    wanted = SAFETENSORS(ran.goods / "encoder")
    return [*different(wanted, results(ran.folder / "out")), *other_code(ran, "mended")]


def other_code(ran: Ran, name: str) -> list[str]:
    """Say whether the folder NAME asks for code that is not what was written for the good encoder."""
    named = json.loads((ran.folder / name / "config.json").read_bytes()).get("model_file")
    if named in (None, ""):
        return []
    same = (ran.folder / name / MENDED).read_bytes() == (ran.goods / "mended" / MENDED).read_bytes()
    return [] if named == MENDED and same else ["code that is not ours passed"]


def listed(source: str, read: Read) -> Oracle:
    """Return an oracle: ``inspect --json`` names every tensor with its dtype and shape."""

    def oracle(ran: Ran) -> list[str]:
        said = json.loads(ran.seen.output[ran.seen.output.index("{") :])["headers"]
        wanted = {name: it.header for name, it in read(ran.folder / source).items()}
        return (
            [] if said == wanted else [f"it lists {len(said)} tensors, others than {len(wanted)}"]
        )

    return oracle


def configured(ran: Ran) -> list[str]:
    """Say where the configuration that was written is not the one that was read."""
    source = readers.strict_json((ran.folder / "bert" / "config.json").read_bytes())
    made = json.loads((ran.folder / "out" / "config.json").read_bytes())
    if not isinstance(source, dict):
        return ["the configuration is no object"]
    return [
        f"config.json: {key} was {source[key]!r}, is {made[key]!r}"
        for key in CONFIG
        if key in source and key in made and source[key] != made[key]
    ]


def both(*oracles: Oracle) -> Oracle:
    """Return an oracle that asks all of ORACLES."""
    return lambda ran: [problem for oracle in oracles for problem in oracle(ran)]


def copied(ran: Ran) -> list[str]:
    """Say which side files are not the bytes that they were."""
    source, made = ran.folder / "bert", ran.folder / "out"
    ours = {"config.json", "weighbridge.json"}
    return [
        f"{path.relative_to(made)} is not the file of the source"
        for path in sorted(made.rglob("*.*"))
        if path.is_file()
        and path.name not in ours
        and not path.name.startswith((".", "model"))
        and (source / path.relative_to(made)).read_bytes() != path.read_bytes()
    ]


def numbers(it: readers.Tensor) -> np.ndarray:
    """Return a float tensor in float64."""
    import torch

    kinds = {
        "F32": torch.float32,
        "BF16": torch.bfloat16,
        "F16": torch.float16,
        "F64": torch.float64,
    }
    flat = (
        torch.frombuffer(bytearray(it.data), dtype=kinds[it.dtype]) if it.data else torch.zeros(0)
    )
    return flat.double().numpy().reshape(it.shape)


def peft_updates(folder: Path) -> dict[str, np.ndarray]:
    """Return the updates of the plain PEFT adapter in FOLDER by weight, in float64."""
    config = readers.strict_json((folder / "adapter_config.json").read_bytes())
    rank, alpha = config["r"], config["lora_alpha"]
    scale = alpha / (rank**0.5 if config.get("use_rslora") else rank)
    found = {}
    tensors = readers.safetensors(folder / "adapter_model.safetensors")
    for name, it in tensors.items():
        if name.endswith(".lora_A.weight"):
            module = name.removesuffix(".lora_A.weight")
            b = numbers(tensors[f"{module}.lora_B.weight"])
            weight = module.removeprefix("base_model.model.") + ".weight"
            found[weight] = scale * b @ numbers(it)
    return found


def mlx_updates(folder: Path) -> dict[str, np.ndarray]:
    """Return the updates of the plain mlx-lm adapter in FOLDER by weight, in float64."""
    config = readers.strict_json((folder / "adapter_config.json").read_bytes())
    scale = config["lora_parameters"]["scale"]
    tensors = readers.safetensors(folder / "adapters.safetensors")
    return {
        name.removesuffix(".lora_a") + ".weight": scale
        * (numbers(it) @ numbers(tensors[name.removesuffix("a") + "b"])).T
        for name, it in tensors.items()
        if name.endswith(".lora_a")
    }


def peft_merged(ran: Ran) -> dict[str, np.ndarray]:
    """Return the merged weights as PEFT computes them; none where it refuses an idle field's type."""
    import peft
    from transformers import BertModel

    base = BertModel.from_pretrained(ran.folder / "bert")
    try:
        model = peft.PeftModel.from_pretrained(base, ran.folder / "peft").merge_and_unload()
    except Exception:  # of an idle field, or ours would have refused it
        return {}
    return {name: value.double().numpy() for name, value in model.state_dict().items()}


def merged(base: str, adapter: str, updates: Callable[[Path], dict[str, np.ndarray]]) -> Oracle:
    """Return an oracle: TARGET is BASE plus the updates of ADAPTER, rounded once.

    An adapter with settings that are not plain is merged by PEFT instead.
    """

    def oracle(ran: Ran) -> list[str]:
        weights = SAFETENSORS(ran.folder / base)
        expected = peft_merged(ran) if adapter == "peft" and not plain(ran) else {}
        if not expected:
            more = updates(ran.folder / adapter)
            expected = {name: numbers(it) + more.get(name, 0) for name, it in weights.items()}
            if more.keys() - weights.keys():
                return [f"the adapter changes {sorted(more.keys() - weights.keys())[0]}"]
        return list(far(expected, results(ran.folder / "out")))

    return oracle


def far(expected: Mapping[str, np.ndarray], found: Tensors) -> Iterable[str]:
    """Yield which weights FOUND are further from EXPECTED than rounding explains."""
    for name in sorted(expected.keys() ^ found.keys() - {RECOMPUTED}):
        yield f"{name} is not in both"
    for name in sorted(expected.keys() & found.keys()):
        have, want = numbers(found[name]), expected[name]
        slack = 2e-6 * (1 + np.abs(want[np.isfinite(want)]).max(initial=0))
        with np.errstate(all="ignore"):
            rounded = want.astype(np.float32).astype(np.float64)
        if have.shape != want.shape or not np.allclose(
            have, rounded, rtol=0, atol=slack, equal_nan=True
        ):
            yield f"{name} is not what the adapter makes of it"


IDLE = ("r", "lora_alpha", "use_rslora", "base_model_name_or_path", "inference_mode", "revision")


def plain(ran: Ran) -> bool:
    """Say whether nothing but rank, alpha and what is idle differs from the good configuration."""
    configs = [
        readers.strict_json((folder / "peft" / "adapter_config.json").read_bytes())
        for folder in (ran.folder, ran.goods)
    ]
    kept = [{k: v for k, v in it.items() if k not in IDLE} for it in configs]
    return kept[0] == kept[1]


def peft_to_mlx(ran: Ran) -> list[str]:
    """Say where the mlx-lm adapter that was made is not the PEFT one."""
    if not plain(ran):
        return []
    source, made = peft_updates(ran.folder / "peft"), mlx_updates(ran.folder / "out")
    if source.keys() != made.keys():
        return ["other weights are changed"]
    return [
        f"{name}: another update"
        for name in source
        if not np.allclose(source[name], made[name], rtol=1e-6, atol=1e-9, equal_nan=True)
    ]


def exported(ran: Ran) -> list[str]:
    """Say where the GGUF file that was made is not the Llama with the metadata of its like."""
    like = next(ran.folder / part for part in ran.argv if part.startswith("like-"))
    arrays, facts = readers.gguf_file(ran.folder / "out.gguf")
    _, wanted_facts = readers.gguf_file(like)
    wanted = gguf_tensors(ran.folder / "llama")
    problems = [f"{name} is not in both" for name in sorted(wanted.keys() ^ arrays.keys())]
    for name in sorted(wanted.keys() & arrays.keys()):
        slack = np.abs(wanted[name]).max() / 200 if "q8" in like.name else 0
        if arrays[name].shape != wanted[name].shape or (
            np.abs(arrays[name] - wanted[name]).max() > slack
        ):
            problems.append(f"{name} holds other values")
    same = {name for name in wanted_facts if not name.startswith(("GGUF.", "general.file_type"))}
    problems += [f"{n}: other metadata" for n in same if wanted_facts[n] != facts.get(n)]
    return problems


def refused(ran: Ran) -> list[str]:
    """Say that this must not succeed."""
    return [f"{' '.join(ran.argv)[:100]} succeeded"]


def package_checked(ran: Ran) -> list[str]:
    """Say where a package that passed is not the one that was made."""
    import coremltools

    inner = Path("model.mlpackage") / "Data" / "com.apple.CoreML"
    coremltools.models.utils.load_spec(str(ran.folder / "model.mlpackage"))
    specs = [(folder / inner / "model.mlmodel").read_bytes() for folder in (ran.folder, ran.goods)]
    if specs[0] != specs[1]:
        return []
    made, good = (
        readers.floats(folder / inner / "weights" / "weight.bin")
        for folder in (ran.folder, ran.goods)
    )
    if made.shape != good.shape:
        return ["its weights are not as long as they were"]
    with np.errstate(all="ignore"):
        worst = float(np.nanmax(np.abs(made.astype(np.float64) - good), initial=0))
    return (
        [f"it passes with weights {worst:.3g} off"] if worst > 0.01 or np.isnan(made).any() else []
    )


def asset_checked(ran: Ran) -> list[str]:
    """Say where an asset that passed has other constants than the one that was made."""
    from weighbridge.converters.checkpoints.formats.coreai.asset import Asset

    made, good = (Asset(folder / "model.aimodel") for folder in (ran.folder, ran.goods))
    pairs = [
        (made.read(a).astype(np.float64), good.read(b))
        for a, b in zip(made.numbers, good.numbers, strict=False)
    ]
    if [one.shape for one, _ in pairs] != [it.shape for it in good.headers.values()]:
        return ["its constants are not those that it had"]
    with np.errstate(all="ignore"):
        worst = max((float(np.max(np.abs(a - b), initial=0)) for a, b in pairs), default=0.0)
    return [f"it passes with constants {worst:.3g} off"] if not worst <= 0.01 else []


def golden_checked(ran: Ran) -> list[str]:
    """Say where a golden that was passed is not the one that was recorded."""
    made, good = (
        readers.safetensors(folder / "golden" / "golden.safetensors")
        for folder in (ran.folder, ran.goods)
    )
    readers.record((ran.folder / "golden" / "golden.json").read_bytes())
    off = [
        name
        for name in good
        if name.startswith("outputs|stored")
        and name in made
        and np.abs(numbers(made[name]) - numbers(good[name])).max() > 0.01
    ]
    return [f"it passes with other outputs: {off[0]}"] if off else []


def inputs_recorded(ran: Ran) -> list[str]:
    """Say which of the user's inputs is not in the golden."""
    with np.load(ran.folder / "inputs.npz", allow_pickle=False) as archive:
        mine = {name: np.array(archive[name]) for name in archive.files}
    held = readers.safetensors(ran.folder / "out" / "golden.safetensors")
    recorded = {
        (name.split("|")[2], name.split("|")[3]): it
        for name, it in held.items()
        if name.startswith("inputs|")
    }
    problems = []
    for name, array in mine.items():
        probe, _, port = name.rpartition("/")
        found = [
            it
            for (where, what), it in recorded.items()
            if what == port and (not probe or where == probe)
        ]
        if not any(
            np.frombuffer(it.data, np.int64).tolist() == array.reshape(-1).tolist() for it in found
        ):
            problems.append(f"{name[:100]} is not in the golden")
    return problems


def as_configured(name: str) -> Oracle:
    """Return an oracle: the run was told what the YAML or TOML file NAME says."""

    def oracle(ran: Ran) -> list[str]:
        told, used = read_recipe(ran.folder / name), read_recipe(ran.folder / "out" / "config.yaml")
        return [
            f"{key}: {value!r} in the file, {leaves(used).get(key)!r} in the run"
            for key, value in leaves(told).items()
            if not alike(value, leaves(used).get(key))
        ]

    return oracle


def read_recipe(path: Path) -> Any:
    """Read PATH with PyYAML or the standard library's TOML."""
    import tomllib

    import yaml

    text = path.read_text(encoding="utf-8")
    return tomllib.loads(text) if path.suffix == ".toml" else yaml.safe_load(text)


def leaves(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Return every value of TREE by its dotted key."""
    if not isinstance(tree, dict):
        return {prefix: tree}
    return {
        key: value
        for name, it in tree.items()
        for key, value in leaves(it, f"{prefix}.{name}").items()
    }


def alike(told: Any, used: Any) -> bool:
    """Say whether a run USED what it was TOLD; paths were made absolute, 1e-3 is a number."""
    if isinstance(used, float) and isinstance(told, str | int):
        return float(told) == used
    if isinstance(told, str) and isinstance(used, str):
        return used == told or Path(used).name == Path(told).name
    return bool(told == used)


def pairs_counted(ran: Ran) -> list[str]:
    """Say where a run on pairs counted others than are in the file."""
    report = json.loads((ran.folder / "out" / "result.json").read_text())["data"]["train"]
    text = (ran.folder / "pairs" / "train.jsonl").read_text(encoding="utf-8")
    rows = [strict_row(line) for line in text.splitlines() if line.strip()]
    whole = [row for row in rows if all(part.strip() for part in row)]
    counts = Counter(whole)
    wanted = {"pairs": len(counts), "duplicates": len(whole) - len(counts)}
    wanted["empty"] = len(rows) - len(whole)
    return [f"{key}: {report[key]}, not {n}" for key, n in wanted.items() if report[key] != n]


def strict_row(line: str) -> tuple[str, str]:
    row = readers.strict_json(line.encode())
    if not (isinstance(row["query"], str) and isinstance(row["document"], str)):
        raise TypeError(line)
    return row["query"], row["document"]


def series_read(ran: Ran) -> list[str]:
    """Say why the arrays of a run on series are none to train on."""
    problems = []
    for split in ("train", "validation"):
        with np.load(ran.folder / "series" / f"{split}.npz", allow_pickle=False) as archive:
            arrays = {name: np.array(archive[name]) for name in ("series", "target")}
        if len(arrays["series"]) != len(arrays["target"]):
            problems.append(f"{split}: lengths differ")
        problems += [
            f"{split}/{name} is not finite"
            for name, it in arrays.items()
            if it.dtype.kind == "f" and not np.isfinite(it).all()
        ]
    return problems


def resumed(ran: Ran) -> list[str]:
    """Say where a run that went on from the same state ended otherwise."""
    state = Path("run") / "checkpoints" / "step-00000002"
    facts = [
        readers.record((f / state / "state.json").read_bytes()) for f in (ran.folder, ran.goods)
    ]
    arrays = [readers.safetensors(f / state / "state.safetensors") for f in (ran.folder, ran.goods)]
    if facts[0] != facts[1] or arrays[0] != arrays[1] or configs_differ(ran):
        return []
    found = results(ran.folder / "run")
    wanted = results(ran.goods / "run-done")
    return list(different(wanted, found))


def configs_differ(ran: Ran) -> bool:
    """Say whether the run's configuration was spoiled."""
    one, other = ((f / "run" / "config.yaml").read_bytes() for f in (ran.folder, ran.goods))
    return one != other


def round_trip(ran: Ran) -> list[str]:
    """Say which tensor comes back from the way there with other values."""
    seen = in_child(
        verb(["convert", "mlx-to-torch", "out", "back", "--check", "none"]), ran.folder, {}
    )
    if seen.code:
        return [] if seen.code == 3 else [f"the way back ends with {seen.code}"]
    source, back = SAFETENSORS(ran.folder / "bert"), results(ran.folder / "back")
    return [
        f"{n}: other values on the way back" for n in source if n in back and source[n] != back[n]
    ]


def same_map(ran: Ran) -> bool:
    """Say whether a manifest still has the map that it was made with."""
    texts = [
        readers.record((folder / "mlx" / "weighbridge.json").read_bytes())
        for folder in (ran.folder, ran.goods)
    ]
    return all(isinstance(it, dict) for it in texts) and texts[0].get("map") == texts[1].get("map")


def back_home(ran: Ran) -> list[str]:
    """Say which tensor of a directory with a spoiled manifest comes home with other values."""
    if not same_map(ran):
        return []
    return list(different(SAFETENSORS(ran.folder / "mlx"), results(ran.folder / "out")))
