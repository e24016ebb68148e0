"""Every pair is proven and agrees with torch; every small change to a backward is refused."""

from dataclasses import replace

import pytest
import torch
from mpmath import mp

from refcheck.arrays import einsum, exp
from refcheck.layers import LAYERS, gelu
from refcheck.prove import against_torch, explicit, prove, symbolic
from refcheck.sizes import B, D, M, T
from refcheck.spec import Implementation, Pair, Saves, activation, detached, mask, parameter, without_grad
from tests.mutate.gradients import mutants

MUTANTS = [mutant for layer in LAYERS for mutant in mutants(layer)]


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.id)
def test_all_that_is_tried_holds(layer):
    findings = list(prove(layer))
    tried = {(f.pair, f.opinion.partition(",")[0]) for f in findings}
    assert {p.id for p in layer.pairs} == {pair for pair, opinion in tried if opinion == "every size"}
    assert {p.id for p in layer.pairs} == {pair for pair, opinion in tried if opinion == "small matrices"}
    assert {p.id for p in layer.pairs} == {pair for pair, opinion in tried if opinion == "float64"}
    assert [str(f) for f in findings if not f.holds] == []


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_wrong_backward_is_refused(mutant):
    assert mutant.refuted


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.id)
def test_the_proof_alone_refuses_a_wrong_gradient(layer):
    """Each gradient of each pair, made wrong alone, at every size; numbers refuse the mutants above first."""
    for pair in layer.pairs:
        wrong = replace(pair, backward=lambda dy, s, p=pair: {n: g * 2 for n, g in p.backward(dy, s).items()})
        refused = {f.about for f in symbolic(layer.id, wrong) if not f.holds}
        assert refused == {f"d{name}" for name, i in pair.inputs.items() if i.differentiable}


X = dict(x=activation(B, T, D))

WRONG = {
    "a saved tensor that backward never reads": (
        Pair("wrong", lambda x: (exp(x), dict(x=x, y=exp(x))), lambda dy, s: dict(x=dy * s["y"]), X),
        "never read by backward: x",
    ),
    "a tensor that forward does not save": (
        Pair("wrong", lambda x: (exp(x), {}), lambda dy, s: dict(x=dy * s["y"]), X),
        "reads s['y'], which forward does not save",
    ),
    "a gradient left out": (
        Pair("wrong", lambda x, a: (x + a, {}), lambda dy, s: dict(x=dy), X | dict(a=activation(B, T, D))),
        "gradients of ['x'] instead of ['a', 'x']",
    ),
    "a gradient of another shape": (
        Pair("wrong", lambda x: (x.sum(axis=-1), {}), lambda dy, s: dict(x=dy), X),
        "its shape is",
    ),
    "a gradient with respect to a mask": (
        Pair(
            "wrong", lambda x, m: (x * m, dict(m=m)), lambda dy, s: dict(x=dy * s["m"], m=dy), X | dict(m=mask(B, T, D))
        ),
        "instead of ['x']",
    ),
    "a gradient of a frozen parameter": (
        Pair(
            "wrong",
            lambda x, W: (einsum("btd,dm->btm", x, W), dict(x=x, W=W)),
            lambda dy, s: dict(x=einsum("btm,dm->btd", dy, s["W"]), W=einsum("btd,btm->dm", s["x"], dy)),
            X | dict(W=without_grad(parameter(D, M))),
        ),
        "gradients of ['W', 'x'] instead of ['x']",
    ),
    "the input of a frozen parameter, kept all the same": (
        Pair(
            "wrong",
            lambda x, W: (einsum("btd,dm->btm", x, W), dict(x=x, W=W)),
            lambda dy, s: dict(x=einsum("btm,dm->btd", dy, s["W"])),
            X | dict(W=without_grad(parameter(D, M))),
        ),
        "never read by backward: x",
    ),
    "a gradient of data": (
        Pair("wrong", lambda x, a: (x + a, {}), lambda dy, s: dict(x=dy, a=dy), X | dict(a=without_grad(X["x"]))),
        "gradients of ['a', 'x'] instead of ['x']",
    ),
    "a product over unequal lengths": (
        Pair(
            "wrong",
            lambda x, W: (einsum("btd,dm->btm", x, W), dict(x=x, W=W)),
            lambda dy, s: dict(x=einsum("btm,md->btd", dy, s["W"]), W=einsum("btd,btm->dm", s["x"], dy)),
            X | dict(W=parameter(D, M)),
        ),
        "m is both M and D",
    ),
}


@pytest.mark.parametrize("pair, message", WRONG.values(), ids=WRONG)
def test_a_wrong_pair_says_what_is_wrong(pair, message):
    assert message in " ".join(f.wrong for f in symbolic("wrong", pair))


def test_a_wrong_gradient_names_the_entry_that_differs():
    pair = Pair("wrong", lambda x: (exp(x), dict(x=x)), lambda dy, s: dict(x=-dy * exp(s["x"])), X)
    (wrong,) = (f for f in symbolic("wrong", pair) if not f.holds)
    assert wrong.about == "dx"
    assert wrong.wrong.startswith("derivative of forward minus backward = 2*exp(x[")


def test_torch_refuses_a_pair_of_another_function():
    pair = Pair("wrong", lambda x: (x + x, {}), lambda dy, s: dict(x=dy + dy), X)
    implementation = Implementation("eager", {}, lambda x: x * 3, cpu=Saves(pair, {}), cuda=Saves(pair, {}))
    assert {f.about for f in against_torch("wrong", implementation) if not f.holds} == {"y", "dx"}


