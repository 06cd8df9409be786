"""The map to the live module, against what transformers' own loading puts where."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from weighbridge.converters.checkpoints import Header, open_checkpoint
from weighbridge.converters.libraries.modules import describe, described
from weighbridge.converters.libraries.transformers import hub_headers
from weighbridge.converters.maps import WeightMap, apply
from weighbridge.converters.maps.sources import loading
from weighbridge.converters.maps.sources.kinds import kinds_through
from weighbridge.converters.maps.sources.loading import follow
from weighbridge.converters.maps.sources.modules import module_map
from weighbridge.converters.values import Dense, LowRank
from weighbridge.errors import UnsupportedError
from weighbridge.tests.support.atlas import tiny

BERT = {
    "model_type": "bert",
    "num_hidden_layers": 2,
    "hidden_size": 12,
    "num_attention_heads": 2,
    "intermediate_size": 20,
    "vocab_size": 22,
    "max_position_embeddings": 16,
    "architectures": ["BertForMaskedLM"],
}
T5 = {
    "model_type": "t5",
    "num_layers": 2,
    "d_model": 12,
    "d_kv": 4,
    "num_heads": 2,
    "d_ff": 20,
    "vocab_size": 20,
    "architectures": ["T5ForConditionalGeneration"],
}
QWEN3_MOE = {
    "model_type": "qwen3_moe",
    "num_hidden_layers": 2,
    "hidden_size": 12,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 6,
    "moe_intermediate_size": 10,
    "num_experts": 3,
    "num_experts_per_tok": 2,
    "vocab_size": 20,
}
# Of each model type what its layout stands for: renamed, stacked, joined, turned, nested, fused.
QUICK = ["llama", "mixtral", "qwen3_moe", "gpt2", "granitemoe", "qwen2_vl"]
MORE = [
    *("gpt_oss", "deepseek_v3", "qwen3_next", "jamba", "lfm2", "falcon_h1", "llava", "qwen3_vl"),
    *("qwen3_vl_moe", "llama4", "gemma3", "phi3", "phimoe", "mamba2", "olmoe", "kimi_k25", "dbrx"),
]


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


def values(checkpoint):
    return {name: Dense(checkpoint.read(name)) for name in checkpoint.headers}


def assert_loads_alike(folder, config, cls):
    """Hold the map of FOLDER against what CLS.from_pretrained has in it."""
    checkpoint = open_checkpoint(folder)
    plan = module_map(config, checkpoint.headers, cls.__name__).bind(
        checkpoint.headers, config=config
    )
    state = cls.from_pretrained(folder, dtype=torch.float32).state_dict()
    known = described(config, cls.__name__)
    made = apply(plan, values(checkpoint))
    for name, tensor in state.items():
        if name not in made and name not in known.buffers:
            name = {**known.ties, **{old: new for new, old in known.ties.items()}}[name]  # noqa: PLW2901
        if name in made:
            assert np.array_equal(made[name].array, tensor.numpy()), name
    back = plan_back(plan, config, checkpoint.headers, cls.__name__)
    again = apply(back, made)
    kept = checkpoint.headers.keys() - {item.name for item in plan.dropped}
    assert again.keys() == kept
    for name in kept:
        assert again[name].array.tobytes() == checkpoint.read(name).tobytes()
    return plan


def plan_back(plan, config, headers, name=""):
    inverse = module_map(config, headers, name).inverse()
    return inverse.bind(plan.layout, config=config, sizes=plan.sizes)


@pytest.mark.parametrize(
    "kind", [*QUICK, *(pytest.param(kind, marks=pytest.mark.heavy) for kind in MORE)]
)
def test_every_number_lands_where_from_pretrained_puts_it(kind, tmp_path):
    made = tiny.make(kind, tmp_path)
    assert_loads_alike(tmp_path, config_of(tmp_path), type(made.model))


@pytest.mark.parametrize("kind", ["gpt2", pytest.param("gemma3", marks=pytest.mark.heavy)])
def test_published_names_lead_to_the_same_modules(kind, tmp_path):
    made = tiny.make(kind, tmp_path, "hub")
    plan = assert_loads_alike(tmp_path, config_of(tmp_path), type(made.model))
    assert set(plan.layout) != set(plan.headers)


@pytest.mark.parametrize("kind", ["llama", "mixtral"])
def test_the_layout_is_the_live_modules(kind, tmp_path):
    tiny.make(kind, tmp_path)
    config, headers = config_of(tmp_path), open_checkpoint(tmp_path).headers
    layout = module_map(config, headers).bind(headers, config=config).layout
    known = described(config)
    alone = {name: h.shape for name, h in known.headers.items() if name not in known.ties}
    assert {name: header.shape for name, header in layout.items()} == alone


def live(cls, config):
    import transformers

    torch.manual_seed(3)
    known = transformers.AutoConfig.for_model(**config)
    return getattr(transformers, cls)(known).eval()


@pytest.mark.parametrize(
    ("saved", "loaded"),
    [("BertForMaskedLM", "BertForMaskedLM"), ("BertModel", "BertModel")],
)
def test_bert_loads_alike_with_and_without_a_head(saved, loaded, tmp_path):
    live(saved, BERT).save_pretrained(tmp_path)
    assert_loads_alike(tmp_path, BERT, type(live(loaded, BERT)))


def test_the_prefix_goes_where_the_head_goes(tmp_path):
    model = live("BertForMaskedLM", BERT)
    model.save_pretrained(tmp_path)
    config = {**BERT, "architectures": ["BertModel"]}
    headers = open_checkpoint(tmp_path).headers
    bare = {**headers, "bert.pooler.dense.weight": Header("F32", (12, 12))}
    bare["bert.pooler.dense.bias"] = Header("F32", (12,))
    plan = module_map(config, bare).bind(bare, config=config)
    assert "encoder.layer.0.attention.self.query.weight" in plan.layout
    assert {item.policy for item in plan.dropped} == {"original"}
    assert all(item.name.startswith("cls.") for item in plan.dropped)


def test_t5_keeps_one_name_of_what_is_tied(tmp_path):
    live("T5ForConditionalGeneration", T5).save_pretrained(tmp_path)
    plan = assert_loads_alike(tmp_path, T5, type(live("T5ForConditionalGeneration", T5)))
    assert {"shared.weight", "lm_head.weight"} <= described(T5).tied
    assert not plan.layout.keys() & described(T5).ties.keys()


def test_names_that_stay_are_one_rule():
    headers = hub_headers(BERT)
    assert str(module_map(BERT, headers)).splitlines()[1:] == ["{**} <-> same"]


def test_a_checkpoint_without_the_head_is_refused_by_the_parameter_it_lacks():
    headers = hub_headers({**BERT, "architectures": ["BertModel"]})
    with pytest.raises(UnsupportedError, match=r"BertForMaskedLM.*no tensor for cls\."):
        module_map(BERT, headers)


def test_a_head_may_be_lacking_where_that_is_asked_for():
    headers = hub_headers({**BERT, "architectures": ["BertModel"]})
    plan = module_map(BERT, headers, partial=True).bind(headers, config=BERT)
    assert "bert.embeddings.word_embeddings.weight" in plan.layout
    assert not any(name.startswith("cls.") for name in plan.layout)


def test_counted_tensors_that_are_left_out_need_no_count():
    own = "model.layers.{}.mlp.experts.{}.down_proj.weight_scale_inv"
    headers = hub_headers(QWEN3_MOE)
    scales = {own.format(n, e): Header("F32", (1, 1)) for n in range(2) for e in range(3)}
    plan = module_map(QWEN3_MOE, headers | scales).bind(headers | scales, config=QWEN3_MOE)
    assert {item.name for item in plan.dropped} == scales.keys()


def test_another_size_is_refused():
    with pytest.raises(UnsupportedError, match=r"expected \[28\], found \[20\]"):
        module_map({**BERT, "intermediate_size": 28}, hub_headers(BERT))


def test_computing_on_the_way_is_refused(monkeypatch):
    from transformers import conversion_mapping as table
    from transformers.core_model_loading import ConversionOps, WeightConverter

    class Doubled(ConversionOps):
        def convert(self, input_dict, source_patterns, target_patterns, **kwargs):
            return {name: tensors[0] * 2 for name, tensors in input_dict.items()}

    headers = hub_headers(QWEN3_MOE)
    own = [WeightConverter("q_proj.weight", "q_proj.weight", [Doubled()])]
    monkeypatch.setattr(table, "get_model_conversion_mapping", lambda model, **_: own)
    with pytest.raises(UnsupportedError, match="computes with the numbers"):
        follow(QWEN3_MOE, headers)


def test_many_experts_are_followed_by_a_few(monkeypatch):
    config = {**QWEN3_MOE, "num_experts": 40}
    headers = hub_headers(config)
    followed = []
    monkeypatch.setattr(
        loading, "follow", lambda *given: followed.append(len(given[1])) or follow(*given)
    )
    plan = module_map(config, headers).bind(headers, config=config)
    assert plan.layout["model.layers.1.mlp.experts.gate_up_proj"].shape == (40, 20, 12)
    assert followed == [len(hub_headers({**config, "num_experts": 12}))]


def test_a_map_that_was_kept_is_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv("WEIGHBRIDGE_CACHE", str(tmp_path))
    headers = hub_headers(QWEN3_MOE)
    assert module_map(QWEN3_MOE, headers) == module_map(QWEN3_MOE, headers)
    assert len(list(tmp_path.iterdir())) > 1


def test_an_update_of_a_fused_projection_reaches_its_experts():
    headers = hub_headers(QWEN3_MOE)
    back = module_map(QWEN3_MOE, headers).inverse()
    layout = module_map(QWEN3_MOE, headers).bind(headers, config=QWEN3_MOE).layout
    plan = back.bind(layout, config=QWEN3_MOE)
    name = "model.layers.1.mlp.experts.down_proj"
    generator = np.random.default_rng(4)
    a, b = (generator.standard_normal(shape) for shape in [(3, 2, 10), (3, 12, 2)])
    made = apply(plan, {name: LowRank(a, b, 0.5)})
    whole = apply(plan, {n: Dense(np.zeros(h.shape)) for n, h in layout.items()})
    assert made.keys() <= whole.keys()
    for expert in range(3):
        update = made[f"model.layers.1.mlp.experts.{expert}.down_proj.weight"]
        assert np.allclose(update.scale * update.b @ update.a, 0.5 * b[expert] @ a[expert])


TURNING = """weighbridge map 1
a.weight [i o] <-> [o i]
b.{e}.weight [o i] <-> c.weight [e o i]
d [e (g + u) i] <-> d.g.weight [e g i], d.u.weight [e u i]
q.weight [(h (x + y)) i] <-> q.x.weight [h x i], q.y.weight [(h y) i]
v.weight [v d] <-> v.table [v d]
n.weight <-> m.weight
where g = 4, x = 2, h = 3, e = 2
"""


def test_kinds_follow_the_axes():
    text = TURNING.replace("\nwhere g = 4, x = 2, h = 3, e = 2\n", "\n").replace(
        "weighbridge map 1\n", "weighbridge map 1\nwhere g = 4, x = 2, h = 3, e = 2\n"
    )
    shapes = {
        "a.weight": (6, 5),
        "b.0.weight": (7, 8),
        "b.1.weight": (7, 8),
        "d": (2, 9, 10),
        "q.weight": (15, 11),
        "v.weight": (13, 14),
        "n.weight": (3, 4),
    }
    headers = {name: Header("F32", shape) for name, shape in shapes.items()}
    plan = WeightMap.parse(text).bind(headers)
    kinds = {"a": "conv1d", "b.0": "linear", "b.1": "linear", "d": "experts", "q": "linear"}
    found = kinds_through(plan, {**kinds, "v": "embedding"})
    assert found == {
        "a": "linear",
        "c": "experts",
        "d.g": "experts",
        "d.u": "experts",
        "q.y": "linear",
        "v.table": "embedding",
    }


@pytest.mark.parametrize(("kind", "layout"), [("gpt2", "hub"), ("qwen3_moe", "saved")])
def test_kinds_through_the_map_are_those_of_the_mlx_class(kind, layout, tmp_path):
    from weighbridge.converters.configs import to_mlx
    from weighbridge.converters.libraries import find
    from weighbridge.converters.libraries.modules import mlx_kinds
    from weighbridge.converters.maps.sources.learned import learned

    tiny.make(kind, tmp_path, layout)
    config = config_of(tmp_path)
    headers = open_checkpoint(tmp_path).headers
    target = find(config, "mlx-lm")
    own = to_mlx(config, target).config
    plan = module_map(config, headers).bind(headers, config=config)
    there = kinds_through(plan_back(plan, config, headers), describe(config).kinds)
    across = WeightMap.parse(learned(target, own, headers).text).bind(headers, config=own)
    found = kinds_through(across, there)
    wanted = mlx_kinds(target, own)
    # transformers' router is no Linear, mlx-lm's is
    routers = {name for name in wanted if name.endswith(".mlp.gate")}
    assert found == {name: word for name, word in wanted.items() if name not in routers}
