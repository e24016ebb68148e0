"""The commands: prove, measure, check, verify, table, audit."""

from __future__ import annotations

import argparse
import codecs
import io
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

try:
    import sympy  # noqa: F401
    import torch
except ModuleNotFoundError as missing:
    wanted = {"torch": "torch>=2.9", "sympy": "sympy"}.get(missing.name or "", missing.name)
    install = f"{sys.executable} -m pip install '{wanted}'"
    sys.exit(f"refcheck: this Python has no {missing.name}: {install}, or use `make verify` without PYTHON=")

from refcheck import (
    Problem,
    audit_command,
    check,
    errata,
    evidence,
    gpu,
    join,
    measure,
    observe,
    origin,
    pages,
    prove,
    reconcile,
    report,
    rows,
    tables,
)
from refcheck.block import Block
from refcheck.blocks import BLOCKS
from refcheck.layers import LAYERS
from refcheck.sizes import DEVICES, DTYPES
from refcheck.spec import Layer, Uncompilable, absence

OLDEST = (2, 9)
EVERY: tuple[Layer | Block, ...] = (*LAYERS, *BLOCKS)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; 0 if all holds, 1 if something does not, 2 if it can't be tried."""
    _printable()
    args = _parser().parse_args(argv)
    try:
        if tuple(map(int, torch.__version__.split(".")[:2])) < OLDEST:
            raise Problem(f"torch {torch.__version__} is too old: 2.9 or newer is needed")
        started = time.perf_counter()
        code = args.run(args)
        done = args.run in (_table, _measure) and code == 0
        verdict = "done" if done else "all holds" if code == 0 else "NOT all holds"
        print(f"{args.command}: {verdict}, {time.perf_counter() - started:.1f} s", file=sys.stderr)
        return code
    except Problem as problem:
        print(f"refcheck: {problem}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        return 141
    except KeyboardInterrupt:
        print("refcheck: interrupted; nothing was half-written", file=sys.stderr)
        return 130


def _printable() -> None:
    """Makes standard output take every character: UTF-8 where the locale knows ASCII only, else ``\\u2192`` for →."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
            if codecs.lookup(stream.encoding).name == "ascii":
                stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m refcheck", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    known = [layer.id for layer in EVERY]
    for name, run, about in (
        (
            "prove",
            _prove,
            "prove that each backward is the derivative of its forward, at every size, and agrees with torch",
        ),
        ("measure", _measure, "measure what autograd keeps, and write the records in docs/evidence"),
        ("check", _check, "compare the claims with the committed records and the pages"),
        ("verify", _verify, "prove, measure afresh, and compare claims, measurements and records"),
        ("table", _table, "print the table"),
    ):
        command = commands.add_parser(name, help=about, description=about)
        command.set_defaults(run=run)
        command.add_argument(
            "--layer",
            action="append",
            choices=known,
            metavar="LAYER",
            help=f"one of {', '.join(known)}; may be repeated",
        )
        command.add_argument(
            "--device", action="append", choices=DEVICES, help="may be repeated; all that can be had here, if not given"
        )
        command.add_argument("--dtype", action="append", choices=DTYPES, help="may be repeated; all, if not given")
        command.add_argument("--json", metavar="FILE", help="write the facts as JSON; - for standard output")
        if name == "table":
            command.add_argument("--lang", choices=("zh", "en"), default="en")
            command.add_argument("--csv", metavar="FILE", help="write the rows as CSV; - for standard output")
    audit_command.add_parser(commands, DEVICES, DTYPES)
    return parser


def _layers(args: argparse.Namespace) -> list[Layer]:
    return [layer for layer in LAYERS if not args.layer or layer.id in args.layer]


def _chosen(args: argparse.Namespace) -> list[Layer | Block]:
    """The layers and the blocks asked for."""
    return [*_layers(args), *(block for block in BLOCKS if not args.layer or block.id in args.layer)]


def _devices(args: argparse.Namespace) -> list[str]:
    """The devices asked for, or all that can be had here; what is left out is said."""
    if args.device:
        for device in args.device:
            measure.available(device)
        return [d for d in DEVICES if d in args.device]
    found = []
    for device in DEVICES:
        try:
            measure.available(device)
            found.append(device)
        except measure.Unavailable as reason:
            print(f"not measured: {reason}", file=sys.stderr)
    return found


def _say(args: argparse.Namespace, line: str) -> None:
    if args.json != "-":
        print(line, flush=True)


def _write(target: str | None, text: str) -> None:
    if target == "-":
        print(text, end="")
    elif target:
        try:
            evidence.replace(Path(target), text)
        except OSError as error:
            raise Problem(
                f"can't write {target}: {error.strerror}; name a file in a folder that exists and is writable"
            ) from None


def _write_json(args: argparse.Namespace, facts: Any) -> None:
    escaped = args.json == "-" and codecs.lookup(sys.stdout.encoding or "utf-8").name != "utf-8"
    _write(args.json, json.dumps(facts, indent=1, ensure_ascii=escaped) + "\n")


def _prove(args: argparse.Namespace) -> int:
    _say_absent(args, "cpu", ("float64",))
    findings = [f for layer in _layers(args) for f in _told(args, prove.prove(layer))]
    _write_json(args, [asdict(f) for f in findings])
    _say(args, f"{sum(f.holds for f in findings)} of {len(findings)} hold")
    return 0 if all(f.holds for f in findings) else 1


def _told(args: argparse.Namespace, findings: Iterator[prove.Finding]) -> Iterator[prove.Finding]:
    for finding in findings:
        _say(args, str(finding))
        yield finding


def _say_absent(args: argparse.Namespace, device: str, dtypes: Sequence[str]) -> None:
    for layer in _chosen(args):
        for one in layer.implementations:
            for dtype in dtypes:
                if reason := absence(one, device, dtype, torch.__version__):
                    _say(args, f"not run {device}: {layer.id} {one.id} {dtype}: {reason}")


Outcome = evidence.Row | evidence.Missing | check.Drift


def _measured(args: argparse.Namespace, device: str) -> Iterator[tuple[str, Any, Any, Outcome]]:
    """Every row of a device, with its place among them: measured, or why it can't be, or what is wrong with it."""
    dtypes = args.dtype or DTYPES
    _say_absent(args, device, dtypes)
    cases = list(check.cases(_chosen(args), device, dtypes, torch.__version__))
    for told in (*(gpu.notes() if device == "cuda" else ()), *(report.header(device) if cases else ())):
        _say(args, told)
    for n, (layer, implementation, dtype) in enumerate(cases, 1):
        outcome = _outcome(layer, implementation, device, dtype)
        if isinstance(outcome, evidence.Missing):
            _say(args, f"not run {device}: {' '.join(outcome.key)}: {outcome.reason}")
            if device != "cuda":
                continue
        yield f"{n}/{len(cases)}", layer, implementation, outcome
        if isinstance(outcome, check.Drift) and outcome.what == gpu.Lost.__name__:
            return


def _outcome(layer: Any, implementation: Any, device: str, dtype: str) -> Outcome:
    key = check.key(layer, implementation, dtype)
    try:
        return check.measure_row(layer, implementation, device, dtype)
    except measure.Untraceable as reason:
        if (evidence.FOLDER / f"{check.here_name(device)}.json").exists():
            raise  # it could, when that record was made
        return evidence.Missing(*key, str(reason))
    except (gpu.Unfit, Uncompilable) as reason:
        return evidence.Missing(*key, str(reason))
    except (observe.Disagreement, join.Unexplained, measure.Failed, gpu.Lost) as wrong:
        what, claimed = type(wrong).__name__, "that it can be measured"
        mend = f"please report it with the output of: python -m refcheck verify --layer {layer.id} --device {device}"
        return check.Drift(*key, f"fresh {device}", "", what, claimed, str(wrong), mend)


def _measure(args: argparse.Namespace) -> int:
    facts, drifts = [], []
    for device in _devices(args):
        known = {check.key(*case): None for case in check.cases(EVERY, device, torch=torch.__version__)}
        outcomes = list(_measured_and_told(args, device))
        rows = tuple(outcome for outcome in outcomes if isinstance(outcome, evidence.Row))
        missing = tuple(outcome for outcome in outcomes if isinstance(outcome, evidence.Missing))
        drifts += [outcome for outcome in outcomes if isinstance(outcome, check.Drift)]
        fresh = evidence.Record(evidence.here(device), rows, missing)
        path = evidence.FOLDER / f"{fresh.environment.name}.json"
        with evidence.locked(evidence.FOLDER):  # another `measure` may have added rows in the meantime
            old = evidence.read(path) if path.exists() else None
            record = evidence.merge(old, fresh, known)
            if old and evidence.same(old, record):
                _say(args, f"{path.name}: as it was")
            elif record.rows:
                _say(args, f"{path.name}: written, {len(rows)} of its {len(record.rows)} rows measured now")
                evidence.write(record)
        facts.append(json.loads(evidence.to_json(record)))
    _write_json(args, facts)
    return _report(args, drifts)


def _measured_and_told(args: argparse.Namespace, device: str) -> Iterator[Outcome]:
    for place, layer, implementation, outcome in _measured(args, device):
        if isinstance(outcome, evidence.Row):
            wrong = list(check.against_claim(layer, implementation, device, outcome, f"fresh {device}"))
            _say(args, report.line(device, place, implementation, outcome, len(wrong)))
        yield outcome


def _report(args: argparse.Namespace, drifts: Sequence[check.Drift]) -> int:
    for drift in drifts:
        _say(args, f"DRIFT {drift}")
    return 1 if drifts else 0


def _check(args: argparse.Namespace) -> int:
    drifts = _drifts(args)
    _write_json(args, [asdict(d) for d in drifts])
    return _report(args, drifts)


def _drifts(args: argparse.Namespace) -> list[check.Drift]:
    records = {n: r for n, r in evidence.read_all().items() if not args.device or r.environment.device in args.device}
    recorded = [d for r in records.values() for d in check.check_record(r, _chosen(args), EVERY)]
    recorded += [d for r in records.values() for d in origin.check_origin(r)]
    judged = [] if args.layer else errata.mistakes()
    mend = "look at refcheck/errata.py"
    wrong = [check.Drift(m.entry, "", "", check.PAGE, "", "erratum", m.what, m.instead, mend) for m in judged]
    unnamed = [] if args.layer else reconcile.mistakes()
    look = "look at refcheck/reconcile.py"
    wrong += [check.Drift(at, "", "", check.PAGE, "", "difference", "every byte named", m, look) for at, m in unnamed]
    return recorded + list(pages.check_pages(_layers(args))) + wrong


def _verify(args: argparse.Namespace) -> int:
    findings = [f for layer in _layers(args) for f in _told(args, prove.prove(layer))]
    records = evidence.read_all()
    drifts, missing = _drifts(args), []
    for device in _devices(args):
        for place, layer, implementation, outcome in _measured(args, device):
            if isinstance(outcome, evidence.Missing):
                missing.append(outcome)
            elif isinstance(outcome, check.Drift):
                drifts.append(outcome)
                _say(args, f"{place} {device}: {' '.join(check.key(layer, implementation, outcome.dtype))}: DRIFT")
            else:
                wrong = check.check_fresh(outcome, layer, implementation, device, records)
                drifts += wrong
                _say(args, report.line(device, place, implementation, outcome, len(wrong)))
        if check.here_name(device) not in records:
            _say(
                args,
                f"no record of {check.here_name(device)} yet; to add it: python -m refcheck measure --device {device}",
            )
    facts: dict[str, Sequence[Any]] = {"findings": findings, "drifts": drifts, "not_run": missing}
    _write_json(args, {what: [asdict(fact) for fact in found] for what, found in facts.items()})
    code = _report(args, drifts)
    for finding in findings:
        if not finding.holds:
            _say(args, f"REFUTED {finding}")
            code = 1
    return code


def _table(args: argparse.Namespace) -> int:
    layers, dtypes = _layers(args), args.dtype or DTYPES
    found = list(rows.rows(_chosen(args), args.device or DEVICES, dtypes))
    _write_json(args, found)
    _write(args.csv, rows.as_csv(found))
    if not args.json and not args.csv:
        print(tables.summary(args.lang, layers, dtypes[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