@pytest.mark.parametrize("constant", [True, False], ids=["constant", "part of the graph"])
def test_what_is_computed_apart_from_the_graph_is_a_constant(constant):
    """x / |x| with a length through which no gradient flows; if it does, torch's gradient is another one."""
    inputs = X | dict(r=detached(B, T, 1))
    pair = Pair("wrong", lambda x, r: (x / r, dict(r=r)), lambda dy, s: dict(x=dy / s["r"]), inputs)

    def length(y, x):
        return dict(r=x.detach().norm(dim=-1, keepdim=True))

    def run(x):
        return x / (x.detach() if constant else x).norm(dim=-1, keepdim=True)

    implementation = Implementation("eager", {}, run, cpu=Saves(pair, {}), cuda=Saves(pair, {}), recover=length)
    assert [str(f) for f in symbolic("constant", pair) if not f.holds] == []
    assert {f.about for f in against_torch("constant", implementation) if not f.holds} == (
        set() if constant else {"dx"}
    )


def test_a_frozen_parameter_of_its_own_dtype_is_compared_in_float64():
    inputs = X | dict(w=without_grad(parameter(D, dtype="bfloat16")))
    pair = Pair("scaled", lambda x, w: (x * w, dict(w=w)), lambda dy, s: dict(x=dy * s["w"]), inputs)
    seen = []

    def run(x, w):
        seen.append((w.dtype, w.requires_grad))
        return x * w

    implementation = Implementation("eager", {}, run, cpu=Saves(pair, {}), cuda=Saves(pair, {}))
    assert [str(f) for f in against_torch("scaled", implementation) if not f.holds] == []
    assert seen == [(torch.float64, False)]


SQUARE = Pair("square", lambda x: (x * x, dict(x=x)), lambda dy, s: dict(x=dy * s["x"] * 2), X)
BACKWARDS = {
    "a sign": lambda dy, s: dict(x=-dy * s["x"] * 2),
    "a factor": lambda dy, s: dict(x=dy * s["x"]),
    "a power": lambda dy, s: dict(x=dy * s["x"] ** 2 * 2),
}


@pytest.mark.parametrize("backward", BACKWARDS.values(), ids=BACKWARDS)
def test_small_matrices_refuse_a_wrong_gradient(backward):
    assert [str(f) for f in explicit("square", SQUARE) if not f.holds] == []
    (wrong,) = explicit("wrong", replace(SQUARE, backward=backward))
    assert wrong.about == "dx" and "differs by" in wrong.wrong


def test_every_gradient_is_tried_on_small_matrices():
    for layer in LAYERS:
        for pair in layer.pairs:
            wanted = {f"d{name}" for name, i in pair.inputs.items() if i.differentiable}
            wrong = replace(pair, backward=lambda dy, s, p=pair: {n: g + 1 for n, g in p.backward(dy, s).items()})
            assert {f.about for f in explicit(layer.id, wrong) if not f.holds} == wanted


@pytest.mark.parametrize("wrong", ["run", "like"])
@pytest.mark.parametrize("by", [3.0, 1e-8], ids=str)
def test_torch_refuses_what_is_not_quite_the_same(by, wrong):
    """The code that runs and the op that it is like are both compared, to ten digits."""
    runs = dict(run=lambda x: x * x, like=lambda x: x * x) | {wrong: lambda x: x * x * (1 + by)}
    implementation = Implementation("eager", {}, cpu=Saves(SQUARE, {}), cuda=Saves(SQUARE, {}), **runs)
    refused = [f for f in against_torch("wrong", implementation) if not f.holds]
    assert {f.about for f in refused} == {"y", "dx"}
    assert all(("like" in f.opinion) == (wrong == "like") for f in refused)


def in_float32(x):
    """x², computed and kept in float32, returned in the dtype of x."""
    return x.float().square().to(x.dtype)


@pytest.mark.parametrize("by, holds", [(1.0, True), (1 + 1e-3, False)], ids=["as it is", "not quite"])
def test_code_that_computes_in_float32_is_compared_to_its_digits(by, holds):
    """Whatever the dtype that it returns; code that stays in float64 is compared to ten digits, as above."""

    def run(x):
        return in_float32(x) * by

    x = torch.ones(3, dtype=torch.float64) / 3
    assert run(x).dtype is torch.float64 and not torch.allclose(in_float32(x), x**2, rtol=1e-10, atol=1e-10)
    implementation = Implementation("eager", {}, run, cpu=Saves(SQUARE, {}), cuda=Saves(SQUARE, {}))
    assert {f.about for f in against_torch("square", implementation) if not f.holds} == (
        set() if holds else {"y", "dx"}
    )


def test_the_output_of_gelu_does_not_determine_its_gradient():
    """Two inputs with the same g = GELU(z) and derivatives of opposite sign: no function of g alone can give both."""
    mp.dps = 30

    def g(z):
        return z * (1 + mp.erf(z / mp.sqrt(2))) / 2

    left, right = mp.findroot(lambda z: g(z) + mp.mpf("0.1"), -2), mp.findroot(lambda z: g(z) + mp.mpf("0.1"), -0.2)
    assert abs(g(left) - g(right)) < mp.mpf(10) ** -25
    assert mp.diff(g, left) < -0.01 and mp.diff(g, right) > 0.01
    z = torch.tensor([float(left), float(right)], dtype=torch.float64)
    out, saved = gelu.forward(z)
    assert torch.allclose(out[0], out[1])
    slopes = gelu.backward(torch.ones(2, dtype=torch.float64), saved)["z"]
    assert slopes[0] < 0 < slopes[1]
