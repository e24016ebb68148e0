"""Rows that whole numbers send to a place: torch and the symbolic arrays do the same, and nothing leaves its range."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from sympy import Integer, Symbol

from refcheck.arrays import Array, exp, variable
from refcheck.layers import embedding, moe
from refcheck.measure import HINTS, SIZES, Unavailable, _whole, available, measure
from refcheck.prove import explicit, symbolic
from refcheck.routing import collect, members, plan, rows
from refcheck.sizes import B, D, E, T, k
from refcheck.spec import Implementation, Pair, Saves, activation, tokens
from refcheck.sums import Digit, OutOfRange, fits, fresh, normal, sigma

CHOICE = torch.tensor([[[2, 0], [0, 3]], [[3, 2], [2, 0]]])  # two sequences of two tokens, two of four experts each


def as_array(t):
    return Array(tuple(t.shape), lambda *i: Integer(t[tuple(map(int, i))].item()))


def numbers(a):
    return [int(a.entry(n)) for n in range(a.shape[0])]


def test_a_plan_sorts_by_expert():
    slot, token, offs = plan(CHOICE, 4)
    assert CHOICE.flatten()[slot].tolist() == [0, 0, 0, 2, 2, 2, 3, 3]
    assert torch.equal(token, slot // 2) and offs.tolist() == [3, 3, 6, 8] and offs.dtype == torch.int32
    assert [numbers(a) for a in plan(as_array(CHOICE), 4)] == [slot.tolist(), token.tolist(), offs.tolist()]


def test_a_row_is_in_the_group_that_ends_after_it():
    offs = plan(CHOICE, 4)[2]
    mine = members(offs, torch.zeros(8, 1))
    assert mine.argmax(-1).tolist() == [0, 0, 0, 2, 2, 2, 3, 3] and mine.sum(-1).tolist() == [1] * 8
    seen = members(as_array(offs), variable("x", (8, 1)))
    assert torch.equal(torch.tensor([[float(seen.entry(n, e)) for e in range(4)] for n in range(8)]), mine)


def test_rows_and_collect_agree_with_torch():
    slot = plan(CHOICE, 4)[0]
    a = torch.arange(8.0).reshape(2, 2, 2)
    assert torch.equal(rows(a, slot, axes=3), slot.double().to(a.dtype))
    assert numbers(rows(as_array(a), as_array(slot), axes=3)) == slot.tolist()
    back = collect(rows(a, slot, axes=3), slot, (2, 2, 2))
    assert torch.equal(back, a)
    seen = collect(as_array(slot), as_array(slot), (2, 2, 2))
    assert [seen.entry(*i) for i in ((0, 0, 0), (0, 1, 1), (1, 0, 1))] == [0, 3, 5]


def test_rows_that_share_a_number_are_added():
    x, token = torch.randn(4, 3), torch.tensor([1, 0, 1, 1])
    assert torch.allclose(collect(x, token, (1, 2))[0, 1], x[0] + x[2] + x[3])
    seen = collect(as_array(torch.tensor([5, 7, 11, 13])), as_array(token), (1, 2))
    assert [seen.entry(0, 0), seen.entry(0, 1)] == [7, 29]


def test_a_number_has_an_index_on_each_axis():
    n = variable("n", (D,), below=B * T * k).entry(fresh(D))
    assert [Digit(17, axis, 2, 3, 4) for axis in range(3)] == [1, 1, 1]
    assert all(fits(Digit(n, axis, B, T, k), length) for axis, length in enumerate((B, T, k)))
    assert not fits(Digit(n, 0, B, T, k), T) and not fits(Digit(n, 0, B, T), B)


def test_a_number_out_of_range_is_refused():
    with pytest.raises(OutOfRange):
        rows(variable("a", (B, T, D)), variable("n", (E,), below=B * T * k), axes=2).entry(fresh(E), fresh(D))


WRONG = {
    "outputs that are weighted already": ('s["o_e"]', 's["o_e"] * 2'),
    "no weights": ('einsum("n,nm->nm", alpha_e, dg)', "dg"),
    "the wrong place": ('collect(dalpha_e, s["slot"]', 'collect(dalpha_e, s["token"]'),
}


@pytest.mark.parametrize("old, new", WRONG.values(), ids=WRONG)
def test_a_wrong_gradient_is_refused(old, new):
    source = Path(moe.__file__).read_text(encoding="utf-8")
    assert old in source
    module = {"__name__": "refcheck.layers.wrong"}
    exec(compile(source.replace(old, new), "wrong", "exec"), module)
    assert any(not f.holds for f in symbolic("wrong", module["ROWS"]))


def test_a_quotient_of_sums_is_taken_apart():
    a, b, i = variable("a", (D,)), variable("b", (D,)), fresh(D)
    over_a, over_b = (sigma(x.entry(i), [i]) for x in (a, b))
    assert normal(1 / normal(over_a / over_b) - over_b / over_a) == 0
    assert normal(1 / (over_a / over_b) - over_a / over_b) != 0


def test_small_matrices_take_whole_numbers_as_they_are():
    """A row that a number picks enters a function that is not linear: it is the same row as without the number."""

    def backward(dx, s):
        return {"W": embedding.backward(dx * exp(s["W"][s["tokens"]]), s | dict(V=s["W"].shape[0]))["W"]}

    pair = Pair(
        "exp",
        lambda tokens, W: (exp(W[tokens]), dict(tokens=tokens, W=W)),
        backward,
        dict(tokens=tokens(B, T, below=E), W=activation(E, D)),
    )
    assert [str(f) for f in (*symbolic("exp", pair), *explicit("exp", pair)) if not f.holds] == []
    wrong = replace(pair, backward=lambda dx, s: {"W": backward(dx, s)["W"] * s["W"]})
    assert all(any(not f.holds for f in tried("exp", wrong)) for tried in (symbolic, explicit))


def top(x, k):
    return x.topk(k).values * x.shape[-1]


TOLD = Pair("told", lambda x: (x, {}), lambda dy, s: dict(x=dy), dict(x=activation(B, T, E)))


@pytest.mark.parametrize("device", ["cpu", "cuda-trace"])
def test_code_is_told_the_sizes_that_no_shape_shows(device):
    try:
        available(device)
    except Unavailable as reason:
        pytest.skip(str(reason))
    saves = Saves(TOLD, {})
    implementation = Implementation("told", {}, top, cpu=saves, cuda=saves, told=dict(k=k))
    runs = measure(implementation, device, "float32")
    shapes = [next(s.shape for s in run.saved if s.attr == "indices") for run in runs]
    assert shapes == (
        [(B, T, k)] if device == "cuda-trace" else [tuple(map(Integer, (s["B"], s["T"], s["k"]))) for s in SIZES]
    )
    with pytest.raises(TypeError, match="k"):
        measure(replace(implementation, told={}), device, "float32")


def test_sizes_are_rounded_up_to_what_code_takes():
    rounded = [_whole(s, dict(D=8, M=8)) for s in SIZES]
    assert [(s["D"], s["M"]) for s in rounded] == [(72, 32), (40, 32), (8, 16)]
    assert [{**new, "D": old["D"], "M": old["M"]} for new, old in zip(rounded, SIZES, strict=True)] == list(SIZES)
    assert _whole(SIZES[0], {}) == SIZES[0]
    assert len(set(HINTS.values())) == len(HINTS)


def test_a_storage_of_padded_rows_is_seen():
    """Without the promise that D and M are multiples of 8, the trace finds rows rounded up to whole blocks."""
    try:
        available("cuda-trace")
    except Unavailable as reason:
        pytest.skip(str(reason))
    first = moe.LAYER.implementations[0]
    (run,) = measure(first, "cuda-trace", "bfloat16")
    assert {s.nbytes.free_symbols <= {B, T, D, E, k, Symbol("M", integer=True, positive=True)} for s in run.saved} == {
        True
    }
    (loose,) = measure(replace(first, multiples={}), "cuda-trace", "bfloat16")
    assert any("//" in str(s.nbytes) for s in loose.saved) and not any("//" in str(s.nbytes) for s in run.saved)
