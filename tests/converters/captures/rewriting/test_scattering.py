"""What is put, or joined, where an index says is what torch itself makes, whichever operation does it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.converters.captures.rewrites import embedding_bag
from weighbridge.converters.captures.rewriting import scattering

ATEN = torch.ops.aten


@st.composite
def cases(draw):
    """Draw a tensor, an axis, an index no longer than it along others, and what is put."""
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    dim = draw(st.integers(-len(shape), len(shape) - 1))
    count = [draw(st.integers(1, size)) for size in shape]
    count[dim] = draw(st.integers(1, 7))
    torch.manual_seed(draw(st.integers(0, 99)))
    index = torch.randint(0, shape[dim], count)
    return torch.randn(shape), dim, index, torch.randn([size + 1 for size in count])


@pytest.mark.parametrize("itself", [True, False])
@pytest.mark.parametrize("name", scattering.JOINED)
@given(cases())
def test_what_is_joined_is_what_torch_joins(name, itself, case):
    found = scattering.scatter_reduce(*case, name, include_self=itself)
    torch.testing.assert_close(found, torch.scatter_reduce(*case, name, include_self=itself))


@given(cases())
def test_what_is_put_is_what_torch_puts(case):
    x, dim, index, source = case
    assert torch.equal(scattering.scatter(*case), x.scatter(dim, index, source))
    assert torch.equal(scattering.scatter_value(x, dim, index, 2.5), x.scatter(dim, index, 2.5))
    torch.testing.assert_close(scattering.scatter_add(*case), x.scatter_add(dim, index, source))
    whole = (x * 9).long(), dim, index, (source * 9).long()
    assert torch.equal(scattering.scatter_add(*whole), torch.scatter_add(*whole))


@given(st.integers(-3, 2), st.integers(0, 99))
def test_slices_are_put_and_added_as_torch_does(dim, seed):
    torch.manual_seed(seed)
    x, size = torch.randn(3, 4, 5), [3, 4, 5]
    size[dim] = 2
    index, source = torch.randperm(x.shape[dim])[:2], torch.randn(size)
    torch.testing.assert_close(
        scattering.index_add(x, dim, index, source, alpha=2),
        x.index_add(dim, index, source, alpha=2),
    )
    assert torch.equal(
        scattering.index_copy(x, dim, index, source), x.index_copy(dim, index, source)
    )


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("mode", [0, 1, 2])
@given(st.lists(st.integers(0, 17), max_size=4), st.integers(-1, 5), st.integers(0, 99))
def test_rows_of_bags_are_joined_as_torch_joins_them(mode, last, starts, padding, seed):
    torch.manual_seed(seed)
    table, indices = torch.randn(6, 3), torch.randint(0, 6, (17,))
    offsets = torch.tensor([0, *sorted(starts), *([17] if last else [])])
    factors = None if mode else torch.rand(17)
    words = (table, indices, offsets, False, mode, False, factors, last, padding)
    wanted = ATEN._embedding_bag_forward_only(*words)[0]
    torch.testing.assert_close(embedding_bag(*words)[0], wanted)
