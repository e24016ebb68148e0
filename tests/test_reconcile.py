"""Published counts beside the truth: what each says, every byte between them named, and what is not named, found."""

from dataclasses import replace

import pytest
from sympy import Add, Integer, expand

from refcheck import reconcile, sources
from refcheck.blocks import BLOCKS
from refcheck.evidence import ROOT
from refcheck.models import MODELS
from refcheck.notation import human
from refcheck.reconcile import CASES, Item
from refcheck.saved import device_bytes
from refcheck.sizes import M, at_sizes
from refcheck.sources import COUNTS

EACH = pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
COUNT = pytest.mark.parametrize("count", COUNTS, ids=lambda count: count.id)

# The formulas once more, as the sources write them: s tokens, b sequences, h wide, a heads, k key-value heads, f the
# FFN's width, p bytes of an element.
AS_WRITTEN = {
    "korthikanti": lambda s, b, h, a, k, f, p: s * b * h * (34 + 5 * a * s / h),
    "selective": lambda s, b, h, a, k, f, p: 34 * s * b * h,
    "megatron": lambda s, b, h, a, k, f, p: (s * b * h) * (18 + (4 * (f / h))),
    "cookbook": lambda s, b, h, a, k, f, p: s * b * h * ((16 * p + 2) + (2 * p + 1) * (a * s / h)),
    "playbook": lambda s, b, h, a, k, f, p: s * b * h * (34 + 5 * a * s / h),
    "llm-analysis": lambda s, b, h, a, k, f, p: (
        (s * b * h + 4 * s * b * h) * p
        + (2 * s * b * h + 4 * a * s * b) * p
        + s * b * h
        + (p * s * b * h + (p + p) * (f / h) * s * b * h)
        + 2 * s * b * h * 4
    ),
    "llm-analysis-eager": lambda s, b, h, a, k, f, p: (
        (s * b * h + 4 * s * b * h) * p
        + 2 * a * s**2 * b * p
        + a * s**2 * b
        + s * b * h
        + (p * s * b * h + (p + p) * (f / h) * s * b * h)
        + 2 * s * b * h * 4
    ),
    "llm-analysis-no-dropout": lambda s, b, h, a, k, f, p: (
        (s * b * h + 4 * s * b * h) * p
        + 2 * a * s**2 * b * p
        + s * b * h
        + (p * s * b * h + (p + p) * (f / h) * s * b * h)
        + 2 * s * b * h * 4
    ),
    "simumax": lambda s, b, h, a, k, f, p: (
        2 * (s * b * h * p)  # norms
        + s * b * h * p  # column-parallel linear layer
        + (s * b * h + 2 * s * b * k * (h / a)) * p
        + a * s * b * p
        + s * b * h * p  # row-parallel linear layer
        + s * b * h * p
        + 3 * s * b * f * p
        + s * b * f * p
    ),
}


@COUNT
@pytest.mark.parametrize("sizes", [dict(B=2, T=5, h=6, d=4, g=3, M=32), dict(B=1, T=7, h=4, d=8, g=2, M=96)], ids=str)
def test_a_count_is_what_the_source_writes(count, sizes):
    B, T, h, d, g, M = (sizes[n] for n in "BThdgM")
    for p in (2, 4) if count.published.has(sources.p) else (2,):
        written = AS_WRITTEN[count.id](s=T, b=B, h=h * d, a=h, k=g, f=M, p=p)
        assert at_sizes(expand(count.published.subs(sources.p, p)), sizes) == written


@COUNT
def test_a_count_is_the_sum_of_its_terms(count):
    assert expand(count.published - count.sum) == 0
    assert len({term.id for term in count.terms}) == len(count.terms)


@EACH
def test_nothing_is_left_over(case):
    """For all sizes; the bytes are read off the block's claim anew, and the items are a sum of named bytes."""
    assert case.faults() == []
    kept = {s.name: case.sized(s.nbytes) for s in case.whole.claim("cuda", case.dtype)}
    terms = {term.id: case.sized(term.form) for term in case.count.terms}
    total = case.sized(expand(case.count.published))
    for item in case.items:
        named = Add(*(kept[name] for name in item.kept)) - Add(*(terms[name] for name in item.counted))
        assert expand(named - case.difference(item)) == 0 and expand(named) != 0
        total += named
    truth = case.sized(device_bytes(case.whole.claim("cuda", case.dtype)))
    assert expand(total - truth) == 0 == case.left_over


@EACH
def test_what_no_item_names_agrees_tensor_by_tensor(case):
    """So that no two mistakes cancel: each tensor has one item or one term, and that term is its bytes."""
    dropped = [name for item in case.items for name in item.counted]
    agreed = [term for term in case.count.terms if term.id not in dropped]
    owners = [*(name for item in case.items for name in item.kept), *(name for t in agreed for name in t.tensors)]
    assert sorted(owners) == sorted(case.tensors)
    for term in agreed:
        assert expand(Add(*(case.tensors[name] for name in term.tensors)) - case.terms[term.id]) == 0


def test_every_count_and_every_block_has_a_case():
    assert {case.count for case in CASES} == set(COUNTS)
    assert {case.name for case in CASES} == {block.id for block in BLOCKS}
    assert len({case.id for case in CASES}) == len(CASES)


@EACH
def test_an_item_less_is_noticed(case):
    for item in case.items:
        assert replace(case, items=tuple(other for other in case.items if other is not item)).faults() != []


@EACH
def test_a_tensor_less_is_noticed(case):
    for n, item in enumerate(case.items):
        for name in item.kept:
            less = replace(item, kept=tuple(other for other in item.kept if other != name))
            assert replace(case, items=(*case.items[:n], less, *case.items[n + 1 :])).faults() != []


