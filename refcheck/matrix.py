"""`make matrix`: measures in an environment of its own for each version of torch, and rewrites the records.

An environment is a folder in the cache, made once with pip.  Its stamp is written last, so that one that was not
finished is made anew.  Nothing is installed into the Python that runs this.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from refcheck import Problem
from refcheck.evidence import ROOT, output, read_all

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "refcheck-matrix"
STAMP = ".installed"
HAS_CUDA = "import torch; print('cuda' if torch.version.cuda else 'none')"


def known() -> list[str]:
    """The versions of torch that there are records of, oldest first."""
    found = {record.environment.torch for record in read_all().values()}
    return sorted(found, key=lambda version: [int(n) for n in re.findall(r"\d+", version)])


def packages(version: str) -> list[str]:
    """What an environment holds: torch in this version, and what the engine needs besides."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise Problem(f"{version!r} is no released version of torch, such as 2.13.0")
    return [f"torch=={version}", "sympy", "numpy"]


def environment(version: str, cache: Path = CACHE) -> Path:
    """The Python of the environment, which is made if it isn't there.  Raises `Problem`."""
    wanted, place = packages(version), cache / f"torch-{version}"
    python = place / "bin" / "python"
    if (place / STAMP).exists():
        return python
    shutil.rmtree(place, ignore_errors=True)
    for command in ([sys.executable, "-m", "venv", str(place)], [str(python), "-m", "pip", "install", *wanted]):
        if run(command):
            raise Problem(f"torch {version} can't be installed into {place} (see above)")
    (place / STAMP).touch()
    return python


def devices(python: Path) -> list[str]:
    """Where this Python's torch can measure without a GPU: on the CPU, and traced where it is a CUDA build."""
    return ["cpu", *(["cuda-trace"] if output(str(python), "-c", HAS_CUDA) == "cuda" else [])]


def run(command: Sequence[str]) -> int:
    print("$", *command, flush=True)
    return subprocess.run(command, cwd=ROOT).returncode


def matrix(versions: Iterable[str], cache: Path = CACHE) -> list[str]:
    """Measures in each version; what failed, a line each.  One version's failure doesn't keep the others from it."""
    failed = []
    for version in versions:
        try:
            python = environment(version, cache)
        except Problem as problem:
            failed.append(str(problem))
            continue
        for device in devices(python):
            if code := run([str(python), "-m", "refcheck", "measure", "--device", device]):
                failed.append(f"torch {version}, {device}: `measure` ended with {code} (see above)")
    return failed


def main(argv: Sequence[str] | None = None) -> int:
    """0 if every version was measured and nothing drifted, 1 if something did, 2 if it can't be tried."""
    parser = argparse.ArgumentParser(prog="python -m refcheck.matrix", description=__doc__)
    parser.add_argument("versions", nargs="*", metavar="VERSION", help="of torch; all that have records, if not given")
    parser.add_argument("--cache", type=Path, default=CACHE, help=f"where the environments are kept ({CACHE})")
    args = parser.parse_args(argv)
    try:
        chosen = args.versions or known()
        for version in chosen:
            packages(version)  # before the first is installed
        failed = matrix(chosen, args.cache)
    except Problem as problem:
        print(f"matrix: {problem}", file=sys.stderr)
        return 2
    for line in failed:
        print(f"matrix: {line}", file=sys.stderr)
    print(f"matrix: {len(chosen)} versions, {len(failed)} failures; git diff docs/evidence shows what changed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
