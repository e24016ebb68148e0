"""A record's date can't lie ahead, nor before its commit; where git knows nothing, nothing is said."""

from dataclasses import replace

import pytest

from refcheck import evidence, origin
from refcheck.evidence import ROOT, read_all

RECORD = next(iter(read_all().values()))
HEAD = evidence.output("git", "-C", str(ROOT), "rev-parse", "HEAD")
KNOWN = pytest.mark.skipif(HEAD is None, reason="no git here")


def dated(date, commit=None):
    environment = replace(RECORD.environment, date=date, commit=commit)
    return [d.claimed for d in origin.check_origin(replace(RECORD, environment=environment))]


@pytest.mark.parametrize("record", read_all().values(), ids=lambda r: r.environment.name)
def test_the_committed_records_have_possible_dates(record):
    assert list(origin.check_origin(record)) == []


def test_a_date_ahead():
    assert dated("2199-01-01") == ["not in the future"]


@KNOWN
@pytest.mark.parametrize("suffix", ["", "-dirty"])
def test_a_date_before_its_commit(suffix):
    (found,) = dated("2020-01-01", f"{HEAD[:12]}{suffix}")
    assert found.startswith(f"not before its commit {HEAD[:12]}{suffix}, of 20")


def test_a_commit_that_nobody_knows_says_nothing():
    assert dated("2020-01-01", "0123456789ab") == dated("2020-01-01") == []
