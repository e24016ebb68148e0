"""What is said of versions is counted from the records: a difference, a lack and its reason are named."""

from dataclasses import replace

import pytest

from refcheck import versions
from refcheck.blocks import BLOCKS
from refcheck.evidence import read_all
from refcheck.layers import LAYERS
from refcheck.words import VERSIONS

EVERY = (*LAYERS, *BLOCKS)
RECORDS = read_all()
OLDEST = min((n for n, r in RECORDS.items() if r.environment.device == "cpu"), key=lambda n: versions._age(RECORDS[n]))


def of(record, known=RECORDS):
    return next(v for v in versions.compare(known, EVERY) if v.record == record)


def changed(key, change):
    """The records, with one row of the oldest changed."""
    old = RECORDS[OLDEST]
    rows = tuple(change(row) if row.key == key else row for row in old.rows)
    return {**RECORDS, OLDEST: replace(old, rows=tuple(filter(None, rows)))}


def with_kept(row, change):
    first, *rest = row.runs
    return replace(row, runs=(replace(first, saved=change(first.saved)), *rest))


def test_versions_stand_in_their_order():
    assert versions._age(RECORDS["torch-2.9.1-cpu"]) < versions._age(RECORDS["torch-2.11.0-cpu"])
    assert versions.compare(RECORDS, EVERY)[0].record == OLDEST
    assert {v.record for v in versions.compare(RECORDS, EVERY)} == {*RECORDS}


@pytest.mark.parametrize("record", RECORDS)
def test_every_row_is_counted_once(record):
    v = of(record)
    newest = max((r for r in RECORDS.values() if r.environment.device == v.device), key=versions._age)
    assert v.alike + len(v.differ) == len(RECORDS[record].by_key.keys() & newest.by_key.keys())
    lacking = {key[:2] for key in newest.by_key.keys() - RECORDS[record].by_key.keys()}
    assert lacking == {*v.lacks}


DIFFERENT = {
    "a tensor more": lambda saved: (*saved, replace(saved[0], name="more")),
    "a tensor less": lambda saved: saved[1:],
    "its dtype": lambda saved: (replace(saved[0], dtype="float64"), *saved[1:]),
    "its node": lambda saved: (replace(saved[0], node="OtherBackward0"), *saved[1:]),
}


@pytest.mark.parametrize("change", DIFFERENT.values(), ids=DIFFERENT)
def test_a_difference_is_named(change, monkeypatch):
    key = ("softmax", "eager", "bfloat16")
    known = changed(key, lambda row: with_kept(row, change))
    assert of(OLDEST).differ == () and of(OLDEST, known).differ == (key,)
    monkeypatch.setattr(versions, "records", lambda: known)
    for lang in ("zh", "en"):
        assert "`softmax eager bfloat16`" in versions.versions(lang)


def test_the_order_of_tensors_is_no_difference():
    key = ("layernorm", "eager", "bfloat16")
    assert of(OLDEST, changed(key, lambda row: with_kept(row, lambda saved: saved[::-1]))).differ == ()


@pytest.mark.parametrize("lang", ["zh", "en"])
def test_every_reason_has_its_words(lang):
    reasons = {why for v in versions.compare(RECORDS, EVERY) for why in v.lacks.values()}
    assert reasons <= VERSIONS[lang].keys()
    assert all(VERSIONS[lang][why] in versions.lacking(lang) for why in reasons)
