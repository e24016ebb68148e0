"""Properties at random: the algebra of sums, the three ways of seeing a graph, and closed forms at other sizes."""

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import Add, IndexedBase, Integer, symbols

from refcheck import measure, observe
from refcheck.check import against_claim, measure_row
from refcheck.layers import LAYERS
from refcheck.observe import Disagreement, Given
from refcheck.sizes import ITEMSIZE, at_sizes
from refcheck.spec import claim
from refcheck.sums import Index, difference, fresh, normal, sigma

FEW = settings(max_examples=25, deadline=None, derandomize=True, database=None)

# --- sums ------------------------------------------------------------------------------------------------------------

N, M = symbols("N M", integer=True, positive=True)
FREE = {"p": Index("p", N), "q": Index("q", M)}
LENGTH = {"i": N, "j": N, "m": M, **{name: index.length for name, index in FREE.items()}}
BOUND = ("i", "j", "m")


def entries():
    """A base and two indices; `x` is square in N, `y` is N by M."""
    in_n, in_m = st.sampled_from("ijp"), st.sampled_from("mq")
    return st.tuples(st.just("x"), in_n, in_n) | st.tuples(st.just("y"), in_n, in_m)


TERMS = st.lists(
    st.tuples(st.integers(-4, 4).filter(bool), st.lists(entries(), min_size=1, max_size=3)), min_size=1, max_size=4
)


def build(terms, shuffle=None):
    """The sum of the terms, each over its bound indices; shuffled, in another order, under other names, nested."""
    terms = list(terms)
    if shuffle:
        shuffle.shuffle(terms)
    done = []
    for number, factors in terms:
        bound = [name for name in BOUND if any(name in f for f in factors)]
        factors = list(factors)
        if shuffle:
            shuffle.shuffle(bound)
            shuffle.shuffle(factors)
        index = {**FREE, **{name: fresh(LENGTH[name]) for name in bound}}
        body = Integer(number)
        for base, a, b in factors:
            body *= IndexedBase(base)[index[a], index[b]]
        cut = shuffle.randint(0, len(bound)) if shuffle else 0
        inner = sigma(body, [index[name] for name in bound[:cut]])
        done.append(sigma(inner, [index[name] for name in bound[cut:]]))
    return Add(*done, evaluate=shuffle is None)


@FEW
@given(TERMS)
def test_a_normal_form_is_its_own(terms):
    once = normal(build(terms))
    assert normal(once) == once


@FEW
@given(TERMS, st.integers(0, 999))
def test_sums_that_differ_in_names_and_order_have_one_form(terms, seed):
    left, right = build(terms), build(terms, random.Random(seed))
    assert normal(left) == normal(right) and difference(left, right) == 0


@FEW
@given(TERMS, st.data())
def test_another_coefficient_is_another_sum(terms, data):
    """By one whole term, which is no zero."""
    at = data.draw(st.integers(0, len(terms) - 1))
    number, factors = terms[at]
    other = [*terms[:at], (number + data.draw(st.sampled_from([-9, -1, 1, 9])), factors), *terms[at + 1 :]]
    assert difference(build(terms), build(other)) != 0
    assert normal(build(terms)) != normal(build(other))


# --- graphs ----------------------------------------------------------------------------------------------------------


class Kept(torch.autograd.Function):
    """Keeps its input and its output, through autograd."""

    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y + 0 * x


class Hidden(torch.autograd.Function):
    """Keeps a tensor of its own past autograd."""

    @staticmethod
    def forward(ctx, x):
        ctx.mine = x.detach() * 2
        return x * 3

    @staticmethod
    def backward(ctx, g):
        return g * 3 + 0 * ctx.mine


class Nothing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2


STEPS = {
    "view": lambda x, w: x.reshape(6, 4).t(),
    "slice": lambda x, w: x[1:].repeat(2, 1)[:4],
    "expand": lambda x, w: x[:1].expand(4, 6),
    "transpose": lambda x, w: x.t().contiguous().view(4, 6),
    "relu_": lambda x, w: (x * 1.5).relu_(),
    "add_": lambda x, w: (x + 1).add_(w),
    "mul_ on a view": lambda x, w: (y := x.clone(), y[1:].mul_(2.0))[0],
    "exp": lambda x, w: x.exp(),
    "sin": lambda x, w: x.sin(),
    "mul": lambda x, w: x * w,
    "matmul": lambda x, w: x @ w.t() @ w,
    "softmax": lambda x, w: x.softmax(-1),
    "norm": lambda x, w: torch.nn.functional.layer_norm(x, (6,), w[0]),
    "twice": lambda x, w: x * x,
    "a number": lambda x, w: x / 6**0.5,
    "where": lambda x, w: torch.where(w > 0, x, -x),
    "kept": lambda x, w: Kept.apply(x),
    "nothing": lambda x, w: Nothing.apply(x),
}
CHAINS = st.lists(st.sampled_from([*STEPS]), min_size=1, max_size=6)


