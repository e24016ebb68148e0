"""The errata: every cell of the article has its entry, every verdict follows, and what no longer holds is named."""

import re
from dataclasses import replace

import pytest

from refcheck import errata, facts, spec, tables
from refcheck.errata import ENTRIES, GROUPS
from refcheck.facts import VERDICTS, Says
from refcheck.layers import LAYERS, layernorm, softmax
from refcheck.prove import Finding

ATTENTION = "embedding layernorm-1 qkv scores mask softmax attention-dropout attention-value out-proj residual-1"
FFN = "layernorm-2 ffn-gelu-linear-1 gelu ffn-swiglu-linear-1 swiglu ffn-linear-2 ffn-dropout residual-2 lm-head"
ROWS = (*ATTENTION.split(), *FFN.split())
SECTIONS = ("linear", "dropout", "residual", "layernorm", "gelu", "softmax")
BY_ID = {entry.id: entry for entry in ENTRIES}


def test_every_verdict_follows_and_every_fact_holds():
    assert [str(m) for m in errata.mistakes()] == []


def test_every_cell_and_every_section_has_its_entries():
    assert [g.id for g in GROUPS] == ["principle", *(f"section-{s}" for s in SECTIONS), *(f"cell-{r}" for r in ROWS)]
    assert len(BY_ID) == len(ENTRIES) == sum(len(g.entries) for g in GROUPS)
    for row in ROWS:
        assert [e.part for e in ENTRIES if e.group == f"cell-{row}"] == ["formula", "saved", "shape"]
    for section in SECTIONS:
        assert f"section-{section}-saved" in BY_ID


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)
def test_an_entry_says_what_is_to_be_corrected_in_both_languages(entry):
    assert entry.quote and entry.shown
    assert bool(entry.zh) == bool(entry.en)
    assert entry.zh or entry.verdict == "right"
    assert set(re.findall(r"\$[^$]*\$", entry.zh)) == set(re.findall(r"\$[^$]*\$", entry.en))


@pytest.mark.parametrize("entry", [e for e in ENTRIES if isinstance(e.shown[0], Says)], ids=lambda entry: entry.id)
def test_another_verdict_is_refused(entry):
    for verdict in {*VERDICTS} - {entry.verdict}:
        (found,) = errata.check([replace(entry, verdict=verdict)])
        assert str(found).startswith(f"{entry.id}: verdict {verdict}: says_")
        assert f"makes it {entry.verdict}: " in str(found)


FALSE = [
    (facts.keeps("softmax", "eager", "cuda", "S"), "it keeps P"),
    (facts.keeps("residual", "eager", "cpu", "x"), "it keeps nothing"),
    (facts.never_keeps("scores", "S Q"), "eager cuda keeps Q; eager cpu keeps Q"),
    (facts.held_by("gpt2", "eager", "c", "BmmBackward0.self"), "held by MmBackward0.self"),
    (facts.held_by("gpt2", "eager", "S", "BmmBackward0.self"), "S is not kept"),
    (facts.dtype("layernorm", "eager", "cuda", "mean", "bfloat16"), "kept as float32"),
    (facts.dtype("dropout", "eager", "cpu", "m", "bool"), "kept as nothing at all"),
    (facts.needs("layernorm", "from-normalized", "x_hat mean rstd w"), "it needs rstd w x_hat"),
    (facts.keeps("no-such-layer", "eager", "cuda", "x"), "KeyError"),
    (facts.needs("softmax", "no-such-pair", "P"), "ValueError"),
    (facts.never_keeps("sdpa", "P", of="flash math"), "math cuda keeps P"),
]


@pytest.mark.parametrize("fact, instead", FALSE, ids=lambda value: getattr(value, "text", None))
def test_a_false_fact_is_named_with_what_holds_instead(fact, instead):
    (found,) = errata.check([replace(BY_ID["cell-softmax-saved"], shown=(fact,))])
    assert str(found).startswith(f"cell-softmax-saved: {fact.text} ")
    assert instead in found.instead


