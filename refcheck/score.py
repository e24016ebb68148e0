"""The score of the mutation gate, `make mutate`: how many mutants were made, how many caught, and which survived.

The file is written by the gate; what it says is of the code as it was then.  `stale` says what has changed since.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from refcheck import Problem
from refcheck.evidence import COMMIT, ROOT, output

FILE = ROOT / "docs" / "assets" / "mutants.json"
PARTS = {
    "claims": ("refcheck/layers/*.py", "refcheck/blocks/*.py"),
    "engine": ("refcheck/*.py", "tests/mutate/*.py"),
    "pages": ("docs/zh/**/*.md", "docs/en/**/*.md"),
    "records": ("docs/evidence/*.json",),
}


@dataclass(frozen=True)
class Survivor:
    """A mutant that no check caught, or none that names the place; `why` says which."""

    kind: str
    subject: str
    where: str
    change: str
    why: str


@dataclass(frozen=True)
class Score:
    commit: str | None
    date: str
    parts: Mapping[str, str]  # of what the mutants were made, each with a hash of its files
    made: Mapping[str, int]
    survivors: tuple[Survivor, ...]

    def alive(self, kind: str) -> int:
        return sum(s.kind == kind for s in self.survivors)

    @property
    def stale(self) -> tuple[str, ...]:
        """The parts that have changed since the mutants were made."""
        return tuple(part for part, known in self.parts.items() if known != code_hash(part))


def code_hash(part: str) -> str:
    """A hash of the files of a part: their names and what is in them."""
    total = hashlib.sha256()
    for path in sorted({p for pattern in PARTS[part] for p in ROOT.glob(pattern)}):
        total.update(f"{path.relative_to(ROOT).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return total.hexdigest()[:16]


def to_json(made: Mapping[str, int], survivors: Iterable[Survivor]) -> str:
    """The score of just now, as the file has it."""
    whole: dict[str, Any] = dict(
        commit=output("git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"),
        date=datetime.now(UTC).date().isoformat(),
        parts={part: code_hash(part) for part in PARTS},
        made=dict(sorted(made.items())),
        survivors=[asdict(s) for s in sorted(survivors, key=str)],
    )
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def read(path: Path) -> Score:
    """The score in a file.  Raises `Problem` if it is no such file."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        score = Score(**{**data, "survivors": tuple(Survivor(**s) for s in data["survivors"])})
        words = [getattr(s, f.name) for s in score.survivors for f in fields(s)] + [*score.parts.values(), score.date]
        if not all(isinstance(w, str) for w in words) or not all(type(n) is int for n in score.made.values()):
            raise ValueError("a field is of another type")
        odd = {kind for kind in score.made if not re.fullmatch("[a-z]+((-|,? )[a-z]+)*", kind)}
        if unknown := odd | score.parts.keys() - PARTS.keys():
            raise ValueError(f"it speaks of {', '.join(sorted(map(repr, unknown)))}")
        datetime.strptime(score.date, "%Y-%m-%d")
        if score.commit is not None and not re.fullmatch(COMMIT, score.commit):
            raise ValueError(f"its commit is {score.commit!r}")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OSError) as error:
        raise Problem(f"{path}: {error}; write it anew: make mutate") from None
    return score
