"""What holds of all layers together: one name is one tensor, each text is in its language, absence is real."""

import re
from dataclasses import fields, is_dataclass, replace

import pytest
import torch
from sympy import ceiling, sympify

from refcheck import errata, measure
from refcheck.blocks import BLOCKS
from refcheck.function import as_function, written_out
from refcheck.instance import instance
from refcheck.layers import LAYERS, dropout, linear_cross_entropy, softmax
from refcheck.saved import CLASSES, Saved, device_bytes, host_bytes
from refcheck.sizes import DTYPES, B, D, T, d, g, h
from refcheck.spec import Pair, absence, activation, parameter
from refcheck.words import WORDS

SEVERAL = frozenset({"W", "b", "y", "m", "n", "a"})  # stand for another tensor in each layer


def axes(shape):
    """The axes that count: D is h·d; groups of heads, (g, h/g), are h heads; the halves of a head, its pairs, are d."""
    found = [sympify(n).subs(D, h * d) for n in shape if n != 1]
    if {2, d / 2} <= set(found[-2:]):
        found[-2:] = [d]
    at = next((n for n in range(len(found)) if found[n : n + 2] == [g, h / g]), None)
    return tuple(found) if at is None else (*found[:at], h, *found[at + 2 :])


def tensors(layers):
    """(name, where, aspect, value) of each tensor of a pair: its axes, and of an input its class and dtype.

    In which floats a parameter or an input comes is up to the implementation.
    """
    for layer in layers:
        for pair in layer.pairs:
            output, saved, inputs = pair.symbolic
            for name, array in {**pair.outputs(output), **saved, **inputs}.items():
                if hasattr(array, "shape"):
                    yield name, layer.id, "axes", axes(array.shape)
            for name, i in pair.inputs.items():
                dtype = None if i.cls in ("parameter", "input") and i.dtype in DTYPES else i.dtype
                yield name, layer.id, "class", (i.cls if i.cls in ("parameter", "buffer") else "value", dtype)
    for block in BLOCKS:
        for composed in block.implementations:
            for name, i in composed.given.items():
                yield name, block.id, "axes", axes(i.shape)
                yield name, block.id, "class", (i.cls if i.cls in ("parameter", "buffer") else "value", i.dtype)


def differing(layers):
    """The names under which two layers mean tensors of unlike shape, class or dtype, and the layers."""
    first = {}
    for name, where, aspect, value in tensors(layers):
        if name not in SEVERAL:
            known, place = first.setdefault((name, aspect), (value, where))
            if known != value:
                yield name, {place, where}


def test_a_name_is_one_tensor_in_all_layers():
    assert list(differing(LAYERS)) == []


WRONG = {
    "a shape": ("gelu", dict(z=activation(B, T, T)), "z"),
    "a parameter that is an activation": ("rmsnorm", dict(w=activation(D)), "w"),
    "an activation that is a parameter": ("softmax", dict(S=parameter(B, h, T, T)), "S"),
    "a buffer that is an activation": ("mask", dict(A=activation(T, T)), "A"),
    "keys of all heads": ("qk-norm", dict(K_g=activation(B, h, T, d)), "K_g"),
    "groups the other way round": ("qk-norm", dict(Q=activation(B, h / g, g, T, d)), "Q"),
}


@pytest.mark.parametrize("layer, inputs, name", WRONG.values(), ids=WRONG)
def test_a_wrong_input_is_named(layer, inputs, name):
    def wrong(pair):
        return replace(pair, inputs={**pair.inputs, **{n: i for n, i in inputs.items() if n in pair.inputs}})

    def with_wrong_pairs(i):
        return replace(i, cpu=replace(i.cpu, pair=wrong(i.cpu.pair)), cuda=replace(i.cuda, pair=wrong(i.cuda.pair)))

    layers = [
        replace(x, implementations=tuple(map(with_wrong_pairs, x.implementations))) if x.id == layer else x
        for x in LAYERS
    ]
    assert any(found == name and layer in where for found, where in differing(layers))


CHINESE = re.compile(r"[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef]")


