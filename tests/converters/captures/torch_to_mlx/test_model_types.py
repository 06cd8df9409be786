"""Model types whose code decides, asserts or keeps in ways of their own, as the benchmark of all types records them."""

from __future__ import annotations

import pytest
from transformers import logging

from weighbridge.converters.captures import census
from weighbridge.tests.support.captures.fake_models import fake_model, inputs_of

logging.set_verbosity_error()
TYPES = {  # with what decides
    "longformer": "whether any token sees all",
    "glm_ocr_vision": "lengths of pieces",
    "rt_detr_v2": "views of what lies otherwise",
    "xlm": "an assert by values",
    "ctrl": "a table that is written as it is",
}


@pytest.mark.heavy
@pytest.mark.parametrize("model_type", TYPES)
def test_a_type_that_decides_has_a_clean_census(model_type):
    model = fake_model(model_type)[0]
    found = census(model, inputs=inputs_of(model, model_type == "longformer"))
    assert not found.unsupported
