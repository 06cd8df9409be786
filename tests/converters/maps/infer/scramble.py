"""Store a port's weights as another author might have: other names, nesting, order and layouts.

A scramble is drawn from a seed. It renames modules at every level, by synonyms that other libraries
use or by words that mean nothing, inserts and removes levels, writes indices into names, shuffles the
order of declaration, transposes matrices, lays convolutions out otherwise, fuses or splits projections
and stacks experts. ``Scramble.store`` is the truth: what any inferred map must do.

Written before the inferrer's table of synonyms, and not read by it.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

WORDS = [
    "amber",
    "anvil",
    "basil",
    "birch",
    "cedar",
    "cobalt",
    "coral",
    "delta",
    "ember",
    "fable",
    "fjord",
    "garnet",
    "grove",
    "harbor",
    "hazel",
    "indigo",
    "ivory",
    "jasper",
    "juniper",
    "kestrel",
    "lagoon",
    "larch",
    "lilac",
    "maple",
    "marble",
    "nectar",
    "nimbus",
    "onyx",
    "opal",
    "otter",
    "pebble",
    "plum",
    "quartz",
    "raven",
    "reed",
    "saffron",
    "sierra",
    "slate",
    "sorrel",
    "tango",
    "teal",
    "thistle",
    "topaz",
    "tulip",
    "umber",
    "velvet",
    "violet",
    "walnut",
    "willow",
    "yarrow",
    "zephyr",
    "zinc",
]
SYNONYMS = {
    "layers": "blocks h encoder_layers stack resblocks blk layer",
    "blocks": "layers h resblocks transformer_layers stack",
    "stages": "layer groups levels features",
    "attention": "attn self_attn mha self_attention msa sa",
    "query": "q q_proj wq to_q query_proj",
    "key": "k k_proj wk to_k key_proj",
    "value": "v v_proj wv to_v value_proj",
    "q_proj": "q wq to_q query query_proj",
    "k_proj": "k wk to_k key key_proj",
    "v_proj": "v wv to_v value value_proj",
    "o_proj": "o wo to_out out_proj output proj",
    "out_proj": "o wo to_out o_proj proj c_proj",
    "q_norm": "q_layernorm query_norm norm_q",
    "k_norm": "k_layernorm key_norm norm_k",
    "query+key+value": "qkv qkv_proj c_attn query_key_value Wqkv",
    "q_proj+k_proj+v_proj": "qkv qkv_proj c_attn query_key_value Wqkv",
    "key+value": "kv kv_proj to_kv",
    "gate_proj+up_proj": "gate_up_proj w13 gate_up fc1",
    "gate_proj": "w1 gate wg linear_gate",
    "up_proj": "w3 up wu linear_up",
    "down_proj": "w2 down wd linear_down",
    "intermediate": "fc1 up c_fc linear1 wi dense_h_to_4h",
    "attention_norm": "ln_1 norm1 input_layernorm pre_attn_norm ln1",
    "mlp_norm": "ln_2 norm2 post_attention_layernorm pre_ffn_norm ln2",
    "input_norm": "ln_1 norm1 input_layernorm attention_norm ln1",
    "post_norm": "ln_2 norm2 post_attention_layernorm ffn_norm ln2",
    "norm1": "ln_1 layer_norm1 attn_norm input_layernorm ln1",
    "norm2": "ln_2 layer_norm2 mlp_norm post_attention_layernorm ln2",
    "norm": "ln_f final_norm final_layer_norm layernorm norm_f",
    "norm_f": "ln_f final_norm norm final_layer_norm",
    "fc1": "linear1 up_proj c_fc intermediate wi",
    "fc2": "linear2 down_proj c_proj output wo",
    "output": "dense proj out fc2 wo",
    "mlp": "ffn feed_forward ff dense_mlp",
    "experts": "moe_experts expert switch",
    "shared": "shared_expert shared_experts common",
    "router": "gate gating router_proj wg",
    "word_embeddings": "tok_embeddings wte embed_tokens token_embedding",
    "position_embeddings": "wpe pos_embed position_embedding embed_positions",
    "embed_tokens": "tok_embeddings wte token_embedding embedding",
    "embeddings": "embed_tokens wte embedding tok_embeddings",
    "embed": "token_embedding wte tok_embeddings embed_tokens",
    "lm_head": "output head decoder unembed",
    "classifier": "fc head logits linear",
    "stem": "conv1 conv_in patchify conv_stem",
    "stem_norm": "bn1 norm_in stem_bn bn_stem",
    "conv1": "conv_a conv2d_1 conv_1 first_conv",
    "conv2": "conv_b conv2d_2 conv_2 second_conv",
    "bn1": "norm1 bn_a batch_norm_1 first_norm",
    "bn2": "norm2 bn_b batch_norm_2 second_norm",
    "shortcut": "downsample skip proj residual",
    "mixer": "ssm mamba s6 block",
    "conv1d": "conv short_conv dwconv causal_conv",
    "in_proj": "qkv_in input_proj in_linear",
    "x_proj": "proj_x bcdt x_linear",
    "dt_proj": "delta_proj dt proj_dt",
    "vision": "visual vision_model image_encoder img",
    "text": "text_model text_encoder txt language",
    "patches": "patch_embed patch_embedding conv1 conv_proj",
    "class_token": "cls_token class_embedding cls",
    "positions": "pos_embed position_embedding positional_embedding pos",
    "vision_proj": "visual_projection image_projection proj_image",
    "text_proj": "text_projection proj_text",
    "logit_scale": "temperature scale log_scale",
    "A_log": "a_log log_A A",
    "D": "d skip_D d_skip",
}
LEAVES = {
    "weight": "w kernel matrix",
    "bias": "b offset beta",
    "running_mean": "mean moving_mean",
    "running_var": "var moving_var variance",
}
WRAPPERS = ["inner", "core", "body", "model", "main", "layer"]
PARTS = ("first second third", "a b c", "part0 part1 part2", "one two three")
Arrays = dict[str, Any]
Change = Callable[[Arrays, Any], Arrays]


class Scramble(NamedTuple):
    """One author's taste.

    Attributes:
        port: the module of ``examples.ports`` that is scrambled.
        steps: pairs of a change and the way back, on arrays of numpy or MLX.
        order: the names in the order of declaration.
    """

    port: Any
    steps: list[tuple[Change, Change]]
    order: list[str]

    def store(self, weights: Mapping[str, Any]) -> Arrays:
        """Return what WEIGHTS of the torch module are in the scrambled port: the truth."""
        arrays = canonical(self.port, weights)
        for forward, _ in self.steps:
            arrays = forward(arrays, np)
        return {name: arrays[name] for name in self.order} if self.order else arrays

    def module(self) -> Any:
        """Return the port as an MLX module with random weights under the scrambled names."""
        import mlx.core as mx
        from mlx import nn
        from mlx.utils import tree_flatten, tree_unflatten

        torch_module, _ = self.port.build()
        shapes = {n: a.shape for n, a in self.store(state(torch_module)).items()}
        steps, (inner, _) = self.steps, self.port.build_mlx()

        class Port(nn.Module):
            """Put the stored weights into the port as it was written, and call it."""

            def __init__(self) -> None:
                super().__init__()
                draw = np.random.default_rng(0)
                arrays = [(n, mx.array(draw.normal(size=s), mx.float32)) for n, s in shapes.items()]
                for key, value in tree_unflatten(arrays).items():
                    self[key] = value
                self._inner = inner.eval()

            def __call__(self, **inputs: Any) -> Any:
                arrays = dict(tree_flatten(self.parameters()))
                for _, back in reversed(steps):
                    arrays = back(arrays, mx)
                self._inner.update(tree_unflatten(list(arrays.items())))
                return self._inner(**inputs)

        return Port()


def state(module: Any) -> dict[str, np.ndarray]:
    """Return a torch module's weights as numpy."""
    return {name: tensor.numpy() for name, tensor in module.state_dict().items()}


