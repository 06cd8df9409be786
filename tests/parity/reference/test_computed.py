"""What a source computes from its weights alone is told from what depends on its inputs."""

import numpy as np
import torch
from torch import nn

from weighbridge.converters.models import Port, Signature
from weighbridge.parity.probes.probes import Probe
from weighbridge.parity.reference.computed import computed_by

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
