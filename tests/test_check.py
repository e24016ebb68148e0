"""Claim = fresh measurement = committed record, and every change to one of them is seen where it was made."""

from dataclasses import replace

import pytest
import torch
from sympy import symbols

from refcheck import check, measure
from refcheck.blocks import BLOCKS
from refcheck.evidence import FOLDER, read_all
from refcheck.fold import same_elements
from refcheck.layers import LAYERS, lora
from refcheck.observe import Disagreement
from refcheck.sizes import B, D, T
from refcheck.spec import Implementation, Pair, Saves, activation, claim
from tests.mutate.claims import wrong_claims

DEVICES = [
    "cpu",
    pytest.param("cuda-trace", marks=pytest.mark.skipif(torch.version.cuda is None, reason="no CUDA build")),
]
EVERY = (*LAYERS, *BLOCKS)
RECORDS = read_all()
RECORDED = [
    (record, *case)
    for record in RECORDS.values()
    for case in check.cases(EVERY, record.environment.device, ["bfloat16"], record.environment.torch)
]
FRESH = [
    pytest.param(
        device, *case, marks=pytest.mark.skipif(device != "cpu" and torch.version.cuda is None, reason="no CUDA")
    )
    for device in ("cpu", "cuda-trace")
    for case in check.cases(EVERY, device)
]


def name(value):
    return getattr(value, "id", None) or getattr(getattr(value, "environment", None), "name", None) or str(value)


@pytest.mark.parametrize("device, layer, implementation, dtype", FRESH, ids=name)
def test_claim_measurement_and_record_agree(device, layer, implementation, dtype):
    row = check.measure_row(layer, implementation, device, dtype)
    assert check.here_name(device) in RECORDS
    assert list(map(str, check.check_fresh(row, layer, implementation, device, RECORDS))) == []


@pytest.mark.parametrize("record", RECORDS.values(), ids=name)
def test_every_record_agrees_with_the_claims(record):
    assert list(map(str, check.check_record(record, EVERY, EVERY))) == []


@pytest.mark.parametrize("record, layer, implementation, dtype", RECORDED, ids=name)
def test_a_wrong_claim_is_named(record, layer, implementation, dtype, monkeypatch):
    device = record.environment.device
    row = record.by_key[check.key(layer, implementation, dtype)]
    for what, tensor, wrong in wrong_claims(claim(implementation, device, dtype)):
        monkeypatch.setattr(check, "claim", lambda *_, wrong=wrong: wrong)
        found = list(check.against_claim(layer, implementation, device, row, "record"))
        assert found, f"{what} {tensor} was not seen"
        assert any(d.tensor == tensor for d in found), f"{what} {tensor}: {found[0]}"
        assert all(f"{layer.module.replace('.', '/')}.py" in d.mend and f"--device {device}" in d.mend for d in found)


def test_a_drift_names_everything(monkeypatch):
    layer, record = next(x for x in LAYERS if x.id == "softmax"), RECORDS["torch-2.14.1-cpu"]
    wrong = Saves(layer.implementations[0].cpu.pair, at=dict(P="SoftmaxBackward0.result"), dtypes=dict(P="float32"))
    implementation = replace(layer.implementations[0], cpu=wrong)
    drift = next(
        check.against_claim(layer, implementation, "cpu", record.by_key["softmax", "eager", "bfloat16"], "cpu")
    )
    for part in (
        "softmax eager bfloat16",
        "P dtype",
        "claimed float32",
        "measured bfloat16",
        "measure --layer softmax --device cpu",
    ):
        assert part in str(drift)


def drifts(implementation, device, run):
    """What differs from the claim of an implementation of `lora` where this code runs instead of its own."""
    wrong = replace(implementation, run=run)
    row = check.measure_row(lora.LAYER, wrong, device, "bfloat16")
    return {(d.tensor, d.claimed) for d in check.against_claim(lora.LAYER, wrong, device, row, "fresh")}