JUDGED = [
    (facts.says_saved("softmax", "P"), "right"),
    (facts.says_saved("softmax", "S"), "wrong"),
    (facts.says_saved("softmax", "S", "P"), "imprecise"),
    (facts.says_saved("mask", "", "keep"), "depends"),
    (facts.says_saved("mask", "", "S"), "imprecise"),
    (facts.says_saved("dropout", "m"), "depends"),
    (facts.says_saved("dropout", "M", of="eager", called=dict(m="M", n="M")), "right"),
    (facts.says_saved("gpt2", "a", among="a"), "wrong"),
    (facts.says_shapes("softmax", P="B h T T"), "right"),
    (facts.says_shapes("softmax", P="B h T d"), "wrong"),
    (facts.says_shapes("softmax", P="B h T T", S="B h T T"), "imprecise"),
    (facts.says_shapes("attention-dropout", m="B h T T"), "depends"),
    (facts.says_formula("dropout", "eager", y="x * m / (1 - p)"), "right"),
    (facts.says_formula("dropout", "eager", y="x * m"), "wrong"),
    (facts.says_formula("dropout", "eager", y=("x * m", "x * n")), "imprecise"),
    (facts.says_formula("softmax", "eager", dS="P * (dP + (dP * P).sum(-1, True))"), "wrong"),
    (facts.says_formula("linear", "no-bias", y="x @ W", dx="2 * dy @ W.mT"), "wrong"),
    (facts.says_indispensable("linear", "x"), "right"),
    (facts.says_indispensable("softmax", "P"), "wrong"),
]


@pytest.mark.parametrize("says, verdict", JUDGED, ids=lambda value: getattr(value, "text", value))
def test_what_is_said_is_judged(says, verdict):
    assert says.judge()[0] == verdict


CHANGES = {
    "softmax keeps its input": (softmax, "eager", softmax.FROM_SCORES, dict(S="X.s"), "cell-softmax-saved"),
    "LayerNorm keeps x̂": (
        layernorm,
        "eager",
        layernorm.FROM_NORMALIZED,
        dict(x_hat="X.x", rstd="X.r", w="X.w"),
        "cell-layernorm-1-saved",
    ),
}


@pytest.mark.parametrize("module, implementation, pair, at, entry", CHANGES.values(), ids=CHANGES)
def test_a_verdict_does_not_outlive_the_claim(module, implementation, pair, at, entry, monkeypatch):
    saves = spec.Saves(pair, at)
    (old,) = (i for i in module.LAYER.implementations if i.id == implementation)
    changed = replace(module.LAYER, implementations=(replace(old, cpu=saves, cuda=saves),))
    monkeypatch.setattr(facts, "LAYERS", [changed if layer is module.LAYER else layer for layer in LAYERS])
    assert {m.entry for m in errata.check([BY_ID[entry]])} == {entry}


def test_logits_kept_after_all(monkeypatch):
    """What the article says of cross entropy would not be wrong if the logits were what is kept."""
    monkeypatch.setattr(facts, "_kept", lambda layer, of="": {"eager cuda": frozenset({"logits", "t"})})
    assert BY_ID["cell-lm-head-saved"].shown[0].judge()[0] == "imprecise"


@pytest.mark.parametrize("lang", ["zh", "en"])
def test_every_entry_can_be_cited(lang):
    text = "".join(tables.errata(lang, part) for part in ("principle", "section", "cell"))
    assert re.findall(r"\(#([\w-]+)\)\{ #\1 \.entry \}", text) == [entry.id for entry in ENTRIES]
    assert all(entry.quote in text and getattr(entry, lang) in text for entry in ENTRIES)


def test_the_page_fails_with_a_mistake(monkeypatch):
    found = errata.Mistake("cell-softmax-saved", "verdict right", "it depends")
    monkeypatch.setattr(errata, "mistakes", lambda: (found,))
    with pytest.raises(ValueError, match="cell-softmax-saved: verdict right: it depends"):
        tables.errata("en", "cell")


def test_all_entries_are_looked_at(monkeypatch):
    wrong = [replace(entry, verdict="unheard of") for entry in ENTRIES]
    monkeypatch.setattr(errata, "ENTRIES", wrong)
    errata.mistakes.cache_clear()
    assert {m.entry for m in errata.mistakes()} == BY_ID.keys()
    errata.mistakes.cache_clear()


def test_a_pair_that_is_not_proven_is_named(monkeypatch):
    refuted = Finding("softmax", "from-output", "every size", "dS", "it differs", 0.0)
    monkeypatch.setattr(facts, "symbolic", lambda layer, pair: [refuted])
    facts._refuted.cache_clear()
    (found,) = errata.check([replace(BY_ID["cell-softmax-saved"], shown=(facts.proven("softmax", "from-output"),))])
    assert "it differs" in found.instead
    facts._refuted.cache_clear()


def test_counts_are_those_of_the_entries():
    assert sum(errata.counts().values()) == len(ENTRIES)
    assert all(f" {n} " in tables.errata_counts("en") for n in errata.counts().values())