def named(name):
    return next(case for case in CASES if case.id == name)


def swapped(case, old, new):
    return replace(case, items=tuple(new if item is old else item for item in case.items))


@pytest.mark.parametrize(
    "wrong, says",
    {
        # of as many bytes as the right one: the total is right all the same
        "the other mask": (
            swapped(named("korthikanti-article"), reconcile.NO_ATTENTION_DROPOUT, reconcile.NO_FFN_DROPOUT),
            "attention-mask",
        ),
        "a tensor of another name": (
            swapped(named("korthikanti-gpt2"), reconcile.STATISTICS, replace(reconcile.STATISTICS, kept=("mean",))),
            "there is no mean",
        ),
        "a term that the count hasn't": (
            swapped(named("selective-gpt2"), reconcile.NOT_RECOMPUTED, replace(reconcile.FUSED, counted=("softmax",))),
            "there is no softmax",
        ),
        "a tensor twice": (
            replace(named("korthikanti-gpt2"), items=(reconcile.STATISTICS, reconcile.STATISTICS)),
            "is in 2 items",
        ),
        "an item that evens itself out": (
            replace(
                named("korthikanti-gpt2"),
                items=(reconcile.STATISTICS, Item("more", {}, ("m_ffn",), ("attention-mask",))),
            ),
            "ffn-mask",
        ),
        "what the count takes for granted": (replace(named("korthikanti-gpt2"), given={M: Integer(7)}), "gelu-input"),
        "another dtype": (replace(named("korthikanti-gpt2"), dtype="float32"), "norms"),
        "another count": (replace(named("korthikanti-gpt2"), count=sources.MEGATRON), "P is kept, and in no item"),
        "a term of another size": (
            replace(
                named("korthikanti-gpt2"),
                count=replace(
                    sources.KORTHIKANTI,
                    terms=(replace(sources.KORTHIKANTI.terms[0], form=Integer(1)), *sources.KORTHIKANTI.terms[1:]),
                ),
            ),
            "don't add up",
        ),
        "a block that keeps more": (replace(named("simumax-llama3"), name="qwen3"), "Q is kept"),
    }.values(),
)
def test_what_is_wrong_is_told(wrong, says):
    assert any(says in fault for fault in wrong.faults()), wrong.faults()


# --- the page ---------------------------------------------------------------------------------------------------------

LANGS = pytest.mark.parametrize("lang", ["zh", "en"])


@LANGS
def test_the_page_shows_every_count(lang):
    text = (ROOT / "docs" / lang / "reconcile.md").read_text(encoding="utf-8")
    assert "[= counts() =]" in text
    for count in COUNTS:
        for call in ("published", "differences"):
            assert f'[= {call}("{count.id}") =]' in text, (count.id, call)
        assert f"{{ #{count.id} }}" in text
    assert "#korthikanti" in (ROOT / "docs" / lang / "blocks.md").read_text(encoding="utf-8")


@LANGS
def test_the_table_of_counts(lang):
    rows = [row.strip("| ").split(" | ") for row in reconcile.counts(lang).splitlines()[2:]]
    assert len(rows) == len(CASES)
    for case, (source, block, form, counted, kept, ratio) in zip(CASES, rows, strict=True):
        sizes = dict(B=1, **MODELS[case.model])
        one, other = (at_sizes(form, sizes) for form in (case.published, case.truth))
        assert source == f"[{case.count.title}](#{case.count.id})"
        assert form == f"${reconcile.signed(case.published)}$"
        assert f"](#{case.id})<br>" in block and case.model in block.partition("<br>")[2]
        assert (counted, kept, ratio) == (human(one), human(other), f"{one / other:.3f}")


@LANGS
@EACH
def test_a_table_of_differences(case, lang):
    text = reconcile.differences(lang, case.count.id)
    section = text.partition(f"{{ #{case.id} }}")[2].partition("###")[0]
    rows = [row.strip("| ").split(" | ") for row in section.strip().splitlines()[2:]]
    assert len(rows) == len(case.items) + 3
    assert [row[-1] for row in (rows[0], *rows[-2:])] == [
        f"${reconcile.signed(case.published)}$",
        f"${reconcile.signed(case.truth)}$",
        "$0$",
    ]
    for item, row in zip(case.items, rows[1:-2], strict=True):
        assert item.why[lang] in row[0] and f'id="{case.id}-{item.id}"' in row[0]
        assert all(f"`{name}`" in row[1] for name in item.kept)
        assert row[3] == f"${reconcile.signed(case.difference(item), plus=True)}$"


@LANGS
@COUNT
def test_a_table_of_terms(count, lang):
    rows = reconcile.terms(lang, count.id).splitlines()[2:]
    assert len(rows) == len(count.terms) + 1
    assert all(term.title[lang] in row for term, row in zip(count.terms, rows, strict=False))
    assert count.written in reconcile.published(lang, count.id)


@pytest.mark.parametrize(
    "form, text",
    [
        (sources.TOKENS, "+B T"),
        (-sources.TOKENS, "-B T"),
        (-2 * sources.TOKENS + sources.SCORES, "+B h T^2 - 2B T"),
        (Integer(24), "+24"),
    ],
    ids=str,
)
def test_signs(form, text):
    assert reconcile.signed(form, plus=True) == text


def test_a_page_of_a_wrong_case_isn_t_built(monkeypatch):
    monkeypatch.setattr(reconcile, "CASES", (replace(named("korthikanti-gpt2"), items=()),))
    for build in (lambda: reconcile.counts("en"), lambda: reconcile.differences("en", "korthikanti")):
        with pytest.raises(ValueError, match="korthikanti-gpt2: mean_1 is kept, and in no item"):
            build()
    assert reconcile.mistakes()[0][0] == "korthikanti-gpt2"