def canonical(port: Any, weights: Mapping[str, Any]) -> Arrays:
    """Return WEIGHTS under the port's own names and layouts: channels last, no counters."""
    arrays = {}
    for name, array in weights.items():
        if name.endswith("num_batches_tracked"):
            continue
        convolves = array.ndim > 2 and name.split(".")[-2] in port.FREEDOM.convolutions
        arrays[name] = np.moveaxis(array, 1, -1) if convolves else array
    return arrays


def scramble(name: str, seed: int) -> Scramble:
    """Return the scramble of the port called NAME that SEED draws."""
    port = importlib.import_module(f"examples.ports.{name}")
    draw = np.random.default_rng([seed, crc32(name.encode())])
    torch_module, _ = port.build()
    made = Scramble(port, [], [])
    weights = state(torch_module)
    for step in (*regroupings(port.FREEDOM, draw), lambda a: relayout(a, draw)):
        made.steps.extend(step(made.store(weights)))
    made.steps.append(rename(list(made.store(weights)), draw))
    made.order.extend(shuffled(list(made.store(weights)), draw))
    return made


def regroupings(freedom: Any, draw: Any) -> list[Callable[[Arrays], list[tuple[Change, Change]]]]:
    """Return fusions, splits and stacks, each of which DRAW may choose."""
    steps: list[Callable[[Arrays], list[tuple[Change, Change]]]] = []
    used: set[str] = set()
    for members, heads in freedom.fuse:
        if draw.random() < 0.45 and not used & set(members):
            used |= set(members)
            order = draw.permutation(len(members)) if draw.random() < 0.3 else range(len(members))
            by_head = heads if heads and draw.random() < 0.2 else 1
            steps.append(fuse([members[i] for i in order], members, by_head))
    for module, sizes in freedom.split:
        if draw.random() < 0.45:
            steps.append(split(module, sizes, str(draw.choice(PARTS)).split()))
    stacked = [prefix for prefix in freedom.stack if draw.random() < 0.5]
    return [*steps, *(stack(prefix, int(draw.random() < 0.2)) for prefix in stacked)]


