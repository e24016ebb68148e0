"""Each new block of an allocator is exactly one storage; what is left over on either side is named, and fails."""

import re
from dataclasses import replace

import pytest
import torch

from refcheck.allocators import watched
from refcheck.close import close
from refcheck.join import Block, Snapshot, Storage, Unexplained, join
from refcheck.observe import Given, observe

WORKSPACE = Block(0x1000, 100, 512)
STACK = ("softmax (functional.py:1)", "eager (softmax.py:9)")
NEW = (Block(0x2000, 60, 512, STACK), Block(0x2200, 512, 512), Block(0x2400, 600, 1536))  # the last has a remainder
STORAGES = (Storage(0x2000, 60, "P"), Storage(0x2200, 512, "Q"), Storage(0x2400, 600, "an output"))


def snapshot(*blocks, requested=0, allocated=0):
    return Snapshot(blocks, requested + sum(b.requested for b in blocks), allocated + sum(b.size for b in blocks))


BEFORE, AFTER = snapshot(WORKSPACE), snapshot(WORKSPACE, *NEW)


def test_a_ledger_that_closes():
    assert join(BEFORE, AFTER, STORAGES) == 512 + 512 + 1536
    assert join(BEFORE, AFTER, (*STORAGES, Storage(0, 0, "an empty tensor"))) == 2560
    assert join(BEFORE, BEFORE, ()) == 0


def test_what_was_there_before_does_not_count():
    assert join(snapshot(WORKSPACE, *NEW[:2]), AFTER, STORAGES[2:]) == 1536


def test_a_block_freed_and_given_again_at_the_same_address():
    before = snapshot(WORKSPACE, Block(0x2000, 99, 512))
    with pytest.raises(Unexplained, match=r"99 bytes at 0x2000.*gone"):
        join(before, AFTER, STORAGES)


OPEN = {  # what is wrong: before, after, storages, what is said
    "a storage has no block": (BEFORE, snapshot(WORKSPACE, *NEW[1:]), STORAGES, r"P \(60 bytes\) has no block"),
    "a block has no storage": (BEFORE, AFTER, STORAGES[1:], r"60 bytes at 0x2000 \(512 set aside.*belong to nothing"),
    "it tells who asked": (BEFORE, AFTER, STORAGES[1:], re.escape(" < ".join(STACK))),
    "too small": (BEFORE, AFTER, (replace(STORAGES[0], nbytes=56), *STORAGES[1:]), "P has 56 bytes, its block 60"),
    "too large": (BEFORE, AFTER, (replace(STORAGES[0], nbytes=512), *STORAGES[1:]), "P has 512 bytes, its block 60"),
    "freed": (snapshot(WORKSPACE, Block(0x900, 7, 512)), AFTER, STORAGES, "7 bytes at 0x900.*gone"),
    "errors that cancel": (
        BEFORE,
        AFTER,
        (replace(STORAGES[0], nbytes=62), replace(STORAGES[1], nbytes=510), STORAGES[2]),
        "P has 62 bytes.*Q has 510 bytes",
    ),
    "two in one": (BEFORE, AFTER, (*STORAGES, Storage(0x2000, 60, "S")), "S and P lie in one block"),
    "inside": (BEFORE, AFTER, (*STORAGES, Storage(0x2500, 8, "S")), r"S \(8 bytes\) lies inside a block: 600 bytes"),
    "below all": (BEFORE, AFTER, (*STORAGES, Storage(0x10, 8, "S")), r"S \(8 bytes\) has no block"),
    "above all": (BEFORE, AFTER, (*STORAGES, Storage(0x9000, 8, "S")), r"S \(8 bytes\) has no block"),
    "it was there before": (BEFORE, AFTER, (*STORAGES, Storage(0x1000, 100, "S")), r"S \(100 bytes\) has no block"),
    "bytes asked for": (BEFORE, snapshot(WORKSPACE, *NEW, requested=4), STORAGES, "asked for rose by 1176.*1172"),
    "bytes set aside": (BEFORE, snapshot(WORKSPACE, *NEW, allocated=512), STORAGES, "set aside rose by 3072.*2560"),
}


@pytest.mark.parametrize("before, after, storages, said", OPEN.values(), ids=OPEN)
def test_a_ledger_that_does_not_close(before, after, storages, said):
    with pytest.raises(Unexplained, match=said) as told:
        join(before, after, storages)
    assert "\n" not in str(told.value)


def test_the_cpu_is_watched():
    def run():
        torch.ones(1000).sum()  # comes and goes
        return torch.empty(400, dtype=torch.uint8)

    before, after, result = watched("cpu", run, thoroughly=False)
    (block,) = after.blocks
    assert (block.address, block.requested) == (result.data_ptr(), 400) and "aten::empty" in block.stack
    assert before == Snapshot((), 0, 0) and after.requested == after.allocated == 400


HELD = []  # what a forward hides from its graph


def forward(hide=False, loop=False):
    """A softmax of x + 0.5·x; what a module's global or a reference cycle keeps is no part of the graph."""

    def build():
        x = torch.ones(3, 5, requires_grad=True).clone()
        if hide:
            HELD[:] = [x + 1]
        if loop:
            cycle = [x * 2]
            cycle.append(cycle)
        return [(x * 0.5 + x).softmax(-1)], [Given("x", "input", x)]

    return build


def test_a_forward_closes_on_the_cpu():
    allocator = close(forward(), "cpu", observe(forward(), "cpu"))
    assert (allocator.requested, allocator.outputs, allocator.leaves) == (60 + 8 + 60, (), (60,))  # y, 0.5 and the leaf
    assert allocator.saved == 68 and allocator.allocated == 128


def test_what_the_graph_does_not_know_is_told_with_who_asked_for_it():
    with pytest.raises(Unexplained, match=r"60 bytes at .*asked for by aten::add.*belong to nothing"):
        close(forward(hide=True), "cpu", observe(forward(), "cpu"))


def test_a_reference_cycle_is_no_part_of_it():
    assert close(forward(loop=True), "cpu", observe(forward(), "cpu")).saved == 68


def test_without_hooks_the_graph_must_keep_the_same():
    with pytest.raises(Unexplained, match=r"keeps \[.*instead of \[\('SoftmaxBackward0.result', 60\)\]"):
        close(lambda: ([torch.ones(3, 5, requires_grad=True).exp()], []), "cpu", observe(softmax, "cpu"))


def softmax():
    return [torch.ones(3, 5, requires_grad=True).softmax(-1)], []
