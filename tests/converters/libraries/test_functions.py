"""Single functions of the libraries run as they are, without what is around them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from weighbridge.converters.libraries import functions
from weighbridge.errors import UnsupportedError

QUIET = """
import sys
from weighbridge.converters.libraries.functions import function
function("mlx-lm", "utils.py", "quantize_model")
print(sorted({"torch", "transformers", "huggingface_hub"} & sys.modules.keys()))
"""


def test_nothing_heavy_is_imported_for_one_function():
    done = subprocess.run([sys.executable, "-c", QUIET], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_function_that_the_installed_version_lacks_is_named():
    with pytest.raises(UnsupportedError, match=r"has no quantise_model in utils\.py"):
        functions.function("mlx-lm", "utils.py", "quantise_model")


def test_another_function_of_the_file_can_be_stood_in_for():
    made = functions.function("mlx-lm", "utils.py", "compute_bits_per_weight")
    assert "get_total_parameters" in made.__globals__
    others = {"get_total_parameters": len}
    made = functions.function("mlx-lm", "utils.py", "compute_bits_per_weight", others)
    assert made.__globals__["get_total_parameters"] is len
