"""`make mutate`: how many mutants there are, how many are caught where they should be, and which are not.

    python -m tests.mutate [--layer LAYER …] [--kind KIND …] [--changed] [--jobs 2] [--json FILE]

Exits with 0 if no mutant survives but those that are expected to, 1 otherwise.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import torch

from refcheck import check, evidence
from refcheck.evidence import ROOT
from refcheck.score import FILE, Survivor, to_json
from tests.mutate import calculator, claims, errata, formulas, pages, records
from tests.mutate.mutant import Group, Mutant

MAKERS = (formulas, claims, records, pages, errata, calculator)


@dataclass(frozen=True)
class Tally:
    """What came of a group: of each kind how many were made; and those that survived."""

    subject: str
    made: dict[str, int]
    survivors: tuple[Survivor, ...]
    seconds: float


@cache
def groups() -> tuple[Group, ...]:
    return tuple(group for maker in MAKERS for group in maker.groups())


def chosen(args: argparse.Namespace) -> list[int]:
    """The numbers of the groups asked for; the largest kinds first, so that no process is left alone at the end."""
    changed = _changed() if args.changed else None
    return [
        n
        for n, group in enumerate(groups())
        if (not args.layer or group.subject in args.layer)
        and (not args.kind or group.kind in args.kind)
        and (changed is None or not changed.isdisjoint(group.files) or _engine(changed))
    ]


def _changed() -> set[str]:
    command = ["git", "-C", str(ROOT), "diff", "--name-only", "main"]
    try:
        return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n"))
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"mutate: --changed asks git for the difference from main: {error}")


def _engine(changed: set[str]) -> bool:
    """Whether anything changed that all mutants rest on."""
    return any(name.startswith(("refcheck/", "tests/mutate/")) and name.count("/") == 1 for name in changed)


def tried(number: int) -> Tally:
    """Every mutant of a group."""
    group, started = groups()[number], time.perf_counter()
    made: Counter[str] = Counter()
    survivors = []
    for mutant in group.mutants():
        made[mutant.kind] += 1
        if why := survived(mutant):
            survivors.append(Survivor(mutant.kind, group.subject, mutant.where, mutant.change, why))
    return Tally(group.subject, dict(made), tuple(survivors), time.perf_counter() - started)


def survived(mutant: Mutant) -> str:
    """Why a mutant counts as a survivor: nothing saw it, or what did doesn't name the place; "" if it was caught."""
    message = mutant.caught()
    if not message:
        return "not seen"
    lacking = [word for word in mutant.named if word not in message]
    return f"seen, without naming {', '.join(lacking)}: {message:.160}" if lacking else ""


def _warm() -> None:
    """Remembers what the checks work out of the same few forms, many thousand times; all of these are functions."""
    torch.set_num_threads(1)
    for module, name in ((evidence, "parse"), (evidence, "expand"), (check, "expand"), (check, "same_elements")):
        setattr(module, name, cache(getattr(module, name)))
    check.claim = cache(check.claim)


def run(numbers: Sequence[int], jobs: int) -> Iterator[Tally]:
    groups()
    with ProcessPoolExecutor(jobs, mp_context=get_context("fork"), initializer=_warm) as pool:
        for done in as_completed(pool.submit(tried, n) for n in numbers):
            yield done.result()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutate", description=__doc__)
    subjects, kinds = ({getattr(group, of) for group in groups()} for of in ("subject", "kind"))
    parser.add_argument("--layer", action="append", choices=sorted(subjects), metavar="LAYER", help="may be repeated")
    parser.add_argument("--kind", action="append", choices=sorted(kinds), help="may be repeated")
    parser.add_argument("--changed", action="store_true", help="what `git diff main` touches")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    parser.add_argument("--json", type=Path, help="where to write; the whole score goes to docs/assets, if not given")
    args = parser.parse_args(argv)
    started, made, survivors, slow = time.perf_counter(), Counter[str](), list[Survivor](), Counter[str]()
    for tally in run(chosen(args), args.jobs):
        made.update(tally.made)
        survivors += tally.survivors
        slow.update({f"{kind}": tally.seconds * n / sum(tally.made.values()) for kind, n in tally.made.items()})
        for s in tally.survivors:
            print(f"SURVIVED {s.kind}: {s.where}: {s.change}: {s.why}", flush=True)
    alive = Counter(s.kind for s in survivors)
    for kind, n in sorted(made.items()):
        print(f"{kind:20} {n - alive[kind]:7} of {n:7} caught, {slow[kind]:7.1f} s")
    print(f"{'all':20} {made.total() - alive.total():7} of {made.total():7} caught")
    partial_run = args.layer or args.kind or args.changed
    if target := args.json or (None if partial_run else FILE):
        evidence.replace(target, to_json(dict(made), survivors))
        print(f"{target}: written")
    print(f"mutate: {time.perf_counter() - started:.0f} s", file=sys.stderr)
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
