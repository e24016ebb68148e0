"""The normal form of finite sums: equal by its rules, and never by anything else."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import IndexedBase, KroneckerDelta, Rational, exp, log, symbols

from refcheck.sums import Index, OutOfRange, difference, fresh, normal, sigma

N, M = symbols("N M", integer=True, positive=True)
x, y = IndexedBase("x"), IndexedBase("y")
k = Index("k", N)


def over(length, f, count=1):
    """Σ of f(i, j, …) over fresh indices of this length."""
    indices = [fresh(length) for _ in range(count)]
    return sigma(f(*indices), indices)


EQUAL = {
    "linear": (over(N, lambda i: x[i] + 2 * y[i]), over(N, lambda i: x[i]) + 2 * over(N, lambda i: y[i])),
    "constant factor": (over(N, lambda i: y[k] * x[i]), y[k] * over(N, lambda i: x[i])),
    "delta": (over(N, lambda i: KroneckerDelta(i, k) * x[i]), x[k]),
    "count": (over(N, lambda i: y[k]), N * y[k]),
    "commute": (over(N, lambda i, j: x[i, j] * y[j], 2), over(N, lambda j, i: x[i, j] * y[j], 2)),
    "separate": (over(N, lambda i, j: x[i] * y[j], 2), over(N, lambda i: x[i]) * over(N, lambda i: y[i])),
    "square": (over(N, lambda i: x[i]) ** 2, over(N, lambda i, j: x[i] * x[j], 2)),
    "exponentials part": (over(N, lambda i: exp(x[i] - x[k])), exp(-x[k]) * over(N, lambda i: exp(x[i]))),
    "inside a root": (
        over(N, lambda i: x[i] + y[i]) ** Rational(-1, 2),
        over(N, lambda i: y[i] + x[i]) ** Rational(-1, 2),
    ),
    "log of a sum": (log(over(N, lambda i: 3 * x[i])), log(3 * over(N, lambda i: x[i]))),
    "fractions": (1 / (1 + exp(x[k])) - 1 / (1 + exp(x[k])) ** 2, exp(x[k]) / (1 + exp(x[k])) ** 2),
}
UNEQUAL = {
    "sign": (over(N, lambda i: x[i] - y[i]), over(N, lambda i: x[i] + y[i])),
    "factor": (over(N, lambda i: 2 * x[i]), over(N, lambda i: x[i])),
    "index": (over(N, lambda i, j: x[i, j] * y[j], 2), over(N, lambda i, j: x[i, j] * y[i], 2)),
    "length": (over(N, lambda i: x[i]), over(M, lambda i: x[i])),
    "count": (over(N, lambda i: y[k]), (N - 1) * y[k]),
    "free index": (over(N, lambda i: x[i] * y[k]), over(N, lambda i: x[i] * y[i])),
    "transposed": (over(N, lambda i: x[i, k] * y[i]), over(N, lambda i: x[k, i] * y[i])),
    "a captured name": (
        over(N, lambda j: y[j] * log(over(N, lambda i: x[i, j]))),
        over(N, lambda j: y[j] * log(over(N, lambda i: x[j, i]))),
    ),
    "one length of two": (
        sigma(x[(n := fresh(N)), (m := fresh(M))] * y[m], [n, m]),
        sigma(x[(n := fresh(M)), (m := fresh(M))] * y[m], [n, m]),
    ),
    "power": (over(N, lambda i: x[i]) ** 2, over(N, lambda i: x[i])),
    "square of a sum": (over(N, lambda i: x[i]) ** 2, over(N, lambda i: x[i] ** 2)),
}


@pytest.mark.parametrize("a, b", EQUAL.values(), ids=EQUAL)
def test_equal_by_the_rules(a, b):
    assert difference(a, b) == 0


@pytest.mark.parametrize("a, b", UNEQUAL.values(), ids=UNEQUAL)
def test_unequal_stays_unequal(a, b):
    assert difference(a, b) != 0


def test_a_sum_runs_over_the_whole_range():
    i = fresh(N)
    assert sigma(x[i], [i]).subs(N, 3).doit() == x[0] + x[1] + x[2]


@pytest.mark.parametrize("c", [Index("c", M), symbols("c", integer=True), N, N + 1, -1], ids=str)
def test_a_delta_outside_its_range_raises(c):
    i = fresh(N)
    with pytest.raises(OutOfRange):
        normal(sigma(KroneckerDelta(i, c) * x[i], [i]))


@pytest.mark.parametrize("c", [Index("c", N), 0], ids=str)
def test_a_delta_inside_its_range_selects(c):
    i = fresh(N)
    assert normal(sigma(KroneckerDelta(i, c) * x[i], [i])) == x[c]


@pytest.mark.parametrize("a", [pair[0] for pair in EQUAL.values()], ids=EQUAL)
def test_a_normal_form_is_its_own(a):
    assert normal(normal(a)) == normal(a)


def expressions():
    """Random sums of products of entries, over indices of one length."""
    names = st.sampled_from("ij")
    entry = st.builds(lambda base, i: ("entry", base, i), st.sampled_from("xy"), names)
    return st.recursive(
        entry | st.builds(lambda n: ("number", n), st.integers(-3, 3)),
        lambda inner: (
            st.builds(lambda op, a, b: (op, a, b), st.sampled_from(["add", "mul"]), inner, inner)
            | st.builds(lambda i, a: ("sum", i, a), names, inner)
        ),
        max_leaves=6,
    )


def build(tree, index):
    """The tree as an expression; `index` gives a free index for each name."""
    match tree:
        case ("entry", base, i):
            return IndexedBase(base)[index[i]]
        case ("number", n):
            return n
        case ("sum", i, inner):
            bound = fresh(N)
            return sigma(build(inner, {**index, i: bound}), [bound])
        case (op, a, b):
            left, right = build(a, index), build(b, index)
            return left + right if op == "add" else left * right


def evaluate(tree, index, values, n):
    match tree:
        case ("entry", base, i):
            return values[base][index[i]]
        case ("number", number):
            return number
        case ("sum", i, inner):
            return sum(evaluate(inner, {**index, i: at}, values, n) for at in range(n))
        case (op, a, b):
            left, right = evaluate(a, index, values, n), evaluate(b, index, values, n)
            return left + right if op == "add" else left * right


@settings(max_examples=120, deadline=None)
@given(expressions(), expressions(), st.data())
def test_the_verdict_agrees_with_numbers(a, b, data):
    """If two random sums are called equal, they are equal at random entries and sizes; and a sum equals itself."""
    index = {"i": Index("p", N), "j": Index("q", N)}
    left, right = build(a, index), build(b, index)
    assert difference(build(a, index), left) == 0
    if difference(left, right) == 0:
        for n in (1, 2, 3):
            values = {base: data.draw(st.lists(st.integers(-5, 5), min_size=n, max_size=n)) for base in "xy"}
            at = {"i": data.draw(st.integers(0, n - 1)), "j": data.draw(st.integers(0, n - 1))}
            assert evaluate(a, at, values, n) == evaluate(b, at, values, n)
