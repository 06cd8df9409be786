"""Which class reads a config."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from weighbridge.converters.libraries import find, user_target
from weighbridge.converters.libraries.packages import PACKAGES, constant
from weighbridge.errors import BadInputError, UntrustedError


@pytest.mark.parametrize(
    ("kind", "library", "module"),
    [
        ("llama", "mlx-lm", "mlx_lm.models.llama"),
        ("mistral", "mlx-lm", "mlx_lm.models.llama"),  # a renamed one
        ("qwen3", "mlx-lm", "mlx_lm.models.qwen3"),  # mlx-embeddings and mlx-vlm have it too
        ("bert", "mlx-embeddings", "mlx_embeddings.models.bert"),
        ("xlm-roberta", "mlx-embeddings", "mlx_embeddings.models.xlm_roberta"),
        ("idefics3", "mlx-vlm", "mlx_vlm.models.idefics3"),
        ("cohere2_vision", "mlx-vlm", "mlx_vlm.models.aya_vision"),
    ],
)
def test_the_first_library_that_has_the_type_reads_it(kind, library, module):
    target = find({"model_type": kind})
    assert (target.library, target.module, target.model_type) == (library, module, kind)


def test_a_library_can_be_asked_alone():
    assert find({"model_type": "qwen3"}, "mlx-embeddings").module == "mlx_embeddings.models.qwen3"
    assert find({"model_type": "bert"}, "mlx-lm") is None


def test_an_unknown_library_is_refused():
    with pytest.raises(BadInputError, match="no such library"):
        find({"model_type": "llama"}, "mlx")


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"model_type": None},
        {"model_type": 3},
        {"model_type": "../../etc"},
        {"model_type": "base"},
    ],
)
def test_what_no_library_has_is_not_found(config):
    assert find(config) is None


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "llama", "model_file": "model.py"},
        {"model_type": "strange", "auto_map": {"AutoModel": "modeling_strange.Strange"}},
    ],
)
def test_a_config_that_asks_for_code_is_refused(config):
    with pytest.raises(UntrustedError, match="asks to run code"):
        find(config)


def test_a_known_type_needs_no_code_although_its_config_offers_some():
    config = {"model_type": "deepseek_v3", "auto_map": {"AutoModel": "modeling_deepseek.Model"}}
    assert find(config).module == "mlx_lm.models.deepseek_v3"


def test_names_are_those_the_library_itself_looks_up():
    import mlx_lm.utils

    assert constant("mlx-lm", "utils.py", "MODEL_REMAPPING") == mlx_lm.utils.MODEL_REMAPPING
    for kind, name in mlx_lm.utils.MODEL_REMAPPING.items():
        found = find({"model_type": kind}, "mlx-lm")
        assert found is None or found.module == f"mlx_lm.models.{name}"
    special = {"model_type": "bailing_hybrid", "architectures": ["BailingMoeV3ForCausalLM"]}
    assert find(special).module == mlx_lm.utils._get_classes(special)[0].__module__


def test_finding_imports_no_library():
    code = (
        "import sys, json; from weighbridge.converters.libraries import find;"
        "[find({'model_type': kind}) for kind in ('llama', 'bert', 'idefics3', 'none')];"
        "print(json.dumps([n for n in sys.modules if n.partition('.')[0] in %r]))"
    )
    names = [*PACKAGES.values(), "mlx", "torch", "transformers"]
    done = subprocess.run([sys.executable, "-c", code % names], capture_output=True, check=True)
    assert json.loads(done.stdout) == []


@pytest.mark.parametrize("spec", ["nowhere:Model", "json:Model", "json"])
def test_a_users_class_that_is_not_there_is_refused(spec):
    with pytest.raises(BadInputError, match=spec):
        user_target(spec)
