"""Arrays of symbolic shape compute what torch computes, and refuse what they can't."""

from itertools import product

import pytest
import sympy
import torch
from sympy import Rational

from refcheck.arrays import (
    Array,
    Sigmoid,
    Step,
    copies,
    differs,
    drawn,
    einsum,
    erf,
    exact,
    exp,
    log,
    one_hot,
    power,
    rsqrt,
    sigmoid,
    sqrt,
    stack,
    tanh,
    variable,
)
from refcheck.sums import OutOfRange, fresh

SHAPES = {"a": (2, 3), "b": (3,), "c": (3, 2)}
N, K = sympy.symbols("N K", integer=True, positive=True)

OPERATIONS = {
    "add": lambda a, b, c: a + b,
    "subtract": lambda a, b, c: a - b,
    "from a number": lambda a, b, c: 1 - a,
    "multiply": lambda a, b, c: a * b * 2,
    "divide": lambda a, b, c: a / (b**2 + 1),
    "reciprocal": lambda a, b, c: 1 / (b**2 + 1),
    "negate": lambda a, b, c: -a,
    "power": lambda a, b, c: a**3,
    "exp": lambda a, b, c: exp(a),
    "log": lambda a, b, c: log(a**2 + 1),
    "erf": lambda a, b, c: erf(a),
    "tanh": lambda a, b, c: tanh(a),
    "sigmoid": lambda a, b, c: sigmoid(a),
    "roots": lambda a, b, c: sqrt(a**2 + 1) * rsqrt(b**2 + 1),
    "positive": lambda a, b, c: a * (a > 0),
    "exact": lambda a, b, c: a * exact("sqrt(2/pi)"),
    "sum": lambda a, b, c: a.sum(axis=0),
    "sum of both": lambda a, b, c: a.sum(axis=(0, 1)),
    "mean kept": lambda a, b, c: a - a.mean(axis=-1, keepdims=True),
    "matrix product": lambda a, b, c: einsum("ij,jk->ik", a, c),
    "transposed product": lambda a, b, c: einsum("ij,ki->jk", a, c),
    "three factors": lambda a, b, c: einsum("ij,j,jk->k", a, b, c),
    "outer": lambda a, b, c: einsum("ij,k->ijk", a, b),
    "copies": lambda a, b, c: copies(a, 2, axis=1) + copies(b, 2, axis=0),
    "cosine": lambda a, b, c: a.cos(),
    "sine": lambda a, b, c: a.sin(),
    "one part of two": lambda a, b, c: a.unbind(0)[1],
    "a part from the end": lambda a, b, c: a.unbind(-1)[2],
    "stacked": lambda a, b, c: stack((-b, b, b**2), 0),
    "stacked last": lambda a, b, c: stack(c.unbind(0), -1),
}


@pytest.mark.parametrize("f", OPERATIONS.values(), ids=OPERATIONS)
def test_as_torch_computes(f):
    torch.manual_seed(0)
    tensors = {name: torch.randn(shape, dtype=torch.float64) for name, shape in SHAPES.items()}
    arrays = {
        name: Array(shape, lambda *i, t=tensors[name]: Rational(t[tuple(map(int, i))].item()))
        for name, shape in SHAPES.items()
    }
    got, want = f(**arrays), f(**tensors)
    assert tuple(got.shape) == tuple(want.shape)
    for index in product(*map(range, want.shape)):
        assert float(got.entry(*index)) == pytest.approx(want[index].item(), abs=1e-12)


def test_a_rounded_constant_is_refused():
    with pytest.raises(TypeError, match="exact"):
        (variable("a", (N,)) * 0.1).entry(0)


@pytest.mark.parametrize("b", [(K,), (N, 2)], ids=str)
def test_shapes_that_do_not_broadcast(b):
    with pytest.raises(ValueError, match="do not broadcast"):
        variable("a", (N,)) + variable("b", b)


def test_einsum_with_two_lengths_for_one_index():
    with pytest.raises(ValueError, match="j is both"):
        einsum("ij,jk->ik", variable("a", (N, K)), variable("b", (N, K)))


