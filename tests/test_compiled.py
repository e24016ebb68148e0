"""Compiled rows: compiled once, cut where the pages say, the same by Inductor, refused where nobody measured."""

import inspect
import shutil
from dataclasses import replace

import pytest
import torch

from refcheck import check, compiled, measure, prove
from refcheck.layers import LAYERS, cross_entropy, ffn_gelu, layernorm_linear, swiglu
from refcheck.spec import Uncompilable

COMPILED = [
    pytest.param(layer, i, id=f"{layer.id}-{i.id}")
    for layer in LAYERS
    for i in layer.implementations
    if i.id.startswith("compiled")
]


def of(layer, name="compiled"):
    return next(i for i in layer.LAYER.implementations if i.id == name)


def drifts(layer, implementation, dtype="float32"):
    row = check.measure_row(layer, implementation, "cpu", dtype)
    return list(check.against_claim(layer, implementation, "cpu", row, "fresh cpu"))


def test_the_layers_that_are_compiled():
    assert {f"{p.values[0].id} {p.values[1].id}" for p in COMPILED} == {
        "layernorm-linear compiled",
        "dropout compiled",
        "attention-dropout compiled",
        "ffn-dropout compiled",
        "ffn-gelu compiled",
        "swiglu compiled",
        "cross-entropy compiled",
        "cross-entropy compiled-float32",
    }


def test_each_size_is_compiled_once(monkeypatch):
    graphs = []

    def backend(graph, inputs):
        graphs.append([tuple(t.shape) for t in inputs])
        return graph

    monkeypatch.setattr(compiled, "BACKEND", backend)
    run = compiled.compiled(lambda x: x.sin().cos())
    for length in (2, 3, 2, 3, *range(2, 14)):  # more than torch compiles by itself
        run(x=torch.ones(length, requires_grad=True))
    assert graphs == [[(length,)] for length in range(2, 14)]


def test_it_has_the_signature_of_what_is_compiled():
    assert inspect.signature(compiled.compiled(swiglu.eager)) == inspect.signature(swiglu.eager)


# What the eager pair keeps and the compiled one doesn't, and the other way round, claimed of what is compiled.
WRONG = {
    "swiglu-keeps-a": (swiglu, dict(pair=swiglu.EAGER_PAIR, at=compiled.places("z1", "a", "z2"))),
    "cross-entropy-keeps-logp": (
        cross_entropy,
        dict(pair=cross_entropy.MEAN, at=compiled.places("logp", "t", "n"), dtypes={}),
    ),
    "layernorm-linear-in-another-place": (
        layernorm_linear,
        dict(at=compiled.places("x", "w", "rstd", "mean", "W1", "u")),
    ),
    "layernorm-linear-from-output": (
        layernorm_linear,
        dict(pair=layernorm_linear.FROM_OUTPUT, at=compiled.places("w", "b", "rstd", "W1", "u")),
    ),
}


@pytest.mark.parametrize("layer, wrong", WRONG.values(), ids=WRONG)
def test_a_wrong_claim_drifts(layer, wrong):
    right = of(layer)
    assert drifts(layer.LAYER, right) == []
    saves = replace(right.cpu, **wrong)
    recover = right.recover if any(i.drawn for i in saves.pair.inputs.values()) else None
    assert drifts(layer.LAYER, replace(right, cpu=saves, recover=recover)) != []


SMALL = [cross_entropy, ffn_gelu, layernorm_linear]


@pytest.mark.parametrize("layer", SMALL, ids=lambda layer: layer.LAYER.id)
def test_the_limit_on_sizes_is_needed(layer):
    assert drifts(layer.LAYER, replace(of(layer), multiples={})) != []


@pytest.mark.parametrize("layer, implementation", COMPILED)
def test_nothing_is_run_off_the_cpu(layer, implementation):
    given = {n: torch.empty(1, device="meta") for n, i in implementation.inputs("cpu").items() if not i.drawn}
    with pytest.raises(NotImplementedError, match="on the CPU alone"):
        implementation.run(**given, **implementation.scalars)


def test_a_python_that_cant_compile_is_told(monkeypatch):
    monkeypatch.setattr("torch._dynamo.eval_frame.is_dynamo_supported", lambda: False)
    with pytest.raises(Uncompilable, match="take one that this torch supports"):
        measure.measure(of(swiglu), "cpu", "float32")
    opinions = [f.opinion for f in prove.against_torch("swiglu", of(swiglu))]
    assert opinions and set(opinions) == {"float64, compiled like eager"}


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
@pytest.mark.parametrize("layer, implementation", COMPILED)
def test_inductor_keeps_the_same(layer, implementation, monkeypatch):
    monkeypatch.setattr(compiled, "BACKEND", "inductor")
    monkeypatch.setattr(measure, "SIZES", measure.SIZES[:1])
    found = drifts(layer, implementation, "bfloat16")
    assert [d for d in found if d.what != "class"] == []  # the census doesn't see what a kernel of Inductor allocates
