"""What one way of seeing shows and another doesn't is named; a kept tensor is known by its values, not by its claim."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from refcheck import check
from refcheck.graph import Holder, Token
from refcheck.layers import layernorm
from refcheck.observe import Disagreement, _agree, _class, key

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


def agree(ways, leaf=False):
    """Puts one storage before the comparison, seen in these ways only."""
    t = torch.ones(3)
    found = {key(t): (Holder("Node", "attr", t),)} if "walked" in ways else {}
    census = SimpleNamespace(
        alive={key(t)} if "alive" in ways else set(), seen={key(t): None} if "made" in ways else {}
    )
    packed = [Token(t)] if "packed" in ways else []
    _agree(found, SimpleNamespace(census=census, packed=lambda: packed), {key(t)} if leaf else set())


@pytest.mark.parametrize("ways", AGREE, ids=str)
def test_ways_of_seeing_that_agree(ways):
    agree(ways)


@pytest.mark.parametrize("ways, what", DIFFER.items(), ids=str)
def test_ways_of_seeing_that_differ(ways, what):
    with pytest.raises(Disagreement, match=f"1 storage.*{what}"):
        agree(ways)


def test_a_leaf_lives_whether_or_not_anything_saves_it():
    agree(("alive", "made"), leaf=True)


def holders(t, attr="self"):
    return (Holder("Node", attr, t),)


def test_the_class_of_what_is_kept():
    ones = torch.ones(3)
    assert _class(holders(ones), True, "cpu") == "activation"
    assert _class(holders(ones), False, "cpu") == "buffer"
    assert _class(holders(ones), True, "cuda") == "host"
    assert _class(holders(ones, "rng_state"), True, "cpu") == "rng"
    number = (torch.ones(3, requires_grad=True) * 0.5).grad_fn._saved_other
    assert _class(holders(number), True, "cpu") == "number"


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
