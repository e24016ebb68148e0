"""Where g heads of keys serve h heads of queries, nothing is divided: tracing holds for every g and every h/g."""

from dataclasses import replace

import pytest
import torch
from sympy import expand, prod

from refcheck import check, measure
from refcheck.layers import gqa
from refcheck.sizes import B, T, at_sizes, d, g, h
from refcheck.spec import Implementation, Pair, Saves, activation

NEEDS_CUDA = pytest.mark.skipif(torch.version.cuda is None, reason="no CUDA build")
DEVICES = ["cpu", pytest.param("cuda-trace", marks=NEEDS_CUDA)]
BY_ID = {i.id: i for i in gqa.LAYER.implementations}
KEPT = {  # in elements, P and the small ones apart
    "grouped": B * h * T * d + 2 * B * g * T * d,
    "repeat-kv": 3 * B * h * T * d,
    "native": 2 * B * h * T * d + 2 * B * g * T * d,
    "repeat-kv-flash": 4 * B * h * T * d,
}


def wide(saved):
    return sum(s.nbytes / 2 for s in saved if s.name not in ("P", "lse") and s.cls in ("input", "activation"))


@NEEDS_CUDA
@pytest.mark.parametrize("implementation", BY_ID)
def test_a_trace_knows_g_and_h_apart(implementation):
    (run,) = measure.measure(BY_ID[implementation], "cuda-trace", "bfloat16")
    assert run.guards == ()
    assert expand(wide(run.saved) - KEPT[implementation]) == 0
    lengths = {n for s in run.saved for n in s.shape}
    assert {str(n) for length in lengths for n in length.free_symbols} <= {"B", "T", "d", "h", "g"}


@pytest.mark.parametrize("sizes", measure.SIZES, ids=str)
def test_real_sizes_divide_into_groups(sizes):
    assert at_sizes(h / g, sizes) * sizes["g"] == sizes["h"]


def test_a_group_that_is_no_whole_number_is_refused():
    with pytest.raises(ValueError, match="no whole number"):
        at_sizes(B * h / g, {"B": 1, "h": 8, "g": 3})


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "ran, claimed, names", [("grouped", "repeat-kv", {"K", "V"}), ("repeat-kv", "grouped", {"K_g", "V_g"})]
)
def test_copies_and_originals_are_told_apart(ran, claimed, names, device):
    wrong = replace(BY_ID[claimed], run=BY_ID[ran].run)
    row = check.measure_row(gqa.LAYER, wrong, device, "bfloat16")
    assert {drift.tensor for drift in check.against_claim(gqa.LAYER, wrong, device, row, "fresh")} >= names


@pytest.mark.parametrize("device", DEVICES)
def test_a_claim_of_all_heads_where_a_group_shares_one_is_named(device, monkeypatch):
    kept = BY_ID["native"].claim(device, "bfloat16")
    wrong = [replace(s, nbytes=s.nbytes * h / g, shape=(B, g, h / g, T, d)) if s.name == "K_g" else s for s in kept]
    row = check.measure_row(gqa.LAYER, BY_ID["native"], device, "bfloat16")
    monkeypatch.setattr(check, "claim", lambda *_: tuple(wrong))
    found = [*check.against_claim(gqa.LAYER, BY_ID["native"], device, row, "fresh")]
    assert {drift.what for drift in found if drift.tensor == "K_g"} >= {"shape", "bytes"}


def holder(run, shape):
    pair = Pair("x", lambda x: (x, {}), lambda dy, s: dict(x=dy), dict(x=activation(*shape)))
    return Implementation("eager", {}, run, cpu=Saves(pair, {}), cuda=Saves(pair, {}))


@NEEDS_CUDA
@pytest.mark.parametrize("shape", [(B, g, h / g, T), (B, h, g), (B, g * d, h * d), (B, h * T + g)], ids=str)
def test_closed_forms_in_h_and_g(shape):
    (run,) = measure.measure(holder(lambda x: x.exp(), shape), "cuda-trace", "float32")
    (kept,) = run.saved
    assert expand(kept.nbytes - 4 * prod(shape)) == 0
    assert [expand(a - b) for a, b in zip(kept.shape, shape, strict=True)] == [0] * len(shape)
    assert run.guards == ()


@NEEDS_CUDA
@pytest.mark.parametrize("axis, name", [*enumerate(["B", "g", "h/g"])])
def test_a_pinned_group_is_refused(axis, name):
    def run(x):
        return x * 2 if x.shape[axis] == measure.HINTS[name] else x.exp()

    wanted = f"{name} = {measure.HINTS[name]}"
    with pytest.raises(measure.Unavailable, match=f"pinned a size.*{wanted}"):
        measure.measure(holder(run, (B, g, h / g, T)), "cuda-trace", "float32")