def texts(thing, where):
    """(where, Chinese, English) of everything below `thing` that has both."""
    if isinstance(thing, dict) and thing.keys() == {"zh", "en"}:
        zh, en = thing["zh"], thing["en"]
        pairs = [(where, zh, en)] if isinstance(zh, str) else [(f"{where} {key}", zh[key], en[key]) for key in en]
        yield from pairs
    elif isinstance(thing, dict):
        for key, value in thing.items():
            yield from texts(value, f"{where} {key}")
    elif isinstance(thing, tuple):
        for value in thing:
            yield from texts(value, where)
    elif is_dataclass(thing):
        where = f"{where} {getattr(thing, 'id', '')}".strip()
        if hasattr(thing, "zh"):
            yield where, thing.zh, thing.en
        for field in fields(thing):
            if field.name not in ("layer", "pair", "cpu_pair"):
                yield from texts(getattr(thing, field.name), where)


def in_the_wrong_language(zh, en):
    return bool(CHINESE.search(en)) or (zh.casefold() != en.casefold() and not CHINESE.search(zh))


BOTH = [*texts((*LAYERS, *BLOCKS, *errata.GROUPS, *errata.ENTRIES), ""), *texts(WORDS, "words")]


def test_each_text_is_in_its_language():
    assert len(BOTH) > 200
    assert [where for where, zh, en in BOTH if in_the_wrong_language(zh, en)] == []


def test_a_text_in_the_wrong_language_is_seen():
    exchanged = [
        where for where, zh, en in BOTH if zh.casefold() != en.casefold() and not in_the_wrong_language(en, zh)
    ]
    assert exchanged == []
    assert in_the_wrong_language("keeps x", "keeps the x") and in_the_wrong_language("存 x", "存 x")


ABSENT = [
    pytest.param(layer, i, device, dtype, id=f"{layer.id}-{i.id}-{device}-{dtype}")
    for layer in LAYERS
    for i in layer.implementations
    for device in ("cpu", "cuda")  # a trace runs no kernel, so none can refuse there
    for dtype in DTYPES
    if absence(i, device, dtype)
]


def runs(implementation, device, dtype):
    try:
        measure.available(device)
    except measure.Unavailable as reason:
        pytest.skip(str(reason))
    try:
        measure.measure(implementation, device, dtype)
    except (RuntimeError, NotImplementedError, UserWarning):  # a warning if the code makes it an error
        return False
    return True


@pytest.mark.parametrize("layer, implementation, device, dtype", ABSENT)
def test_what_is_said_not_to_run_does_not(layer, implementation, device, dtype):
    assert not runs(implementation, device, dtype), f"{layer.id}: {absence(implementation, device, dtype)!r} is not so"


def test_an_absence_without_cause_is_seen():
    eager = softmax.LAYER.implementations[0]
    for reason in ({"cpu": "no"}, {"float32": "no"}, {"cpu/bfloat16": "no"}):
        absent = replace(eager, absent=reason)
        assert any(absence(absent, "cpu", dtype) and runs(absent, "cpu", dtype) for dtype in DTYPES)


@pytest.mark.parametrize("version", ["2.9.1", "2.12.0+cpu"])
def test_what_a_torch_is_too_old_for_is_absent_there(version):
    absent = {i.id for i in linear_cross_entropy.LAYER.implementations if absence(i, "cpu", "float32", version)}
    assert absent == {"reference", "chunked", "chunked-per-token"}


@pytest.mark.parametrize("version", [None, "2.13.0", "2.14.1+cu130", "2.100.0a0", "3.0"])
def test_what_is_new_is_there_from_its_version_on(version):
    assert not any(absence(i, "cpu", "float32", version) for i in linear_cross_entropy.LAYER.implementations)


def test_places_are_claimed_for_just_what_is_saved():
    eager = softmax.LAYER.implementations[0]
    for at in ({}, {**eager.cpu.at, "S": "SoftmaxBackward0.self"}):
        with pytest.raises(ValueError, match="places are claimed for"):
            replace(eager, cpu=replace(eager.cpu, at=at)).claim("cpu", "float32")


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_copy_in_another_dtype_is_not_the_output(dtype):
    """Softmax in fp32 returns its P only where nothing is cast; F.softmax always does."""
    eager, float32 = (next(i for i in softmax.LAYER.implementations if i.id == name) for name in ("eager", "float32"))
    for implementation, is_output in ((eager, True), (float32, dtype == "float32")):
        (P,) = implementation.claim("cpu", dtype)
        assert ("output" in P.holders) == is_output
        for run in measure.measure(implementation, "cpu", dtype):
            assert [s.holders for s in run.saved] == [P.holders]


