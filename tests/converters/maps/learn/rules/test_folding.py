"""Rules that say the same of many tensors are one; what would take another's tensor lists its indices."""

from __future__ import annotations

import mlx.core as mx

from weighbridge.converters.checkpoints.base import Header
from weighbridge.converters.maps import WeightMap
from weighbridge.converters.maps.learn.proof import Proof
from weighbridge.converters.maps.learn.rules.writing import write
from weighbridge.converters.maps.learn.trace.recording import record


def learned(function, names, config=None):
    headers = {name: Header("BF16", shape) for name, shape in names.items()}
    trace = record(function, headers)
    text = str(write(trace, config or {}).map)
    Proof(WeightMap.parse(text), trace, config or {}).run()
    return text.splitlines()[1:]


def layers(count, *tails, shape=(3, 2)):
    return {f"layers.{n}.{tail}": shape for n in range(count) for tail in tails}


def test_layers_that_the_config_counts_are_one_rule():
    assert learned(dict, layers(4, "norm.weight"), {"num_hidden_layers": 4, "num_heads": 4}) == [
        "where n = num_hidden_layers",
        "layers.{n}.norm.weight <-> same",
    ]


def test_layers_that_nothing_counts_have_no_limit():
    assert learned(dict, layers(4, "norm.weight")) == ["layers.{l}.norm.weight <-> same"]


def test_words_are_listed_so_that_no_other_is_taken():
    assert learned(dict, layers(2, "q.weight", "k.weight", "q.bias", "k.bias")) == [
        "layers.{l}.{p}.{w} <-> same",
        "    where p = q | k, w = weight | bias",
    ]


def test_a_word_that_some_layers_lack_is_a_rule_of_its_own():
    names = {**layers(3, "q.weight", "k.weight"), "layers.1.q.bias": (2,)}
    assert learned(dict, names) == [
        "layers.{l}.{p}.weight <-> same",
        "    where p = q | k",
        "layers.1.q.bias <-> same",
    ]


def test_indices_are_listed_where_two_rules_would_take_the_same_tensor():
    def sometimes(w):
        return {name: array + 1 if name[7] in "02" else array for name, array in w.items()}

    assert learned(sometimes, layers(4, "norm.weight")) == [
        "layers.{l}.norm.weight <-> same + 1",
        "    where l = 0 | 2",
        "layers.{l}.norm.weight <-> same",
        "    where l = 1 | 3",
    ]


def stages(*depths, tails=("conv",)):
    return {
        f"stages.{s}.layers.{n}.{tail}": (3, 2)
        for s, depth in enumerate(depths)
        for n in range(depth)
        for tail in tails
    }


def test_layers_of_stages_of_different_depths_are_not_counted_by_what_counts_other_layers():
    assert learned(dict, stages(1, 2, 1), {"decoder_layers": 2}) == [
        "stages.{l}.layers.{i}.conv <-> same"
    ]


def test_of_stages_of_different_depths_only_what_all_have_is_listed():
    def sometimes(w):
        return {name: it if ".1.weight" in name else it + 1 for name, it in w.items()}

    tails = tuple(f"part.{n}.weight" for n in range(3))
    assert learned(sometimes, stages(1, 2, 1, tails=tails), {"decoder_layers": 2}) == [
        "stages.{l}.layers.{i}.part.{j}.weight <-> same + 1",
        "    where j = 0 | 2",
        "stages.{l}.layers.{i}.part.1.weight <-> same",
    ]


def test_a_layer_that_is_dropped_whole_is_one_rule_beside_those_that_are_kept():
    def without_last(w):
        return {name: array for name, array in w.items() if not name.startswith("layers.3.")}

    lines = learned(without_last, layers(4, "a.weight", "b.weight"), {"num_hidden_layers": 3})
    assert lines == [
        "where n = num_hidden_layers",
        "layers.{n}.{p}.weight <-> same",
        "    where p = a | b",
        "layers.3.{**} -> original",
    ]


def test_the_count_of_experts_is_said_once_for_all_rules():
    names = {f"experts.{e}.{p}.w": (2, 3) for e in range(5) for p in ("up", "down")}

    def stacked(w):
        return {p: mx.stack([w[f"experts.{e}.{p}.w"] for e in range(5)]) for p in ("up", "down")}

    assert learned(stacked, names, {"num_experts": 5}) == [
        "where e = num_experts",
        "experts.{e}.{p}.w [a b] <-> {p} [e a b]",
        "    where p = up | down",
    ]


def test_indices_that_differ_between_the_sides_are_not_folded():
    def shifted(w):
        return {f"blocks.{int(name[7]) + 1}.w": array for name, array in w.items()}

    assert learned(shifted, layers(3, "w")) == [
        "layers.0.w <-> blocks.1.w",
        "layers.1.w <-> blocks.2.w",
        "layers.2.w <-> blocks.3.w",
    ]


def test_the_last_experts_left_out_of_every_layer_take_no_other_along():
    names = layers(3, *(f"experts.{e}.weight" for e in range(6)))

    def without_the_last(weights):
        kept = {name: it for name, it in weights.items() if int(name.split(".")[3]) < 4}
        return {
            f"layers.{n}.all": mx.stack([kept[f"layers.{n}.experts.{e}.weight"] for e in range(4)])
            for n in range(3)
        }

    found = learned(without_the_last, names, {"experts": 4})
    assert "layers.{l}.experts.4.weight -> original" in found
    assert "layers.{l}.experts.5.weight -> original" in found
