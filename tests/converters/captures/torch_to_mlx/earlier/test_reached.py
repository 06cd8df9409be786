"""Whatever a network of users reaches, by whichever way, is part of what its recording is found by."""

from __future__ import annotations

import builtins
import sys

import pytest
import torch
from torch import nn

from weighbridge.converters.captures.torch_to_mlx.earlier import known, stored

from .conftest import INPUTS, NETWORK, OPERATIONS

HEAD = """
import builtins, dataclasses, enum, inspect, numpy, operator, os, re, typing
from collections import defaultdict
from functools import lru_cache, update_wrapper
from types import SimpleNamespace
import torch
import torch.nn.functional as F
from torch import nn
import users_operations as helpers
"""
BODY = """
class Network(nn.Module):
    def forward(self, input):
        return input * float({})
"""
# Lines of a module, what its network multiplies by, and what changes in these lines or in the other file.
REACHED = {
    "a module given to a function": ("def get(it): return it.FACTOR", "get(helpers)"),
    "a module that a function returns": ("def get(): return helpers", "get().FACTOR"),
    "an attribute by operator": ("", "operator.attrgetter('FACTOR')(helpers)"),
    "a default of a dictionary": ("D = defaultdict(lambda: (lambda: 2.0))", "D['a']()"),
    "an object in a namespace": (
        "class K:\n    def __repr__(self): return 'K'\n    value = 2.0\nN = SimpleNamespace(it=K())",
        "N.it.value",
    ),
    "much in a namespace": (
        "N = SimpleNamespace(it=torch.zeros(2000)); N.it[1000] = 2.0",
        "N.it[1000]",
    ),
    "a private slot": (
        (
            "class K:\n    __slots__ = ('__v',)\n    def of(self): return self.__v\n"
            "    def put(self, v): self.__v = v\nk = K(); k.put(2.0)"
        ),
        "k.of()",
    ),
    "one slot": ("class K:\n    __slots__ = 'value'\nk = K(); k.value = 2.0", "k.value"),
    "a note to a field": (
        "@dataclasses.dataclass\nclass K:\n    a: int = dataclasses.field(default=1, metadata={'f': 2.0})",
        "dataclasses.fields(K)[0].metadata['f']",
    ),
    "what a pattern matches": (
        (
            "class K:\n    one, two = 1.0, 3.0\n    __match_args__ = ('one',)\n"
            "def get(k):\n    match k:\n        case K(found): return found"
        ),
        "get(K())",
        ("('one',)", "('two',)"),
    ),
    "a long pattern": (
        "P = re.compile('a' * 300 + '|2.0')",
        "len(P.pattern[301:])",
        ("|2.0", "|2"),
    ),
    "a function's name": (
        "def make():\n    def one(): pass\n    return one\nG = [make()]",
        "len(G[0].__name__)",
        ("def one(): pass\n    return one", "def three(): pass\n    return three"),
    ),
    "a class in an alias": ("class K: value = 2.0\nA = list[K]", "A.__args__[0].value"),
    "a class in a base": (
        (
            "T = typing.TypeVar('T')\nclass A: value = 2.0\nclass B(typing.Generic[T]): pass\n"
            "class C(B[A]): pass"
        ),
        "typing.get_args(C.__orig_bases__[0])[0].value",
    ),
    "a decorator that is an object": (
        (
            "class K:\n    def __init__(self, f, by): update_wrapper(self, f); self.by = by\n"
            "    def __call__(self): return self.__wrapped__() * self.by\n"
            "def one(): return 1.0\nG = K(one, 2.0)"
        ),
        "G()",
    ),
    "a function of a text": (
        "space = {'__name__': 'made'}; exec('def f(): return 2.0', space); G = space['f']",
        "G()",
    ),
    "an object in a library": (
        "class K:\n    def __call__(self): return 2.0\nF.users = K()",
        "F.users()",
    ),
    "a table in a library": ("F.users = {'a': 2.0}", "F.users['a']"),
    "a number of a library's class": ("nn.Module.users = 2.0", "self.users"),
    "a function among those built in": ("builtins.users = lambda: 2.0", "users()"),
    "a method of tensors": (
        "torch.Tensor.users = torch.Tensor.relu",
        "torch.ones(1).users()",
        ("Tensor.relu", "Tensor.sigmoid"),
    ),
    "a hook of all modules": (
        (
            "class K:\n    def __call__(self, *about): return about[2] * 2.0\n"
            "nn.modules.module.register_module_forward_hook(K())"
        ),
        "1.0",
    ),
    "an annotation": ("def get(a: 2.0): pass", "get.__annotations__['a']"),
    "a frame": ("FACTOR = 2.0", "inspect.currentframe().f_globals['FACTOR']"),
    "classes below": ("class A: pass\nclass B(A): value = 2.0", "A.__subclasses__()[0].value"),
    "a class that is registered": (
        "import abc\nclass A(abc.ABC): pass\nA.register(float)",
        "isinstance(1.0, A)",
        ("register(float)", "register(str)"),
    ),
    "a file": ("def get(): return numpy.load('2.0')", "get()"),
    "a file of weights": ("def get(): return torch.load('2.0')", "get()"),
    "a module with a class": (
        (
            "import sys, types\nclass M(types.ModuleType):\n    value = property(lambda self: 2.0)\n"
            "sys.modules[__name__].__class__ = M\nimport users_network as itself"
        ),
        "itself.value",
    ),
    "a module by the same name": (
        (
            "import types\none, other = types.ModuleType('m'), types.ModuleType('m')\n"
            "one.a, one.b, other.a, other.b = 1.0, 1.0, 1.0, 2.0"
        ),
        "one.a * other.b * one.b",
    ),
}


