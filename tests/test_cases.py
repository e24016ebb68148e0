"""The ledger's answers to 41 questions that people asked in public, in each environment and dtype."""

import copy
import json
from math import prod
from pathlib import Path

import pytest

import refcheck
from refcheck.measure import Unavailable, available

CASES = json.loads((Path(__file__).parent / "cases" / "cases.json").read_text(encoding="utf-8"))
UNREAD = "(not reachable by walk)"  # held by Python objects: any place that the ledger names will do


def runs():
    for case in CASES:
        for where, expected in case["expected"].items():
            yield pytest.param(case, *where.split("/"), expected, id=f"{case['id']}-{where.replace('/', '-')}")


def answer(case, device, dtype):
    try:
        available(device)
    except Unavailable as reason:
        pytest.skip(str(reason))
    names = {}
    exec(case["snippet"], names)
    return refcheck.record(names["case"], device, dtype)


def differences(led, expected):
    """Every way in which a ledger differs from what is expected."""
    if led.nbytes != expected["total_bytes"]:
        yield f"{led.nbytes} bytes on the device, {expected['total_bytes']} expected"
    if led.host_nbytes != expected["host_bytes"]:
        yield f"{led.host_nbytes} bytes on the host, {expected['host_bytes']} expected"
    left = [e for e in led.entries if e.cls not in ("parameter", "number")]
    for saved in sorted(expected["saved"], key=lambda s: s["attrs"] == [UNREAD]):
        found = next((e for e in left if matches(e, saved)), None)
        if found is None:
            yield f"not found: {saved}"
        else:
            left.remove(found)
    yield from (f"not expected: {e}" for e in left)


def matches(entry, saved):
    if (entry.dtype, entry.storage_bytes) != (saved["dtype"], saved["bytes"]):
        return False
    if saved["attrs"] == [UNREAD]:
        return prod(entry.shape) == prod(saved["shape"])
    holders = sorted([entry.holder, *entry.shared_with])
    return list(entry.shape) == saved["shape"] and holders == sorted(saved["attrs"])


@pytest.mark.parametrize(("case", "device", "dtype", "expected"), list(runs()))
def test_answer(case, device, dtype, expected):
    if "skipped" in expected:
        with pytest.raises(refcheck.Problem):
            answer(case, device, dtype)
    else:
        assert not list(differences(answer(case, device, dtype), expected))


def test_every_case_has_its_source():
    assert len({case["id"] for case in CASES}) == len(CASES) == 41
    assert all(case["source"] for case in CASES)


@pytest.mark.parametrize("plant", ["total", "host", "bytes", "dtype", "shape", "holder", "missing", "extra"])
def test_a_wrong_expectation_is_seen(plant):
    case = next(c for c in CASES if c["id"] == "relu_then_linear")
    expected = copy.deepcopy(case["expected"]["cpu/float32"])
    led = answer(case, "cpu", "float32")
    assert not list(differences(led, expected))
    saved = expected["saved"]
    match plant:
        case "total":
            expected["total_bytes"] += 1
        case "host":
            expected["host_bytes"] += 1
        case "bytes":
            saved[0]["bytes"] -= 4
        case "dtype":
            saved[0]["dtype"] = "bfloat16"
        case "shape":
            saved[0]["shape"] = saved[0]["shape"][::-1]
        case "holder":
            saved[1]["attrs"].pop()
        case "missing":
            saved.pop()
        case "extra":
            saved.append(saved[0])
    assert list(differences(led, expected))