def pattern(template: str) -> re.Pattern[str]:
    return re.compile(re.escape(template).replace(r"\*", r"(\d+)"))


def fill(template: str, numbers: tuple[str, ...]) -> str:
    rest = iter(numbers)
    return re.sub(r"\*", lambda _: next(rest), template)


def fuse(order: list[str], members: tuple[str, ...], heads: int):  # noqa: C901  # two ways
    """Lay modules end to end along their first axis, head by head if HEADS is more than 1."""
    last = [member.rsplit(".", 1)[-1] for member in members]
    joined = f"{members[0].rsplit('.', 1)[0]}.{'+'.join(last)}"

    def make(arrays: Arrays) -> list[tuple[Change, Change]]:
        found = {}
        for name in arrays:
            match = pattern(f"{order[0]}.").match(name)
            if match:
                numbers, leaf = match.groups(), name[match.end() :]
                sources = [f"{fill(member, numbers)}.{leaf}" for member in order]
                found[f"{fill(joined, numbers)}.{leaf}"] = sources
        sizes = {name: arrays[name].shape[0] for sources in found.values() for name in sources}

        def forward(arrays: Arrays, xp: Any) -> Arrays:
            arrays = dict(arrays)
            for name, sources in found.items():
                parts = [arrays.pop(source) for source in sources]
                rest = parts[0].shape[1:]
                cut = [part.reshape(heads, -1, *rest) for part in parts]
                arrays[name] = xp.concatenate(cut, axis=1).reshape(-1, *rest)
            return arrays

        def back(arrays: Arrays, xp: Any) -> Arrays:
            arrays = dict(arrays)
            for name, sources in found.items():
                whole = arrays.pop(name)
                rest = whole.shape[1:]
                ends = np.cumsum([sizes[source] // heads for source in sources])[:-1].tolist()
                parts = xp.split(whole.reshape(heads, -1, *rest), ends, axis=1)
                for source, part in zip(sources, parts, strict=True):
                    arrays[source] = part.reshape(-1, *rest)
            return arrays

        return [(forward, back)]

    return make


def split(module: str, sizes: tuple[int, ...], parts: list[str]):
    """Cut a module into several along its first axis."""

    def make(arrays: Arrays) -> list[tuple[Change, Change]]:
        found = {}
        for name in arrays:
            match = pattern(f"{module}.").match(name)
            if match:
                base = f"{fill(module, match.groups())}_" + "{}." + name[match.end() :]
                found[name] = [base.format(part) for part in parts[: len(sizes)]]

        def forward(arrays: Arrays, xp: Any) -> Arrays:
            arrays = dict(arrays)
            for name, targets in found.items():
                cut = xp.split(arrays.pop(name), np.cumsum(sizes)[:-1].tolist(), axis=0)
                arrays.update(zip(targets, cut, strict=True))
            return arrays

        def back(arrays: Arrays, xp: Any) -> Arrays:
            arrays = dict(arrays)
            for name, targets in found.items():
                arrays[name] = xp.concatenate([arrays.pop(target) for target in targets], axis=0)
            return arrays

        return [(forward, back)]

    return make


def stack(prefix: str, axis: int):  # noqa: C901
    """Make one tensor of those of repeated modules, with an axis more."""

    def make(arrays: Arrays) -> list[tuple[Change, Change]]:
        found: dict[str, list[str]] = {}
        for name in arrays:
            match = pattern(f"{prefix}.*.").match(name)
            if match:
                *outer, _ = match.groups()
                whole = f"{fill(prefix, tuple(outer))}.{name[match.end() :]}"
                found.setdefault(whole, []).append(name)

        def forward(arrays: Arrays, xp: Any) -> Arrays:
            arrays = dict(arrays)
            for name, sources in found.items():
                arrays[name] = xp.stack([arrays.pop(source) for source in sources], axis=axis)
            return arrays

        def back(arrays: Arrays, xp: Any) -> Arrays:
            arrays = dict(arrays)
            for name, targets in found.items():
                whole = arrays.pop(name)
                for at, target in enumerate(targets):
                    arrays[target] = whole[at] if axis == 0 else whole[:, at]
            return arrays

        return [(forward, back)]

    return make


def relayout(arrays: Arrays, draw: Any) -> list[tuple[Change, Change]]:
    """Transpose some matrices and lay some convolutions out as torch or as Flax does."""
    chosen: dict[str, tuple[int, ...] | None] = {}
    for name, array in arrays.items():
        chosen.setdefault(re.sub(r"\d+", "*", name), axes_for(name, array, draw))
    moved = {name: axes for name in arrays if (axes := chosen[re.sub(r"\d+", "*", name)])}

    def permute(arrays: Arrays, inverse: bool) -> Arrays:
        order = lambda axes: tuple(np.argsort(axes).tolist()) if inverse else axes  # noqa: E731
        return {n: a.transpose(*order(moved[n])) if n in moved else a for n, a in arrays.items()}

    return [(lambda a, _: permute(a, False), lambda a, _: permute(a, True))]


def axes_for(name: str, array: Any, draw: Any) -> tuple[int, ...] | None:
    if not name.endswith("weight") or "embed" in name or array.ndim < 2 or draw.random() > 0.25:
        return None
    if array.ndim == 2:
        return (1, 0)
    if array.ndim == 4:  # out, height, width, in -> as torch, or height, width, in, out
        return (0, 3, 1, 2) if draw.random() < 0.5 else (1, 2, 3, 0)
    return None


def rename(names: list[str], draw: Any) -> tuple[Change, Change]:
    """Draw new names for all levels; repeated modules are renamed alike."""
    taste = Taste(draw)
    renamed = {name: taste.name(name) for name in names}
    assert len(set(renamed.values())) == len(names), "two names became one"
    known = {new: name for name, new in renamed.items()}
    return (
        lambda arrays, _: {renamed[name]: array for name, array in arrays.items()},
        lambda arrays, _: {known[name]: array for name, array in arrays.items()},
    )


class Taste:
    """The choices of one author, made once per place in the tree."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.segments: dict[tuple[str, str], str] = {}
        self.leaves = {
            leaf: str(draw.choice(words.split())) if draw.random() < 0.25 else leaf
            for leaf, words in LEAVES.items()
        }
        self.related = draw.uniform(0.2, 0.9)

    def name(self, name: str) -> str:
        """Return the new name of a tensor."""
        *modules, leaf = name.split(".")
        path, out = "", ""
        for segment in modules:
            if segment.isdigit():
                out += (self.choice(path, "separator") or ".") + segment
            else:
                glue = (self.choice(path, "glue") or ".") if out else ""
                out += glue + self.segment(path, segment)
            path += f".{'*' if segment.isdigit() else segment}"
            out += self.choice(path, "wrapper")
        leaf = self.leaves[leaf] if leaf in self.leaves else self.segment(path, leaf)
        return f"{out}.{leaf}" if out else leaf

    def choice(self, path: str, what: str) -> str:
        """Return what stands at PATH besides the names themselves, often nothing."""
        odds = {"separator": 0.25, "glue": 0.15, "wrapper": 0.12}[what]
        if what == "separator" and path.endswith("*"):
            return ""
        if (path, what) not in self.segments:
            words = {"separator": ["_", ""], "glue": ["_"], "wrapper": [f".{w}" for w in WRAPPERS]}
            hit = self.draw.random() < odds and (path.count(".") > 0 or what == "separator")
            if what == "wrapper" and path.endswith("*"):
                hit = False
            self.segments[path, what] = str(self.draw.choice(words[what])) if hit else ""
        return self.segments[path, what]

    def segment(self, path: str, segment: str) -> str:
        """Return the new name of one level, unlike its siblings'."""
        if (path, segment) not in self.segments:
            taken = {new for (parent, _), new in self.segments.items() if parent == path}
            words = SYNONYMS.get(segment, "").split() if self.draw.random() < self.related else []
            free = [word for word in words if word not in taken]
            free = free or [word for word in WORDS if word not in self.segments.values()]
            self.segments[path, segment] = str(self.draw.choice(free))
        return self.segments[path, segment]


def shuffled(names: list[str], draw: Any) -> list[str]:
    """Return NAMES in another order of declaration: siblings change places, indices do not."""
    place: dict[str, float] = {}

    def key(name: str) -> tuple[float, ...]:
        parts = name.split(".")
        paths = [".".join(parts[: end + 1]) for end in range(len(parts))]
        general = [re.sub(r"\d+", "*", path) for path in paths]
        ranks = [place.setdefault(path, draw.random()) for path in general]
        numbers = [sum(map(int, re.findall(r"\d+", part))) for part in parts]
        return tuple(value for pair in zip(ranks, numbers, strict=True) for value in pair)

    return sorted(names, key=key)