@pytest.mark.parametrize("device", DEVICES)
def test_a_frozen_weight_keeps_no_input_and_data_no_weight(device):
    frozen, first, *_ = lora.LAYER.implementations
    assert drifts(frozen, device, lora.plain) == drifts(first, device, lora.plain) == set()
    assert drifts(frozen, device, lambda x, W: lora.plain(x, W.detach().requires_grad_())) == {("x", "not kept")}
    assert drifts(first, device, lambda x, W: lora.plain(x.detach().requires_grad_(), W)) == {("W", "not kept")}


def test_a_measurement_asks_gradients_only_of_what_wants_them():
    wanted = {}

    def run(x, W, W_A, W_B, scale):
        wanted.update(x=x.requires_grad, W=W.requires_grad, W_A=W_A.requires_grad, W_B=W_B.requires_grad)
        return lora.lora(x, W, W_A, W_B, scale)

    adapted = next(i for i in lora.LAYER.implementations if i.id == "lora")
    assert drifts(adapted, "cpu", run) == set()
    assert wanted == dict(x=True, W=False, W_A=True, W_B=True)


def test_another_version_of_a_module_makes_its_rows_stale(monkeypatch):
    monkeypatch.setattr(check, "source_hash", lambda layer: "0" * 16)
    found = list(check.check_record(RECORDS["torch-2.14.1-cpu"], EVERY, EVERY))
    assert {d.what for d in found} == {"module"} and len(found) == len(list(check.cases(EVERY, "cpu")))


def test_rows_missing_and_unknown():
    record = next(iter(RECORDS.values()))
    without = replace(record, rows=record.rows[1:])
    assert [d.measured for d in check.check_record(without, EVERY, EVERY)] == ["not recorded"]
    foreign = replace(record, rows=(*record.rows, replace(record.rows[0], layer="elsewhere")))
    assert [d.claimed for d in check.check_record(foreign, EVERY, EVERY)] == ["no such row"]


def test_a_fresh_row_that_differs_from_its_record():
    record = RECORDS["torch-2.14.1-cpu"]
    for row in record.rows:
        run = row.runs[0]
        changed = [replace(row, runs=(replace(run, sizes={**run.sizes, "B": 99}), *row.runs[1:]))]
        changed.append(replace(row, runs=(replace(run, guards=("B = 2",)), *row.runs[1:])))
        changed += [
            replace(row, runs=(replace(run, saved=(*run.saved[:n], *run.saved[n + 1 :])), *row.runs[1:]))
            for n in range(len(run.saved))
        ]
        for wrong in changed:
            assert list(check.against_record(wrong, record, "cpu"))


def cpu_row(layer):
    record = RECORDS["torch-2.14.1-cpu"]
    chosen = next(x for x in LAYERS if x.id == layer)
    return chosen, chosen.implementations[0], record, record.by_key[layer, "eager", "bfloat16"]


def with_run(row, n, run):
    return replace(row, runs=(*row.runs[:n], run, *row.runs[n + 1 :]))


@pytest.mark.parametrize("n", range(len(measure.SIZES)))
def test_every_run_is_compared_with_the_claim(n):
    layer, eager, _, row = cpu_row("softmax")
    (kept,) = row.runs[n].saved
    for saved in ((), (replace(kept, dtype="float32"),), (kept, replace(kept))):
        wrong = replace(row.runs[n], saved=saved, allocator=None)  # whose ledger would be open as well
        (found,) = check.against_claim(layer, eager, "cpu", with_run(row, n, wrong), "r")
        assert found.tensor == "P" and f"T={row.runs[n].sizes['T']}" in found.where


def test_a_fresh_row_is_compared_with_claim_and_record():
    layer, eager, record, row = cpu_row("softmax")
    records = {check.here_name("cpu"): record}
    assert check.check_fresh(row, layer, eager, "cpu", records) == []
    (kept,) = row.runs[0].saved
    changed = with_run(row, 0, replace(row.runs[0], saved=(replace(kept, dtype="float32"),)))
    (against_claim,) = check.check_fresh(changed, layer, eager, "cpu", {})
    assert against_claim.where.startswith("fresh cpu")
    assert {d.where.partition(" at ")[0] for d in check.check_fresh(changed, layer, eager, "cpu", records)} == {
        "fresh cpu",
        record.environment.name,
    }
    without = replace(record, rows=tuple(r for r in record.rows if r.key != row.key))
    (missing,) = check.check_fresh(row, layer, eager, "cpu", {check.here_name("cpu"): without})
    assert (missing.what, missing.measured) == ("row", "not recorded")


