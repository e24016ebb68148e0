"""Published counts: every byte of a difference is that of a named tensor, and nothing can be balanced away."""

from dataclasses import replace

import pytest
from sympy import expand

from refcheck import reconcile
from refcheck.blocks import BLOCKS
from refcheck.evidence import ROOT
from refcheck.saved import ON_DEVICE, device_bytes
from refcheck.sizes import B, D, M, T, d, h
from refcheck.sources import KORTHIKANTI, SOURCES, STANDS

CASES = pytest.mark.parametrize("name, block, which", reconcile.BESIDE, ids=str)


@CASES
def test_nothing_is_left_over(name, block, which):
    of, composed = reconcile.source(name), reconcile.implementation(block, which)
    given = reconcile.assumed(of, block)
    items = reconcile.reconcile(of, block, composed)
    kept = device_bytes(composed.claim("cuda", "bfloat16")).subs(given)
    assert expand((of.published + sum(i.difference for i in items) - kept).subs(D, h * d)) == 0
    tensors = {s.name: s.nbytes.subs(given) for s in composed.claim("cuda", "bfloat16") if s.cls in ON_DEVICE}
    stands = STANDS.get(block, {})
    terms = {stands.get(term, term): size for term, size in of.terms.items()}
    assert {i.tensor for i in items} == tensors.keys() | terms.keys()
    for item in items:  # each is one claimed tensor, one term of the source, or both
        for mine, theirs in ((item.kept, tensors), (item.counted, terms)):
            assert expand((mine - theirs.get(item.tensor, 0)).subs(D, h * d)) == 0


@pytest.mark.parametrize("of", SOURCES, ids=lambda of: of.id)
def test_terms_add_up_to_what_is_published(of):
    assert expand((sum(of.terms.values()) - of.published).subs(D, h * d)) == 0
    composed = reconcile.implementation("gpt2", "eager")
    for term in of.terms:
        wrong = replace(of, terms={**of.terms, term: of.terms[term] + B * T})
        with pytest.raises(ValueError, match="its terms add up to"):
            reconcile.reconcile(wrong, "gpt2", composed)


def test_a_source_is_used_for_a_block_at_least_once():
    assert {name for name, _, _ in reconcile.BESIDE} == {of.id for of in SOURCES}
    for name, block, which in reconcile.BESIDE:
        assert reconcile.source(name) and reconcile.implementation(block, which)
        assert block in {b.id for b in BLOCKS}


def test_korthikanti_is_right_but_for_the_statistics():
    """34sbh + 5as²b for a GPT block with dropout, where M = 4D; mean and rstd of two norms are four fp32 numbers."""
    items = reconcile.reconcile(KORTHIKANTI, "gpt2", reconcile.implementation("gpt2", "eager"))
    left = {i.tensor: i.difference for i in items if i.difference != 0}
    assert left == {name: 4 * B * T for name in ("mean_1", "rstd_1", "mean_2", "rstd_2")}
    assert dict(KORTHIKANTI.assumes) == {M: 4 * D}


@pytest.mark.parametrize("lang", ["zh", "en"])
def test_the_page_shows_every_case(lang):
    text = (ROOT / "docs" / lang / "reconcile.md").read_text(encoding="utf-8")
    shown = {case for case in reconcile.BESIDE if f'[= difference("{case[0]}", "{case[1]}", "{case[2]}") =]' in text}
    assert shown >= {case for case in reconcile.BESIDE if case[1] != "article"} - {
        ("llm-analysis-flash", "qwen3", "flash")
    }
    table = reconcile.published(lang)
    assert table.count("\n| [") == len(reconcile.BESIDE)
    for case in reconcile.BESIDE:
        assert "$" in reconcile.difference(lang, *case)