@pytest.mark.parametrize("index", [(N,), (-1,), (0, 0)], ids=str)
def test_an_index_outside_the_shape(index):
    with pytest.raises(IndexError):
        variable("a", (N,)).at(*index)


def test_step():
    a, b = sympy.symbols("a b", real=True)
    assert sympy.diff(Step(a), a) == 0
    assert Step(a) ** 2 == Step(a)
    assert Step(a * Step(a)) == Step(a)
    assert Step(b * Step(a)) != Step(a)
    assert sympy.diff(a * Step(a), a) == Step(a)


def test_sigmoid_is_its_definition():
    x = sympy.Symbol("x", real=True)
    slope = Sigmoid(x).diff(x)
    definition = 1 / (1 + sympy.exp(-x))
    assert sympy.simplify(slope.replace(Sigmoid, lambda a: 1 / (1 + sympy.exp(-a))) - definition.diff(x)) == 0
    assert Sigmoid(Rational(1, 3)).evalf(30) == definition.subs(x, Rational(1, 3)).evalf(30)


@pytest.mark.parametrize("below", [None, K, N + 1], ids=str)
def test_rows_that_need_not_exist(below):
    integers = variable("i", (K,), below) if below is not None else variable("i", (K,))
    with pytest.raises(OutOfRange):
        variable("W", (N, K))[integers].entry(0, 0)


def test_an_axis_of_one_is_read_at_zero():
    sum_of_both = variable("a", (N, 1)) + variable("b", (N, K))
    i, j = fresh(N), fresh(K)
    assert sum_of_both.entry(i, j) == sympy.IndexedBase("a")[i, 0] + sympy.IndexedBase("b")[i, j]


def test_a_copy_has_the_entries_of_the_original():
    i, j, k = fresh(N), fresh(K), fresh(2)
    original = variable("a", (N, 2))
    for axis, index in enumerate([(j, i, k), (i, j, k), (i, k, j)]):
        repeated = copies(original, K, axis)
        assert repeated.at(*index) == original.at(i, k)
        with pytest.raises(IndexError):
            repeated.at(*index[:axis], K, *index[axis + 1 :])


def test_a_root_of_a_size():
    assert rsqrt(N) == 1 / sympy.sqrt(N)
    assert rsqrt(4) == 0.5 and rsqrt(4).value == Rational(1, 2)


def test_what_is_said_of_integers():
    integers, found = torch.tensor([2, 0, 1]), variable("t", (N,), below=K)
    i, k = fresh(N), fresh(K)
    for number in range(3):
        entries = differs(Array((3,), lambda n: sympy.Integer(integers[int(n)].item())), number).entry
        assert [float(entries(n)) for n in range(3)] == differs(integers, number).tolist()
    rows = one_hot(Array((3,), lambda n: sympy.Integer(integers[int(n)].item())), 3)
    assert [[float(rows.entry(n, v)) for v in range(3)] for n in range(3)] == one_hot(integers, 3).tolist()
    assert one_hot(found, K).entry(i, k) == sympy.KroneckerDelta(found.entry(i), k)


def test_a_size_to_a_power_is_exact():
    assert power(N, "-1/4") ** 4 == 1 / N
    assert power(3, "-1/4").value == sympy.Integer(3) ** Rational(-1, 4)
    assert power(3, "-1/4") == pytest.approx(3**-0.25)


def test_what_is_drawn_again_from_a_state_is_the_same():
    state, other = variable("state", (2,)), variable("other", (2,))
    x = variable("x", (N,))
    i = fresh(N)
    once, again = (drawn(state, (N,)).entry(i) for _ in range(2))
    assert once == again != drawn(other, (N,)).entry(i)
    assert sympy.diff(once * x.entry(i), x.entry(i)) == once
    entries = [drawn(Array((2,), lambda k: Rational(k, 7)), (40,)).entry(sympy.Integer(k)) for k in range(40)]
    assert set(entries) == {0, 1}
    assert drawn(torch.tensor([True, False]), (2,)).tolist() == [1, 0]