def run(steps, chain, leaf):
    """(outputs, givens) of the steps one after the other, on a (4, 6) activation and a weight."""

    def build():
        torch.manual_seed(0)
        x, w = torch.randn(4, 6, requires_grad=True), torch.randn(4, 6, requires_grad=True)
        x = x if leaf else x.clone()
        y = x
        for name in chain:
            y = steps[name](y.reshape(4, 6), w)
        return [y], [Given("x", "input", x), Given("w", "parameter", w)]

    return build


@FEW
@given(CHAINS, st.booleans())
def test_packed_walked_and_counted_agree_on_random_graphs(chain, leaf):
    """`observe` compares the three itself, and raises where they differ."""
    kept = observe.observe(run(STEPS, chain, leaf), "cpu")
    assert len({observe.key(k.holders[0].tensor) for k in kept}) == len(kept)  # each storage once
    assert all(k.nbytes == k.holders[0].tensor.untyped_storage().nbytes() for k in kept)


@pytest.mark.parametrize("leaf", [True, False], ids=["leaf", "activation"])
@pytest.mark.parametrize("step", STEPS)
def test_they_agree_on_each_step_alone_and_twice(step, leaf):
    for chain in ([step], [step, step]):
        observe.observe(run(STEPS, chain, leaf), "cpu")


@FEW
@given(CHAINS, st.integers(0, 6), st.booleans())
def test_what_is_kept_past_autograd_is_named(chain, at, leaf):
    """One function with a tensor on its ctx among the others: unknown, it is a disagreement; known, it is counted."""
    steps = {**STEPS, "hidden": lambda x, w: Hidden.apply(x)}
    chain = [*chain[:at], "hidden", *chain[at:]]
    with pytest.raises(Disagreement, match=r"1 storage\(s\) alive although no node shows it"):
        observe.observe(run(steps, chain, leaf), "cpu")
    kept = observe.observe(run(steps, chain, leaf), "cpu", {"HiddenBackward.ctx.mine"})
    assert any("HiddenBackward.ctx.mine" in map(str, k.holders) for k in kept)


# --- closed forms ----------------------------------------------------------------------------------------------------

PLAIN = ("linear", "softmax", "layernorm", "rmsnorm", "gelu", "relu", "residual", "qkv", "swiglu", "scores", "dropout")
CASES = [
    (layer, i) for layer in LAYERS if layer.id in PLAIN for i in layer.implementations if not i.multiples and i.cpu
]


def sizes():
    """Sizes that fit together: D = h·d, g divides h."""
    small = st.integers(1, 6)
    heads = st.builds(lambda g, n, d: dict(g=g, h=g * n, d=2 * d, D=2 * g * n * d), *[st.integers(1, 3)] * 3)
    return st.builds(
        lambda at, b, t, m, v, r: dict(B=b, T=t, M=m, V=v, R=r, E=2, k=1, **at), heads, *[small] * 3, *[small] * 2
    )


@FEW
@given(st.sampled_from(CASES), sizes(), st.sampled_from(["float32", "bfloat16"]))
def test_a_closed_form_holds_at_any_size(case, at, dtype):
    layer, implementation = case
    old, measure.SIZES = measure.SIZES, (at,)
    try:
        row = measure_row(layer, implementation, "cpu", dtype)
    finally:
        measure.SIZES = old
    assert [*against_claim(layer, implementation, "cpu", row, "random")] == []
    (run,) = row.runs
    claimed = sum(at_sizes(s.nbytes, at) for s in claim(implementation, "cpu", dtype))
    assert claimed == sum(s.nbytes for s in run.saved)


@pytest.mark.parametrize("layer, implementation", CASES, ids=lambda case: case.id)
def test_one_element_more_is_told(layer, implementation):
    """In each kept tensor by itself, at whatever size."""
    row = measure_row(layer, implementation, "cpu", "float32")
    (run, *_) = row.runs
    for n, s in enumerate(run.saved):
        larger = replace(s, nbytes=s.nbytes + ITEMSIZE[s.dtype])
        planted = replace(run, saved=(*run.saved[:n], larger, *run.saved[n + 1 :]), allocator=None)
        drifts = against_claim(layer, implementation, "cpu", replace(row, runs=(planted,)), "planted")
        assert [(d.tensor, d.what, d.measured) for d in drifts] == [(s.name, "bytes", str(larger.nbytes))]
