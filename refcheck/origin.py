"""Where a record says it comes from: its date can't lie ahead, nor before the commit that it was measured at.

A commit that git doesn't know here (another's branch, a shallow clone, no git at all) says nothing about the date.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta

from refcheck.check import Drift
from refcheck.evidence import ROOT, Record, output


def check_origin(record: Record) -> Iterator[Drift]:
    """A date that can't be; raises nothing."""
    where = record.environment
    measured = date.fromisoformat(where.date)
    committed = _committed((where.commit or "").removesuffix("-dirty"))
    if committed and measured < committed - timedelta(days=1):  # clocks of other zones
        yield _drift(record, f"not before its commit {where.commit}, of {committed}")
    if measured > datetime.now(UTC).date() + timedelta(days=1):
        yield _drift(record, "not in the future")


def _drift(record: Record, wanted: str) -> Drift:
    again = f"python -m refcheck measure --device {record.environment.device}"
    return Drift("", "", "", record.environment.name, "", "date", wanted, record.environment.date, again)


def _committed(commit: str) -> date | None:
    """The day of a commit, if git knows it."""
    day = output("git", "-C", str(ROOT), "show", "-s", "--format=%cs", f"{commit}^{{commit}}") if commit else None
    return date.fromisoformat(day) if day else None
