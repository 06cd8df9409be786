"""Passes are chosen by name, and what they remove is not computed again."""

import pytest
import torch
from torch import nn

from weighbridge.converters.captures import capture
from weighbridge.errors import BadInputError


class Masked(nn.Module):
    """Two layers that each make the same table of positions and the same mask of an input."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.register_buffer("learned", torch.ones(5, 1))
        self.register_buffer("hidden", torch.full((5, 1), 2.0), persistent=False)

    def forward(self, x, keep):
        for layer in self.layers:
            positions = torch.arange(x.shape[0])[:, None].float() * self.hidden
            x = layer(x) + torch.cos(positions) * self.learned
            x = x.masked_fill(~keep.bool()[:, None], 0.0)
        return {"x": x}


INPUTS = {"x": torch.randn(5, 4), "keep": torch.tensor([1, 1, 0, 1, 1])}


@pytest.mark.parametrize("passes", [["common"], ["constants"], ["dead_code"], []])
def test_each_pass_alone_changes_no_result(proven, passes):
    proven(Masked(), INPUTS, passes)


def test_positions_are_folded_and_masks_are_made_once(proven, steps):
    names = steps(proven(Masked(), INPUTS))
    assert not {"arange.default", "cos.default"} & set(names)
    assert names.count("bitwise_not.default") == 1


class Typed(nn.Module):
    """Embeddings of types that are the same for all tokens, as where nobody gives any."""

    def __init__(self):
        super().__init__()
        self.types = nn.Embedding(2, 4)
        self.register_buffer("none", torch.ones(1, 9, dtype=torch.long), persistent=False)

    def forward(self, x):
        types = self.none[:, : x.shape[1]].expand(x.shape[0], -1)
        return {"x": x * self.types(types)}


@pytest.mark.parametrize("dynamic", [None, {"x": {0: "batch"}}, {"x": {0: "batch", 1: "tokens"}}])
def test_a_row_that_all_look_up_is_looked_up_once_at_all_sizes(proven, dynamic):
    captured = proven(Typed(), {"x": torch.randn(3, 5, 4)}, dynamic=dynamic)
    looked_up = next(s for s in captured.recording.graph.steps if "embedding" in s.operation)
    assert looked_up.run.arguments["indices"].name.startswith("short_")


def test_a_number_that_is_added_to_constant_indices_is_added(proven):
    class Next(Typed):
        def forward(self, x):
            row = torch.zeros(x.shape[:2], dtype=torch.long)
            return {"x": x * self.types(torch.ops.aten.add.Scalar(row, 1))}

    proven(Next(), {"x": torch.randn(3, 5, 4)}, dynamic={"x": {0: "batch"}})


@pytest.mark.parametrize("shape", [(1,), (), (3, 5)])
def test_a_bias_of_any_shape_that_fits_gets_a_gradient_of_it(proven, shape):
    class Shifted(nn.Linear):
        def __init__(self):
            super().__init__(4, 5)
            self.own = nn.Parameter(torch.randn(shape))

        def forward(self, x):
            return {"x": nn.functional.linear(x, self.weight, self.own)}

    proven(Shifted(), {"x": torch.randn(3, 4)})


def test_constants_are_folded_through_windows_that_overlap(proven):
    class Windows(nn.Linear):
        def forward(self, x):
            places = torch.arange(11).unfold(0, 5, 3).contiguous().view(-1)
            return {"x": super().forward(x)[:, places]}

    proven(Windows(4, 11), {"x": torch.randn(2, 4)})


def test_buffers_of_the_state_dict_are_not_folded(proven, steps):
    names = steps(proven(Masked(), INPUTS))
    assert names.count("mul.Tensor") == 1  # cosines by a buffer that a state dict may change


def test_random_numbers_are_neither_folded_nor_merged(steps):
    class Noisy(nn.Module):
        def forward(self, x):
            return x + torch.rand(3), torch.rand(3)

    names = steps(capture(Noisy(), inputs={"x": torch.zeros(3)}))
    assert names.count("rand.default") == 2


def test_without_passes_the_graph_is_what_was_recorded(steps):
    captured = capture(Masked(), inputs=INPUTS, passes=())
    assert steps(captured).count("arange.default") == 2


def test_outputs_of_submodules_stay_visible():
    without = capture(Masked(), inputs=INPUTS, passes=())
    assert capture(Masked(), inputs=INPUTS).sites == without.sites == ("layers.0", "layers.1")


def test_an_unknown_pass_is_refused_with_the_nearest_name():
    with pytest.raises(BadInputError, match="'comon': did you mean common"):
        capture(Masked(), inputs=INPUTS, passes=["comon"])


class LookedUp(nn.Module):
    """Rows of a table at indices that are the same for each example, or all the same."""

    def __init__(self):
        super().__init__()
        self.kinds, self.places = nn.Embedding(2, 4), nn.Embedding(9, 4, padding_idx=2)
        self.register_buffer("kind", torch.ones(1, 9, dtype=torch.long), persistent=False)

    def forward(self, x):
        places = torch.arange(x.shape[1])[None].expand(len(x), -1)
        kinds = self.kind[:, : x.shape[1]].expand(len(x), -1)
        return {"x": x * self.kinds(kinds) + self.places(places)}


def test_constant_indices_are_looked_up_once(proven):
    captured = proven(LookedUp(), {"x": torch.randn(3, 5, 4)})
    short = [v.shape for v in captured.recording.constants.values()]
    assert sorted(short) == [(1, 1), (1, 5)]
    assert captured.sites == ("kinds", "places")
