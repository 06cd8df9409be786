"""The notation: what it accepts, what it says of errors, and that it prints what it reads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.converters.maps import WeightMap
from weighbridge.converters.maps.notation.expressions import (
    OPERATORS,
    ConfigKey,
    Definition,
    Literal,
    Operation,
    Words,
)
from weighbridge.converters.maps.notation.names import Capture, Name
from weighbridge.converters.maps.notation.rules import (
    RESERVED,
    Affine,
    Bits,
    Cast,
    Drop,
    Pairing,
    Term,
    Tie,
)
from weighbridge.errors import MapSyntaxError

FORMS = """\
weighbridge map 1
where n = num_hidden_layers
where part = word | token_type
embeddings.{part}_embeddings.weight <-> same
{m**}.conv1.weight [out in width] <-> [out width in]
layers.{n}.experts.{e}.w1.weight [o i] <-> layers.{n}.switch_mlp.gate_proj.weight [e o i]
    where e = num_experts
{m}.qkv_proj.weight [(q + k + v) d] <-> {m}.q_proj.weight [q d], {m}.k_proj.weight [k d], {m}.v_proj.weight [v d]
    where q = num_attention_heads * head_dim, k = v = text.heads * (head_dim + 2 * 3) // 4 - 1
kv_b_proj.weight [(h (a + b)) c] <-> embed_q.weight [h c a], unembed_out.weight [h b c]
a.weight [a 1 b 4] <-> [4 (b a)]
{n}.A_log [h] <-> [h] * c
    where c = multiplier
? norm.weight <-> same + 1 as bfloat16
norm.bias <-> other.bias * 0.5 + -2
norm.scale + 1 <-> other.scale * -1e-07 as float16
h.{n}.w [a (g + u)] <-> h.{n}.g [(a g)], h.{n}.u [u a]
    where g = u = 1, n = 1 | 3
x_blocks [e (n (g + u)) k b] bits uint8 <-> x.gate [e (n g) (k b)] bits uint32, x.up [e (n u) (k b)] bits uint32
    where g = u = 1
