"""The mutation gate counts what it should: a mutant that nobody sees, or nobody names, survives; the score is data."""

import json
from collections import Counter

import pytest

from refcheck import Problem, score, tables
from refcheck.layers import LAYERS
from refcheck.score import Survivor
from refcheck.words import MUTANTS
from tests.mutate import calculator, formulas, gradients
from tests.mutate.__main__ import groups, survived
from tests.mutate.mutant import Mutant

SOFTMAX = [g for g in groups() if g.subject == "softmax" and not g.files[0].endswith(".json")]


@pytest.mark.parametrize("message, why", [("", "not seen"), ("somewhere", "without naming P"), ("P is wrong", "")])
def test_a_mutant_is_caught_by_a_message_that_names_it(message, why):
    found = survived(Mutant("claim", "softmax", "P dropped", ("P",), lambda: message))
    assert why in found and bool(found) == bool(why)


@pytest.mark.parametrize("group", SOFTMAX, ids=lambda g: g.kind)
def test_every_mutant_of_softmax_is_caught(group):
    """But for calls changed alike in both languages, which fill in as well as before."""
    made = list(group.mutants())
    assert made and all(mutant.kind in MUTANTS["en"] for mutant in made)
    assert [m for m in made if m.kind != "call, alike in both" and survived(m)] == []


def test_every_kind_of_group_is_there():
    kinds = Counter(g.kind for g in groups())
    assert kinds.keys() == {"gradient", "forward", "needed", "claim", "record", "page", "erratum", "calculator"}
    assert all(kinds[kind] >= len(LAYERS) for kind in kinds.keys() - {"calculator"})


def test_a_check_that_sees_nothing_lets_mutants_survive(monkeypatch):
    monkeypatch.setattr(formulas, "symbolic", lambda layer, pair: [])
    (group,) = (g for g in SOFTMAX if g.kind == "needed")
    assert {survived(m) for m in group.mutants() if "place" not in m.change} == {"not seen"}
    monkeypatch.setattr(gradients.Wrong, "findings", lambda self: iter([]))
    (group,) = (g for g in SOFTMAX if g.kind == "gradient")
    assert {survived(m) for m in group.mutants()} == {"not seen"}


@pytest.mark.parametrize("lang", ["zh", "en"])
def test_what_the_calculator_exports_is_what_is_claimed(lang):
    data = calculator.calculator.export(lang)
    assert calculator.numbers(data).keys() == calculator.claimed().keys()
    assert list(calculator.wrong(data, [*calculator.claimed()])) == []


WORDS = dict(kind="claim", subject="softmax", where="softmax eager", change="P dropped", why="not seen")


@pytest.fixture
def file(tmp_path, monkeypatch):
    path = tmp_path / "mutants.json"
    path.write_text(score.to_json({"claim": 3, "heading": 2}, [Survivor(**WORDS)]), encoding="utf-8")
    monkeypatch.setattr(score, "FILE", path)
    return path


@pytest.mark.parametrize("lang", ["zh", "en"])
def test_the_page_shows_the_score_and_what_has_changed_since(file, lang, monkeypatch):
    assert score.read(file).stale == ()
    shown, words = tables.mutants(lang), MUTANTS[lang]
    for row in ((words["claim"], 3, 2), (words["heading"], 2, 2), (words["all"], 5, 4)):
        assert "| " + " | ".join(map(str, row)) + " |" in shown
    assert words["stale"].partition("{")[0] not in shown
    monkeypatch.setitem(score.PARTS, "pages", ("docs/zh/index.md",))
    assert words["stale"].format(parts=words["pages"]) in tables.mutants(lang)


def test_without_a_score_the_page_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(score, "FILE", tmp_path / "none.json")
    assert tables.mutants("en") == MUTANTS["en"]["none"]


DAMAGE = {
    "truncated": lambda text: text[:40],
    "a field more": lambda text: json.dumps({**json.loads(text), "more": 1}),
    "a count of text": lambda text: json.dumps({**json.loads(text), "made": {"claim": "3"}}),
    "a list": lambda text: "[]",
    "no date": lambda text: json.dumps({**json.loads(text), "date": "<b>"}),
    "no commit": lambda text: json.dumps({**json.loads(text), "commit": "<script>"}),
    "no text": lambda text: json.dumps({**json.loads(text), "survivors": [{**WORDS, "why": 1}]}),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_score_is_refused(damage, file):
    file.write_text(damage(file.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(Problem, match="make mutate"):
        score.read(file)
