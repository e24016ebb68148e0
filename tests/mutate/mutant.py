"""A mutant, and a group of mutants that share their work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """One change: `where` it is, and the check that must catch it.

    `caught` runs that check and gives its message, the empty string if it sees nothing; an exception it lets through
    is no message.  `named` are words of which the message must have all, so that one knows where to look.
    """

    kind: str
    where: str
    change: str
    named: tuple[str, ...]
    caught: Callable[[], str]


@dataclass(frozen=True)
class Group:
    """Mutants of one layer, page or record; `files` are those that they are about, relative to the checkout."""

    subject: str
    kind: str
    files: tuple[str, ...]
    mutants: Callable[[], Iterator[Mutant]]