scale bits float8_e8m0fnu <-> same bits uint8
? {m}.weight, {m}.weight_scale => {m}.weight
    by a = FromFP8(#0) bfloat16;
       b, _ = Split(#1) [1 -1] 0;
       c = Constant() float32 [] [-0.5];
       d = Sqrt(b) true;
       $0 = Pad(a, c) [0] [1] [2]
    where m = x | y
packed <= plain
    by $0 = Square(#0)
lm_head.weight == embed_tokens.weight
rotary_emb.inv_freq -> recomputed
vision_tower.{**} -> original
recomputed <- model.position_ids
else {**} <-> model.{**}"""

# text, line, column, a part of the message
ERRORS = [
    ("a.w [x <-> b.w [x]", 1, 8, "expected an axis or `]`, found `<`"),
    ("\n# note\na.w [x (y + z] <-> [x]", 3, 14, "expected `+` or `)`"),
    ("a.w [x] <-> b.w [y]", 1, 1, "left has [x], right [y]"),
    ("a.w <-> b.w c.w", 1, 13, "expected the end of the rule, found `c.w`"),
    ("a.w <-> b.w\n  c.w", 2, 3, "found `c.w`; rules start in column 1"),
    ("a.w", 1, 4, "expected `<->`, `->` or `==`, found the end of the rule"),
    ("a.w -> gone", 1, 8, "expected `recomputed` or `original`, found `gone`"),
    ("a.{n}.w <-> b.w", 1, 1, "{n} is not in every name"),
    ("a.{n}.w [x] <-> b.w [n x], c.w [n x]", 1, 1, "two parts have the same axes"),
    ("a.w [x x] <-> b.w [x x]", 1, 1, "an axis stands twice in [x x]"),
    ("a.w [x 0] <-> b.w [x 0]", 1, 8, "a size of at least 1"),
    ("a.w [(x y + z)] <-> b.w [x]", 1, 11, "own brackets: ((a b) + c)"),
    ("a.w [x] <-> b.w", 1, 1, "b.w needs axes in brackets"),
    ("a.w [x], a.w [y] <-> b.w [(x + y)]", 1, 1, "a.w stands twice on one side"),
    ("a.{b <-> c", 1, 3, "`<->`"),
    ("a.{} <-> c", 1, 1, "a capture is written {n}"),
    ("a.{x}{y} <-> b.{x}.{y}", 1, 1, "must have text between them"),
    ("{a**}.{b**} <-> {b**}.x.{a**}", 1, 1, "only one capture may be of any depth"),
    ("{e**}.w [x] <-> b [e x]", 1, 1, "cannot be an axis"),
    ("weighbridge map 2\n", 1, 17, "reads version 1 of the notation, not 2"),
    ("a.w <-> same as float33", 1, 17, "`float33` is no dtype; known are bfloat16"),
    ("a.w [x] <-> [x] * c", 1, 1, "c is not defined; add: where c = ..."),
    ("a.w [x] <-> [x] where y = 3", 1, 1, "y is defined, but is no axis"),
    ("where y = 3\na.w <-> same", 1, 1, "y is defined, but no rule uses it"),
    ("a.w [x] <-> [x] where x = (3", 1, 29, "expected `)`, found the end of the rule"),
    ("a.w [x] <-> [x] where x = 3 / 4", 1, 29, "expected the end of the rule, found `/`"),
    ("a.w [x] <-> [x] where x = __import__('os')", 1, 37, "expected the end of the rule"),
    ("a.w [x] <-> [x] where x = 3 | 4", 1, 1, "x stands for words, so it cannot be an axis"),
    ("a.{x} <-> same where x = 3 | ", 1, 30, "expected a word, found the end of the rule"),
    ("a.w bits uint8 <-> b.w", 1, 1, "b.w: where one tensor has `bits`, each has it"),
    ("a.w bits uint8 <-> b.w bits uint8 + 1", 1, 1, "and no other change"),
    ("a.w [] bits uint8 <-> [] bits uint8", 1, 1, "`bits` needs an axis to count bytes in"),
    ("a.w bits float33 <-> same", 1, 10, "`float33` is no dtype; known are bfloat16"),
    ("a => b", 1, 7, "expected `by` and a program, found the end of the rule"),
    ("a => b by c", 1, 12, "expected `=`, found the end of the rule"),
    ("a => b by $0 = Squar(#0)", 1, 16, "no operation `Squar`; nearest: Square"),
    ("a.w <-> b.w * 0", 1, 1, "`* 0` has no way back"),
    ("a.w, b.w [x] <-> same", 1, 18, "the only name on the left"),
    ("same <-> a.w", 1, 1, "the only name on the left"),
    ("? a.w -> recomputed", 1, 7, "takes one plain name"),
    ("a.{n} == b.{k}", 1, 1, "a.{n} does not capture {k}"),
    ("a.w [" + "(" * 100_000, 1, 1, "nested too deeply"),
]  # fmt: skip


def test_every_form_prints_as_it_is_written():
    assert str(WeightMap.parse(FORMS)) == FORMS


def test_comments_blank_lines_and_continuations_mean_nothing():
    spread = "# weighbridge map 1\n\na.w [x y]   # first\n\t<-> # second\n\n  b.w [y x]\n\n\n# end"
    assert WeightMap.parse(spread) == WeightMap.parse("a.w [x y] <-> b.w [y x]")


@pytest.mark.parametrize(("text", "line", "column", "message"), ERRORS)
def test_an_error_says_where_and_what(text, line, column, message):
    with pytest.raises(MapSyntaxError) as caught:
        WeightMap.parse(text, "my.wmap")
    first, *shown = str(caught.value).split("\n")
    assert first.startswith(f"my.wmap:{line}:{column}: ")
    assert message in first
    assert not shown or shown[1].index("^") - 2 == column - 1


WORDS = st.from_regex(r"[A-Za-z_][A-Za-z0-9_\-/:]{0,5}[A-Za-z0-9_]", fullmatch=True)
IDENTIFIERS = st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,4}", fullmatch=True).filter(
    lambda word: word not in RESERVED
)
EXPRESSIONS = st.recursive(
    st.integers(0, 10**9).map(Literal)
    | st.lists(IDENTIFIERS, min_size=1, max_size=2).map(lambda keys: ConfigKey(".".join(keys))),
    lambda inner: st.builds(Operation, st.sampled_from(sorted(OPERATORS)), inner, inner),
)
VALUES = EXPRESSIONS | st.lists(WORDS.filter(lambda w: not set(w) & set("/:")), min_size=2).map(
    lambda words: Words(tuple(words))
)
AMOUNTS = st.integers(-9, 9) | st.floats(allow_nan=False, allow_infinity=False)
BITS = st.builds(Bits, st.sampled_from(["uint8", "uint32", "bfloat16"]))
CHANGES = st.builds(Cast, st.sampled_from(["float32", "bfloat16", "float8_e4m3fn"])) | st.builds(
    Affine, st.sampled_from("+*"), AMOUNTS.filter(bool)
)


@st.composite
def names(draw):
    parts, captures = [draw(WORDS)], draw(st.lists(IDENTIFIERS, unique=True, max_size=3))
    for i, capture in enumerate(captures):
        parts += [Capture(capture, deep=i == 0 and draw(st.booleans())), f".{draw(WORDS)}"]
    return Name(tuple(parts))


@st.composite
def renames(draw):
    left = draw(names())
    tail = draw(WORDS)
    right = draw(st.sampled_from([left, Name((*left.parts[:-1], f"{left.parts[-1]}.{tail}"))]))
    changes = st.lists(CHANGES, max_size=2).map(tuple)
    if draw(st.booleans()):
        changes = st.tuples(BITS)
    where = [Definition((c.name,), draw(VALUES)) for c in left.captures if draw(st.booleans())]
    marker = draw(st.sampled_from(["", "?", "else"]))
    return Pairing(
        (Term(left, None, draw(changes)),),
        (Term(right, None, draw(changes)),),
        tuple(where),
        marker,
    )


POLICIES = st.sampled_from(["recomputed", "original"])
DROPS = st.builds(Drop, names(), POLICIES, st.sampled_from(["left", "right"]))
RULES = renames() | DROPS | names().map(lambda name: Tie(name, Name((*name.parts[:-1], ".x"))))


@given(data=st.data())
def test_a_printed_map_parses_to_itself(any_pairing, data):
    rules = data.draw(st.lists(RULES | any_pairing, max_size=4))
    table = WeightMap(tuple(rules))
    assert WeightMap.parse(str(table)) == table
    assert WeightMap.parse(str(table.inverse())) == table.inverse()
    assert table.inverse().inverse() == table


@given(text=st.text("ab{n*}.[]()+-<>=?,#$; \n1as\\", max_size=40))
def test_any_text_is_a_map_or_a_syntax_error(text):
    try:
        table = WeightMap.parse(text)
    except MapSyntaxError:
        return
    assert WeightMap.parse(str(table)) == table