def test_a_padded_tensor_is_as_long_as_the_kernel_keeps_it_and_an_expanded_one_no_larger():
    eager = softmax.LAYER.implementations[0]
    whole, wide = (B, h, T, 8 * ceiling(T / 8)), (B, B, h, T, T)
    (padded,) = replace(eager, cpu=replace(eager.cpu, padded=dict(P=whole))).claim("cpu", "float32")
    (expanded,) = replace(eager, cpu=replace(eager.cpu, expanded=dict(P=wide))).claim("cpu", "float32")
    (plain,) = eager.claim("cpu", "float32")
    assert (padded.shape, padded.nbytes) == (whole, 32 * B * h * T * ceiling(T / 8))
    assert (expanded.shape, expanded.nbytes) == (wide, plain.nbytes)
    for of in ("padded", "expanded"):
        with pytest.raises(ValueError, match="not saved: S"):
            replace(eager, cpu=replace(eager.cpu, **{of: dict(S=whole)})).claim("cpu", "float32")


def test_what_was_drawn_and_cant_be_read_back_has_no_values():
    x = torch.randn(2, 3, 4)
    (y,) = [dropout.eager(x, 0.5)]
    eager = dropout.LAYER.implementations[0]
    assert eager.values("cuda", [y], {"x": x}).keys() == {"m"}
    assert replace(eager, recover=lambda y, x: {}).values("cuda", [y], {"x": x}) == {}


def test_a_pair_written_out_keeps_a_mask_as_a_mask():
    (m,) = written_out(dropout.FROM_MASK, "Dropped", {}, like=dropout.eager).claim("cuda", "bfloat16")
    assert (m.name, m.dtype, m.holders) == ("m", "bool", ("DroppedBackward.saved_tensors[0]",))


def kept_by(function, **given):
    return dict(zip("xy", function(**given).grad_fn.saved_tensors, strict=True))


def test_a_pair_written_out_keeps_in_the_dtypes_that_it_is_told():
    pair = Pair("both", lambda x: (x * x, dict(x=x, y=x * x)), lambda dy, s: dict(x=dy * (s["x"] + s["y"] / s["x"])), X)
    x = torch.rand(2, 3, 4).bfloat16().requires_grad_()
    plain, rounded = as_function(pair, "Plain"), as_function(pair, "Rounded", dict(y="float32"))
    assert [t.dtype for t in kept_by(plain, x=x).values()] == [torch.bfloat16] * 2
    kept = kept_by(rounded, x=x)
    assert kept["x"].data_ptr() == x.data_ptr() and kept["x"].dtype is rounded(x=x).dtype is torch.bfloat16
    assert kept["y"].dtype is torch.float32 and torch.equal(kept["y"], x.detach().float() ** 2)
    (slope,) = torch.autograd.grad(rounded(x=x).sum(), x)
    assert slope.dtype is torch.bfloat16 and torch.equal(slope, 2 * x.detach())
    assert {t.dtype for t in kept_by(rounded, x=x.double()).values()} == {torch.float64}  # as it is proven


def test_another_name_for_a_layer_is_compared_with_the_same_op():
    renamed = instance("refcheck.layers.other", {}, of=softmax.LAYER, names={"S": "Z"}, inputs=dict(Z=activation(T, D)))
    (like,) = (i.like for i in renamed.implementations if i.like)
    z = torch.randn(2, 3)
    assert torch.equal(like(Z=z), z.softmax(-1))


X = dict(x=activation(B, T, D))
COUNTED = {"input": "device", "activation": "device", "buffer": "device", "weight copy": "device", "rng": "device"}


@pytest.mark.parametrize("cls", CLASSES)
def test_bytes_count_where_they_lie(cls):
    saved = Saved("x", "Node", "attr", (B,), "float32", 4 * B, cls)
    where = COUNTED.get(cls, "host" if cls == "host" else "")
    assert device_bytes([saved]) == (4 * B if where == "device" else 0)
    assert host_bytes([saved]) == (4 * B if where == "host" else 0)
