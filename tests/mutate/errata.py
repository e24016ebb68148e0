"""The errata: each verdict, and each word of each fact that shows it. `refcheck.errata` must name the entry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from refcheck import errata
from refcheck.errata import ENTRIES, Entry
from refcheck.facts import VERDICTS, Fact, Says
from tests.mutate.mutant import Group, Mutant

FILES = ("refcheck/errata.py", "refcheck/facts.py")


def groups() -> Iterator[Group]:
    for entry in ENTRIES:
        yield Group("errata", "erratum", FILES, partial(_of, entry))


def _of(entry: Entry) -> Iterator[Mutant]:
    for verdict in VERDICTS:
        if verdict != entry.verdict:
            wrong = replace(entry, verdict=verdict)
            yield Mutant(
                "verdict", entry.id, f"{entry.verdict} becomes {verdict}", (entry.id,), partial(_mistake, wrong)
            )
    for n, shown in enumerate(entry.shown):
        call = shown.judge if isinstance(shown, Says) else shown.instead
        for what, other in changes(call):
            text = f"{shown.text}: {what}"
            new = Says(text, other) if isinstance(shown, Says) else Fact(text, other)
            wrong = replace(entry, shown=(*entry.shown[:n], new, *entry.shown[n + 1 :]))
            yield Mutant("fact", entry.id, text, (entry.id,), partial(_mistake, wrong))


def changes(call: Callable[..., Any]) -> Iterator[tuple[str, Callable[..., Any]]]:
    """(which word, the call with it changed) for each word of its arguments; each string is a list of words."""
    assert isinstance(call, partial)
    for n, argument in enumerate(call.args):
        for what, other in _words(argument):
            yield what, partial(call.func, *call.args[:n], other, *call.args[n + 1 :], **call.keywords)
    for name, argument in call.keywords.items():
        for what, other in _words(argument):
            yield f"{name}: {what}", partial(call.func, *call.args, **{**call.keywords, name: other})


def _words(argument: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(argument, str):
        words = argument.split()
        for n, word in enumerate(words):
            yield f"{word} becomes other", " ".join([*words[:n], "other", *words[n + 1 :]])
    elif isinstance(argument, tuple):
        for n, part in enumerate(argument):
            for what, other in _words(part):
                yield what, (*argument[:n], other, *argument[n + 1 :])
    elif isinstance(argument, dict):
        for key, part in argument.items():
            for what, other in _words(part):
                yield f"{key}: {what}", {**argument, key: other}


def _mistake(entry: Entry) -> str:
    return next((str(m) for m in errata.check([entry])), "")
