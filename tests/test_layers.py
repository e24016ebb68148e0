"""What holds of all layers together: one name is one tensor, each text is in its language, absence is real."""

import re
from dataclasses import fields, is_dataclass, replace

import pytest
import torch
from sympy import sympify

from refcheck import errata, measure
from refcheck.blocks import BLOCKS
from refcheck.function import written_out
from refcheck.instance import instance
from refcheck.layers import LAYERS, dropout, softmax
from refcheck.saved import CLASSES, Saved, device_bytes, host_bytes
from refcheck.sizes import DTYPES, B, D, T, d, h
from refcheck.spec import absence, activation, parameter
from refcheck.words import WORDS

SEVERAL = frozenset({"W", "b", "y", "m", "n", "a"})  # stand for another tensor in each layer


def axes(shape):
    return tuple(sympify(n).subs(D, h * d) for n in shape if n != 1)


def tensors(layers):
    """(name, where, aspect, value) of each tensor of a pair: its axes, and of an input its class and dtype."""
    for layer in layers:
        for pair in layer.pairs:
            output, saved, inputs = pair.symbolic
            for name, array in {**pair.outputs(output), **saved, **inputs}.items():
                if hasattr(array, "shape"):
                    yield name, layer.id, "axes", axes(array.shape)
            for name, i in pair.inputs.items():
                yield name, layer.id, "class", (i.cls if i.cls in ("parameter", "buffer") else "value", i.dtype)
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
    except (RuntimeError, NotImplementedError):
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


def test_places_are_claimed_for_just_what_is_saved():
    eager = softmax.LAYER.implementations[0]
    for at in ({}, {**eager.cpu.at, "S": "SoftmaxBackward0.self"}):
        with pytest.raises(ValueError, match="places are claimed for"):
            replace(eager, cpu=replace(eager.cpu, at=at)).claim("cpu", "float32")


def test_a_pair_written_out_keeps_a_mask_as_a_mask():
    (m,) = written_out(dropout.FROM_MASK, "Dropped", {}, like=dropout.eager).claim("cuda", "bfloat16")
    assert (m.name, m.dtype, m.holders) == ("m", "bool", ("DroppedBackward.saved_tensors[0]",))


def test_another_name_for_a_layer_is_compared_with_the_same_op():
    renamed = instance("refcheck.layers.other", {}, of=softmax.LAYER, names={"S": "Z"}, inputs=dict(Z=activation(T, D)))
    (like,) = (i.like for i in renamed.implementations if i.like)
    z = torch.randn(2, 3)
    assert torch.equal(like(Z=z), z.softmax(-1))


COUNTED = {"input": "device", "activation": "device", "buffer": "device", "weight copy": "device", "rng": "device"}


@pytest.mark.parametrize("cls", CLASSES)
def test_bytes_count_where_they_lie(cls):
    saved = Saved("x", "Node", "attr", (B,), "float32", 4 * B, cls)
    where = COUNTED.get(cls, "host" if cls == "host" else "")
    assert device_bytes([saved]) == (4 * B if where == "device" else 0)
    assert host_bytes([saved]) == (4 * B if where == "host" else 0)
