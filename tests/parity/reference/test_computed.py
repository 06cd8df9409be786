"""What a source computes from its weights alone is told from what depends on its inputs."""

import numpy as np
import pytest
import torch
from torch import nn

from weighbridge.converters.models import Port, Signature
from weighbridge.parity.probes.probes import Probe
from weighbridge.parity.reference.computed import FromWeights, computed_by

SIGNATURE = Signature(
    (Port("x", "float32", ("batch", 6), "hidden"),), (Port("y", "float32", ("batch", 6), ""),)
)
PROBE = Probe("one", {"x": np.linspace(-1, 1, 6, dtype=np.float32)[None]})


class Tables(nn.Module):
    """Adds a table looked up at fixed places, and one that depends on the input."""

    def __init__(self):
        super().__init__()
        self.table, self.scale = nn.Embedding(9, 1), nn.Parameter(torch.rand(6))

    def forward(self, x):
        fixed = self.table(torch.arange(6)).reshape(6) * self.scale
        asked = self.table((x > 0).long()).reshape(6)
        return x + fixed + asked


def test_a_table_looked_up_at_fixed_places_is_found_with_its_tensors():
    module = Tables().eval()
    found = computed_by(module, SIGNATURE, [PROBE], {6})
    wanted = (module.table.weight[:6, 0] * module.scale).detach().numpy()
    (name,) = (name for name, it in found.items() if np.array_equal(it.value, wanted))
    assert found[name].parts == ("scale", "table.weight")


def test_what_depends_on_an_input_is_not_found():
    module = Tables().eval()
    found = computed_by(module, SIGNATURE, [PROBE], {6})
    asked = module.table.weight[(torch.tensor(PROBE.inputs["x"][0]) > 0).long(), 0]
    assert not [it for it in found.values() if np.array_equal(it.value.reshape(-1), asked.detach())]


def written_into_a_view(weight, x):
    made = torch.zeros(6)
    made[1:] = x[0, 1:]
    return made * weight


def written_by_another_name(weight, x):
    made = torch.zeros(6)
    made.data.copy_(x[0])
    return made * weight


def read_as_a_number(weight, x):
    return weight * x.abs().sum().item()


def filled_with_a_number_that_was_read(weight, x):
    return torch.full((6,), x.max().item()) * weight


@pytest.mark.parametrize(
    "make",
    [
        written_into_a_view,
        written_by_another_name,
        read_as_a_number,
        filled_with_a_number_that_was_read,
    ],
)
def test_an_input_is_followed_through_memory_and_numbers(make):
    weight, x = torch.rand(6), torch.tensor(PROBE.inputs["x"])
    with FromWeights({"w": weight}, [x], sizes={6}) as seen:
        value = make(weight, x)
    assert not [it for it in seen.found.values() if np.array_equal(it.value, value)]


def test_weights_written_into_a_view_are_named():
    weight = torch.rand(6)
    with FromWeights({"w": weight, "v": weight[:3]}, [], sizes={6}) as seen:
        made = torch.zeros(6)
        made[:3] = weight[:3]
        twice = made * 2
    (found,) = (it for it in seen.found.values() if np.array_equal(it.value, twice))
    assert found.parts == ("w",)
