"""Repeated blocks are folded where they are the same, and nothing else is."""

from hypothesis import given
from hypothesis import strategies as st

from weighbridge.converters.maps.infer.families import HOLE, fold

NAMES = st.from_regex(r"[a-c]{1,2}(\.([0-2]|[ab]_?[0-2]|[a-c])){0,3}\.w", fullmatch=True)


def test_blocks_of_one_shape_become_one_family():
    shapes = {f"h.{n}.fc.w": (2, 3) for n in range(3)} | {"out.w": (4,)}
    block, out = fold(shapes)
    assert (block.template, block.indices) == (f"h.{HOLE}.fc.w", (("0", "1", "2"),))
    assert out.indices == ()


def test_blocks_of_other_shapes_stay_apart():
    assert len(fold({"h.0.w": (2, 3), "h.1.w": (3, 2)})) == 2


def test_two_indices_are_folded_together():
    shapes = {f"h.{n}.experts.{e}.w": (2, 3) for n in (1, 3) for e in range(4)}
    assert fold(shapes)[0].stacked == (2, 4, 2, 3)


def test_a_number_in_a_name_is_an_index_only_if_it_counts_from_0():
    blocks = {f"block_{n}.attn.w": (2, 3) for n in range(2)}
    halves = {f"conv{n}.w": (2, 3) for n in (1, 2)}
    assert [len(fold(shapes)) for shapes in (blocks, halves)] == [1, 2]
    assert len(fold(blocks, "segments")) == 2


@given(st.sets(NAMES, min_size=1), st.sampled_from(["all", "segments", "none"]))
def test_folding_loses_no_tensor_and_makes_none(names, level):
    shapes = {name: (len(name), 3) for name in sorted(names)}
    families = fold(shapes, level)
    found = [name for family in families for name in family.names()]
    assert sorted(found) == sorted(names)
    assert all(shapes[name] == f.shape for f in families for name in f.names())