def test_a_recorded_row_is_compared_with_the_claim():
    layer, _, record, row = cpu_row("softmax")
    (kept,) = row.runs[0].saved
    changed = with_run(row, 0, replace(row.runs[0], saved=(replace(kept, dtype="float32"),)))
    other = replace(record, rows=tuple(changed if r.key == row.key else r for r in record.rows))
    (found,) = check.check_record(other, [layer], EVERY)
    assert (found.tensor, found.what, found.measured) == ("P", "dtype", "float32")


SHAPES = [
    ((B, T, D), (B, T, D), True),
    ((B, T, D), (B * T, D), True),
    ((B, T, 1), (B, T), True),
    ((B, T, D), (B, D, T), True),
    ((B, T, D), (B * T * D,), True),
    ((B, T, D), (B, T), False),
    ((B, T), (B, T, D), False),
    ((B, T, D), (B, D, D), False),
    ((B, T, D), (), False),
    ((), (), True),
]


@pytest.mark.parametrize("claimed, measured, same", SHAPES)
def test_shapes_that_hold_the_same_elements(claimed, measured, same):
    assert same_elements(claimed, measured) is same


def holder(run, pair=None):
    pair = pair or Pair("x", lambda x: (x, {}), lambda dy, s: dict(x=dy), dict(x=activation(B, T, D)))
    return Implementation("eager", {}, run, cpu=Saves(pair, {}), cuda=Saves(pair, {}))


@pytest.mark.parametrize("device", DEVICES)
def test_what_only_the_census_sees_is_not_passed_over(device):
    class Hidden(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.hidden = x.exp()
            return ctx.hidden * 1

        @staticmethod
        def backward(ctx, dy):
            return dy * ctx.hidden

    with pytest.raises(Disagreement, match="ctx attribute"):
        measure.measure(holder(lambda x: Hidden.apply(x)), device, "float32")


@pytest.mark.parametrize("device", DEVICES)
def test_a_tensor_that_no_formula_names_is_reported(device):
    (run, *_) = measure.measure(holder(lambda x: x.exp()), device, "float32")
    assert [s.name for s in run.saved] == ["?"]


@pytest.mark.parametrize("device", DEVICES)
def test_a_view_counts_its_whole_storage(device):
    (run, *_) = measure.measure(holder(lambda x: x[..., :2].exp() * x[..., :2]), device, "float32")
    x = next(s for s in run.saved if s.name == "x")
    sizes = {symbols(n, integer=True, positive=True): v for n, v in run.sizes.items()}
    assert x.nbytes == (4 * B * T * D).subs(sizes)


@pytest.mark.skipif(torch.version.cuda is None, reason="no CUDA build")
def test_a_pinned_size_is_refused():
    with pytest.raises(measure.Unavailable, match="pinned a size"):
        measure.measure(holder(lambda x: x * 2 if x.shape[0] == 3 else x.exp()), "cuda-trace", "float32")


OTHERWISE = {
    "other sizes": lambda run: replace(run, sizes={**run.sizes, "k": 9}),
    "a guard": lambda run: replace(run, guards=("B = 2",)),
}


@pytest.mark.parametrize("change", OTHERWISE.values(), ids=OTHERWISE)
def test_a_row_measured_otherwise_is_named(change):
    _, eager, _, row = cpu_row("residual")  # keeps nothing, so no claim would see it
    assert list(check.against_sizes(eager, "cpu", row, "r")) == []
    (found,) = check.against_sizes(eager, "cpu", with_run(row, 0, change(row.runs[0])), "r")
    assert (found.layer, found.what) in {("residual", "sizes"), ("residual", "guards")}


def test_every_record_is_there():
    assert {r.environment.device for r in RECORDS.values()} >= {"cpu", "cuda-trace"}
    assert all((FOLDER / f"{name}.json").exists() for name in RECORDS)