@pytest.fixture
def unchanged(monkeypatch):
    """Put back what these networks put into libraries."""
    for place in (nn.functional, nn.Module, builtins, torch.Tensor):
        monkeypatch.setattr(place, "users", 0.0, raising=False)
    yield
    nn.modules.module._global_forward_hooks.clear()


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("what", REACHED)
def test_what_a_network_reaches_by_other_ways_is_in_its_key(key, what):
    lines, factor, *change = REACHED[what]
    old, new = change[0] if change else ("2.0", "2.5")
    first, second = (
        key(
            f"{HEAD}{it}\n{BODY.format(factor)}", OPERATIONS.replace(old, new) if at else OPERATIONS
        )
        for at, it in enumerate((lines, lines.replace(old, new)))
    )
    assert first is None or first != second


def test_a_module_that_is_loaded_while_it_runs_has_no_key(key, monkeypatch, tmp_path):
    package = tmp_path / "users_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "later.py").write_text("FACTOR = 2.0")
    for line in ("from users_package import later", "import users_package.later as later"):
        monkeypatch.delitem(sys.modules, "users_package.later", raising=False)
        lines = f"import users_package\ndef get():\n    {line}\n    return later.FACTOR\n"
        assert key(f"{HEAD}{lines}{BODY.format('get()')}") is None


def test_what_a_users_cache_holds_may_be_older_than_its_code(key):
    lines = "@lru_cache\ndef get(): return 2.0\n"
    network = f"{HEAD}{lines}{BODY.format('get()')}"
    assert key(network) is not None
    assert key(network, change=lambda module, *_: module(torch.ones(1))) is None


def test_which_children_are_the_same_is_in_the_key(key):
    def sharing(which):
        module = nn.Sequential(nn.ReLU(), nn.GELU())
        return stored.key_of(module.append(module[which]), INPUTS, {}, None)

    assert key() is not None  # the folder is there
    assert sharing(0) != sharing(1)


def test_an_attribute_of_a_weight_is_in_the_key(key):
    assert key() is not None
    layer = nn.Linear(8, 8)
    keys = []
    for scale in (1.0, 2.0):
        layer.weight.scale = scale
        keys.append(str(stored.key_of(layer, INPUTS, {}, None)))
    assert keys[0] != keys[1]


@pytest.mark.parametrize("what", ["autocast", "device"])
def test_what_surrounds_a_capture_is_in_its_key(key, what):
    plain = key()
    around = {"autocast": torch.autocast("cpu", torch.bfloat16), "device": torch.device("cpu")}
    with around[what]:
        assert key() != plain
    assert key() == plain is not None


def test_what_a_library_makes_anew_in_every_process_is_in_no_key(key, monkeypatch):
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.utils import hub

    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "vocab_size": 9}
    llama = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2))
    key()
    keys = []
    for number in (1, 2):
        monkeypatch.setattr(hub, "SESSION_ID", f"session {number}")
        llama.generation_config._original_object_hash = number
        keys.append(stored.key_of(llama, {"input_ids": torch.ones(1, 5).long()}, {}, None))
    assert keys[0] == keys[1] is not None


def test_code_beside_our_packages_is_a_users(key, monkeypatch, tmp_path):
    key()
    monkeypatch.setattr(known, "ROOT", tmp_path)
    known._is_known.cache_clear()
    assert not known.is_known(key.made(NETWORK, OPERATIONS).forward.__func__)
    known._is_known.cache_clear()


def test_layers_of_a_library_with_objects_of_its_own_have_a_key(key):
    layers = pytest.importorskip("einops.layers.torch")
    key()
    one, other = (
        stored.key_of(layers.Rearrange(it), INPUTS, {}, None)
        for it in ("a b -> b a", "a b -> (a b)")
    )
    assert None not in (one, other)
    assert one != other
