"""What one way of seeing shows and another doesn't is named; a kept tensor is known by its values, not by its claim."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from refcheck import check
from refcheck.graph import Holder, Token
from refcheck.layers import layernorm
from refcheck.measure import _recognise
from refcheck.observe import Census, Disagreement, _agree, _class, key

SEEN = ("packed", "walked", "alive", "made")
AGREE = [SEEN, ("packed", "walked"), (), ("made",)]  # the second is older than the forward, the last is freed again
DIFFER = {
    ("packed", "alive", "made"): "packed by autograd but not in its graph",
    ("packed",): "packed by autograd but not in its graph",
    ("walked", "alive", "made"): "in the graph but never packed",
    ("walked",): "in the graph but never packed",
    ("alive", "made"): "although no node shows it",
    ("packed", "walked", "made"): "in the graph but counted as freed",
}


def agree(ways, leaf=False, how="saved", past_autograd=()):
    """Puts one storage before the comparison, seen in these ways only."""
    t = torch.ones(3)
    found = {key(t): (Holder("Node", "ctx.attr" if how == "ctx" else "attr", t, how),)} if "walked" in ways else {}
    census = SimpleNamespace(
        alive={key(t)} if "alive" in ways else set(), seen={key(t): None} if "made" in ways else {}
    )
    packed = [Token(t)] if "packed" in ways else []
    _agree(found, SimpleNamespace(census=census, packed=lambda: packed), {key(t)} if leaf else set(), past_autograd)


@pytest.mark.parametrize("ways", AGREE, ids=str)
def test_ways_of_seeing_that_agree(ways):
    agree(ways)


@pytest.mark.parametrize("ways, what", DIFFER.items(), ids=str)
def test_ways_of_seeing_that_differ(ways, what):
    with pytest.raises(Disagreement, match=f"1 storage.*{what}"):
        agree(ways)


def test_a_ctx_attribute_must_be_known():
    agree(("walked", "alive", "made"), how="ctx", past_autograd={"Node.ctx.attr"})
    for known in ((), {"Node.ctx.other"}, {"Other.ctx.attr"}):
        with pytest.raises(Disagreement, match="although no node shows it"):
            agree(("walked", "alive", "made"), how="ctx", past_autograd=known)
    with pytest.raises(Disagreement, match="in the graph but counted as freed"):
        agree(("walked", "made"), how="ctx", past_autograd={"Node.ctx.attr"})
    with pytest.raises(Disagreement, match="in the graph but never packed"):  # that it is known excuses no other place
        agree(("walked", "alive", "made"), past_autograd={"Node.attr"})


def test_a_leaf_lives_whether_or_not_anything_saves_it():
    agree(("alive", "made"), leaf=True)


def holders(t, attr="self"):
    return (Holder("Node", attr, t),)


def test_the_class_of_what_is_kept():
    w = torch.ones(3)
    with Census() as census:
        made, copy, view = torch.ones(3), w.to(torch.bfloat16), w[1:]
    assert _class(holders(made), census, set(), "cpu") == "activation"
    assert _class(holders(view), census, set(), "cpu") == "buffer"
    assert _class(holders(made), census, set(), "cuda") == "host"
    assert _class(holders(made, "rng_state"), census, set(), "cpu") == "rng"
    assert _class(holders(copy), census, {key(w)}, "cpu") == "weight copy"
    assert _class(holders(copy), census, set(), "cpu") == "activation"
    number = (torch.ones(3, requires_grad=True) * 0.5).grad_fn._saved_other
    assert _class(holders(number), census, set(), "cpu") == "number"


def test_two_tensors_of_one_shape_are_told_apart_by_their_values():
    """Mean and rstd claimed in each other's place: what is measured keeps its own name."""
    eager = layernorm.LAYER.implementations[0]
    at = {**eager.cpu.at, "mean": eager.cpu.at["rstd"], "rstd": eager.cpu.at["mean"]}
    wrong = replace(eager, cpu=replace(eager.cpu, at=at))
    row = check.measure_row(layernorm.LAYER, wrong, "cpu", "float32")
    for run in row.runs[:2]:  # in the last, all lengths but one are 1
        assert {s.name: s.attr for s in run.saved if s.name in ("mean", "rstd")} == dict(mean="result1", rstd="result2")
    assert {(d.tensor, d.what) for d in check.against_claim(layernorm.LAYER, wrong, "cpu", row, "fresh")} >= {
        ("mean", "place"),
        ("rstd", "place"),
    }


def test_what_has_no_value_goes_by_its_place_and_what_has_one_does_not():
    kept = SimpleNamespace(names=(), cls="rng", holders=(SimpleNamespace(tensor=torch.tensor([1.0, 2.0])),))
    values = {"x": torch.tensor([3.0, 4.0], dtype=torch.float64)}
    equal = {"x": torch.tensor([2.0, 1.0], dtype=torch.float64)}
    assert _recognise(kept, values, "rng_state", "float32") == "rng_state"
    assert _recognise(kept, values, "x", "float32") == "?"
    assert _recognise(kept, equal, "?", "float32") == _recognise(kept, equal, "x", "float32") == "x"
