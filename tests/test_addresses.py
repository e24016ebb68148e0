"""What is published stays: the list of addresses, and what breaks it."""

import subprocess
import sys

import pytest

from refcheck import addresses
from refcheck.evidence import ROOT

KNOWN = {"p/": "", "p/#saved-x": "", "p/#gradient-eq1": "aaaa", "p/#gradient-eq2": "bbbb"}
BREAKS = {
    "a row vanishes": ({"p/#saved-x": None}, "p/#saved-x has vanished"),
    "a page vanishes": ({"p/": None}, "p/ has vanished"),
    "a formula is put before another": (
        {"p/#gradient-eq1": "cccc", "p/#gradient-eq2": "aaaa", "p/#gradient-eq3": "bbbb"},
        "the formula of p/#gradient-eq1 is now at p/#gradient-eq2",
    ),
}
KEEPS = {
    "nothing changes": {},
    "a row is added": {"p/#saved-y": ""},
    "a formula is corrected": {"p/#gradient-eq1": "cccc"},
    "a formula with a name is put before others": {"p/#gradient-dx": "cccc"},
}


def changed(change):
    return {address: mark for address, mark in (KNOWN | change).items() if mark is not None}


@pytest.mark.parametrize("change, said", BREAKS.values(), ids=BREAKS)
def test_what_breaks_an_address(change, said):
    assert any(fault.startswith(said) for fault in addresses.broken(KNOWN, changed(change)))


@pytest.mark.parametrize("change", KEEPS.values(), ids=KEEPS)
def test_what_breaks_none(change):
    assert [*addresses.broken(KNOWN, changed(change))] == []


PAGE = (
    '<nav id="menu"></nav><article><h1 id="p">P</h1><input id="__tabbed_1">'
    '<div class="stated" id="p-eq1"><annotation encoding="x">a &lt; {}</annotation></div>'
    '<td><span id="saved-x"></span><code class="saved" id="saved-eager-x">x</code></td></article>'
)


def site_of(folder, tex="b"):
    for lang in ("", "en"):
        (folder / lang / "p").mkdir(parents=True)
        (folder / lang / "p" / "index.html").write_text(PAGE.format(tex), encoding="utf-8")
    return folder


def test_what_a_site_publishes(tmp_path):
    found = addresses.published(site_of(tmp_path))
    assert [*found] == ["p/", "p/#p", "p/#p-eq1", "p/#saved-x", "p/#saved-eager-x"]
    assert found["p/#p-eq1"] and not found["p/#saved-x"]
    other = addresses.published(site_of(tmp_path / "other", "c"))
    assert other["p/#p-eq1"] != found["p/#p-eq1"]


def test_the_list_is_read_as_it_is_written(tmp_path):
    path = tmp_path / "list.txt"
    addresses.write(KNOWN | {"": "", "#top": ""}, path)
    assert addresses.read(path) == KNOWN | {"": "", "#top": ""}
    lines = path.read_text().splitlines()
    assert lines == sorted(lines) and lines[1] == "."


def test_the_committed_list_is_sorted():
    lines = addresses.LIST.read_text(encoding="utf-8").splitlines()
    assert len(lines) > 1000 and lines == sorted(set(lines))


def test_a_vanished_address_leaves_the_list_as_it_was(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(addresses, "LIST", tmp_path / "list.txt")
    site = site_of(tmp_path / "site")
    assert addresses.main([str(site)]) == 0
    before = addresses.LIST.read_text()
    (site / "p" / "index.html").write_text(PAGE.format("b").replace("saved-eager-x", "other"), encoding="utf-8")
    assert addresses.main([str(site)]) == 1
    assert addresses.LIST.read_text() == before
    assert "p/#saved-eager-x has vanished" in capsys.readouterr().err


def test_a_folder_without_pages_is_an_error(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "refcheck.addresses", str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (1, "") and "holds no page" in done.stderr
