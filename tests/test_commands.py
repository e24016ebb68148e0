"""The commands that README, CONTRIBUTING and the pages show are commands: make has the target, the parser takes it."""

import re
import shlex

import pytest

from refcheck.__main__ import _parser
from refcheck.evidence import ROOT

FILES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("??/**/*.md"))]
TARGETS = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
NEW = "silu"  # the layer that README adds as an example
BY_TARGET = {"verify": "verify"}  # whose ARGS go to a command of refcheck


def commands(text):
    """(command, line) of every `make …` and `python -m refcheck …` in the text, in a block or in a line of prose."""
    found = list(re.finditer(r"`((?:[\w./]*python3? -m refcheck|make) [^`\n]+)`", text))
    for block in re.finditer(r"^ *```sh\n(.*?)^ *```", text, re.M | re.S):
        for line in re.finditer(r"^[^\n]+$", block[1], re.M):
            yield line[0].partition(" #")[0].strip(), text.count("\n", 0, block.start(1) + line.start()) + 1
    for match in found:
        yield match[1], text.count("\n", 0, match.start()) + 1


def wrong(command):
    """What is wrong with a command; the empty string if nothing is, or if it is none of ours."""
    words = shlex.split(command.replace(f"--layer {NEW}", "--layer softmax"))
    if "…" in command or not words:
        return ""
    if words[0] == "make":
        rest = [word for word in words[1:] if "=" not in word]
        if unknown := set(rest) - TARGETS:
            return f"make has no {', '.join(unknown)}"
        arguments = next((word.removeprefix("ARGS=") for word in words if word.startswith("ARGS=")), "")
        if rest and rest[0] in BY_TARGET:
            return parsed([BY_TARGET[rest[0]], *shlex.split(arguments)])
    elif words[1:3] == ["-m", "refcheck"]:
        return parsed(words[3:])
    return ""


def parsed(arguments):
    try:
        _parser().parse_args(arguments)
    except SystemExit as stop:
        return f"refcheck does not take {arguments}" if stop.code else ""
    return ""


SHOWN = [
    pytest.param(command, id=f"{path.relative_to(ROOT).as_posix()}:{line} {command}"[:90])
    for path in FILES
    for command, line in commands(path.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize("command", SHOWN)
def test_a_command_that_is_shown_can_be_given(command):
    assert wrong(command) == ""


@pytest.mark.parametrize(
    "command",
    [
        "make verifiy",
        "make verify ARGS='--layer softmx'",
        "make verify ARGS='--device cpu --dtype bf16'",
        ".venv/bin/python -m refcheck chek",
        "python3 -m refcheck measure --device gpu",
        "python3 -m refcheck table --jsn -",
    ],
)
def test_a_command_that_is_none_is_seen(command):
    assert wrong(command) != ""
    assert [c for c, _ in commands(f"```sh\n{command}\n```\n")] == [command]
