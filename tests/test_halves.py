"""Heads in two halves: an axis d/2 is proven, tried on small matrices and traced; what is wrong is refused."""

from dataclasses import replace
from itertools import product

import pytest
import sympy
import torch
from sympy import Integer, KroneckerDelta

from refcheck import measure
from refcheck.arrays import Array, stack, variable
from refcheck.layers import LAYERS, rope
from refcheck.prove import SMALL, explicit, small, symbolic
from refcheck.sizes import B, T, at_sizes, d, h
from refcheck.spec import Implementation, Pair, Saves, activation
from refcheck.sums import fresh


def test_a_stack_at_a_symbolic_index_is_one_of_its_parts():
    a, b = variable("a", (T,)), variable("b", (T,))
    n, t = fresh(2), fresh(T)
    assert stack((a, b), 0).entry(n, t) == KroneckerDelta(n, 0) * a.entry(t) + KroneckerDelta(n, 1) * b.entry(t)
    assert [part.entry(t) for part in stack((a, b), -1).unbind(-1)] == [a.entry(t), b.entry(t)]


def test_parts_of_complex_numbers():
    numbers = torch.tensor([[1 + 2j, 3 - 4j], [-5j, 6]], dtype=torch.complex128)
    exactly = Array((2, 2), lambda *i: sympy.sympify(numbers[tuple(map(int, i))].item()))
    for at in product(range(2), repeat=2):
        found = exactly.real.entry(*at), exactly.imag.entry(*at)
        assert tuple(map(float, found)) == (numbers.real[at].item(), numbers.imag[at].item())


def test_small_heads_have_halves():
    """An odd head can't be halved, so it is twice as long there, and as long as ever where no pair asks for halves."""
    assert SMALL["d"] % 2 == 1
    for layer in LAYERS:
        for pair in layer.pairs:
            sizes = small(pair)
            assert all(at_sizes(n, sizes) > 0 for i in pair.inputs.values() for n in i.shape)
            assert sizes == SMALL or (layer.id == "rope" and sizes == {**SMALL, "d": 2 * SMALL["d"]})
    with pytest.raises(ValueError, match="no whole number"):
        at_sizes(d / 2, SMALL)


WRONG = {
    "tables": lambda dy, s: dict(Q=dy * s["cos"] + rope.rotate_half(dy * s["sin"])),
    "half-tables": lambda dy, s: dict(Q=rope.turn(dy, s["cos_half"], s["sin_half"], -2)),
    "complex": lambda dy, s: dict(Q=rope.turn(dy, s["cis"].real, s["cis"].imag, -1)),
    "gathered": lambda dy, s: dict(
        Q=rope.in_each_head(dy, s["cos_rows"]) + rope.rotate_half(rope.in_each_head(dy, s["sin_rows"]))
    ),
}


@pytest.mark.parametrize("pair", WRONG)
def test_a_rotation_the_wrong_way_is_refused_by_both(pair):
    """On small matrices too: a table of complex numbers that had no imaginary part could be turned either way."""
    wrong = replace(next(p for p in rope.LAYER.pairs if p.id == pair), backward=WRONG[pair])
    assert [f.about for f in explicit("wrong", wrong) if not f.holds] == ["dQ"]
    assert "dQ" in [f.about for f in symbolic("wrong", wrong) if not f.holds]


HALVES = Pair("halves", lambda x: (x * x, dict(x=x)), lambda dy, s: {}, dict(x=activation(B, h, T, 2, d / 2)))
PLAIN = Pair("plain", lambda x: (x * x, dict(x=x)), lambda dy, s: {}, dict(x=activation(B, h, T, d)))


def traced(pair, run):
    saves = Saves(pair, dict(x="ExpBackward0.result"))
    (only,) = measure.measure(Implementation("eager", {}, run, cpu=saves, cuda=saves), "cuda-trace", "float32")
    return only.saved[0].shape, only.guards


@pytest.mark.skipif(torch.version.cuda is None, reason="no CUDA build")
def test_half_a_head_is_traced_without_a_guard():
    assert traced(HALVES, lambda x: x.exp()) == ((B, h, T, Integer(2), d / 2), ())
    assert traced(HALVES, lambda x: x.flatten(-2).exp()) == ((B, h, T, d), ())
    assert traced(HALVES, lambda x: x.flatten(-2)[..., : x.shape[-1]].exp()) == ((B, h, T, d / 2), ())


@pytest.mark.skipif(torch.version.cuda is None, reason="no CUDA build")
def test_a_head_that_is_halved_by_the_code_alone_leaves_a_guard():
    """The claim's shapes say that d is even; code that assumes it is found out."""
    assert traced(PLAIN, lambda x: x.unflatten(-1, (2, -1)).exp())[1] != ()
