"""Modules that put or join elements where an index says, bags of rows, and sums by letters go to every format."""

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from weighbridge.cli import main
from weighbridge.converters.models import Port, Signature
from weighbridge.tests.support.coreml import modules
from weighbridge.tests.support.coreml.models import lively

FORMS = {"onnx": "m.onnx", "coreml": "m.mlpackage", "coreai": "m.aimodel"}


class Put(nn.Module):
    """Joins and puts what a layer gives, each kind once."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self.register_buffer("several", torch.arange(16) % 5)
        self.register_buffer("single", torch.arange(15, -1, -1))

    def forward(self, x):
        given, several, single = (
            self.layer(x), self.several.expand(x.shape), self.single.expand(x.shape)
        )  # fmt: skip
        x = x.scatter_reduce(-1, several, given, "mean", include_self=False)
        x = x.scatter_reduce(-1, several, given, "amax").scatter_add(-1, several, given)
        x = x.index_add(-1, self.several, given).index_copy(-1, self.single[:4], given[..., :4])
        return x.scatter(-1, single[..., :4], 0.5) + torch.zeros_like(x).scatter(-1, single, given)


class Bags(nn.Module):
    """Means and maxima of rows of tables, one of which leaves a row out."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.EmbeddingBag(61, 16, mode="mean", padding_idx=3)
        self.most = nn.EmbeddingBag(61, 16, mode="max")

    def forward(self, input_ids):
        return self.mean(input_ids) + self.most(input_ids)


class Letters(nn.Module):
    """Sums of products that are no products of matrices, and such with dots for axes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x):
        alike = torch.einsum("bsd,bsd->bs", x, self.layer(x))
        return torch.einsum("...d,de->...e", x, self.layer.weight) + alike.unsqueeze(-1)


def letters() -> modules.Built:
    """Return the module of sums, with what it takes."""
    torch.manual_seed(0)
    return lively(Letters()), modules.signature({"x": ("float32", "hidden")}, 16)


def put() -> modules.Built:
    """Return the module that puts, with what it takes."""
    torch.manual_seed(0)
    return lively(Put()), modules.signature({"x": ("float32", "hidden")}, 16)


def bags() -> modules.Built:
    """Return the module of bags, with what it takes."""
    torch.manual_seed(0)
    limits = (("sequence", 64), ("vocabulary", 61))
    ids = Port("input_ids", "int64", ("batch", "sequence"), "token_ids", limits)
    return lively(Bags()), Signature((ids,), (Port("y", "float32", ("batch", 16), "hidden"),))


QUICK = {("put", "coreml"), ("bags", "onnx"), ("letters", "coreai")}
CASES = [(name, form) for name in ("put", "bags", "letters") for form in FORMS]


@pytest.mark.parametrize(
    ("name", "form"),
    [pytest.param(*it, marks=() if it in QUICK else pytest.mark.heavy) for it in CASES],
)
def test_an_export_passes_its_check(name, form, tmp_path):
    if form == "coreai":
        pytest.importorskip("coreai_torch")
    words = ("export", form, f"{__name__}:{name}", str(tmp_path / FORMS[form]))
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    assert "PASS" in result.output
