"""What is asked apart is answered as it is here, and PyTorch stays out of this process."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch  # noqa: F401  # so that this process answers itself

from weighbridge.converters.libraries.modules import answer
from weighbridge.errors import UnsupportedError

SIZES = {"hidden_size": 8, "intermediate_size": 12, "num_attention_heads": 2, "vocab_size": 5}
CONFIG = {"model_type": "llama", "num_hidden_layers": 1, "num_key_value_heads": 1, **SIZES}
ASK = """
import json, sys
from weighbridge.converters.libraries.modules import as_json, describe
config = json.loads(sys.argv[1])
try:
    found = as_json(describe(config))
except Exception as error:
    found = [type(error).__name__, str(error)]
print(json.dumps([found, "torch" in sys.modules]))
"""


def ask(config):
    """Ask in a process that has no PyTorch yet; return the answer and whether it has it now."""
    command = [sys.executable, "-c", ASK.replace("import json, sys", PREFIX), json.dumps(config)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


PREFIX = "import json, sys; program, sys.argv[0] = sys.argv[0], 'weighbridge'"


def test_the_answer_is_the_same_and_pytorch_stays_away():
    found, loaded = ask(CONFIG)
    assert found == json.loads(json.dumps(answer(CONFIG, "")))
    assert not loaded


def test_a_refusal_is_handed_on():
    strange = CONFIG | {"model_type": "nonsense"}
    (kind, said), loaded = ask(strange)
    assert kind == "UnsupportedError"
    assert "nonsense" in said
    assert not loaded
    with pytest.raises(UnsupportedError, match="nonsense"):
        answer(strange, "")
