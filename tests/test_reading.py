"""What a reader does with a page: follow the language, cite it, show it as slides."""

import re

import pytest

pytestmark = pytest.mark.xdist_group("browser")  # one worker builds the pages, once
LANGS = pytest.mark.parametrize("lang", ["", "en/"], ids=["zh", "en"])
HOME = r"http://[\w.:]+/"


def test_the_first_page_follows_the_browser(visit):
    assert re.fullmatch(HOME + "en/#start", visit("#start", locale="en-GB").url)
    assert re.fullmatch(HOME + "en/", visit("", locale="de-DE").url)
    assert re.fullmatch(HOME, visit("", locale="zh-TW").url)
    assert re.fullmatch(HOME + "en/", visit("en/", locale="zh-CN").url)  # whoever asks for English gets it
    assert re.fullmatch(HOME + "table/", visit("table/", locale="en-GB").url)  # and every other page stays as it is
    assert re.fullmatch(HOME, visit("", locale="en-GB", javascript=False).url)


def test_a_reader_who_chose_is_not_sent_away(visit):
    page = visit("", locale="en-GB")
    page.click("a.language")
    assert re.fullmatch(HOME, page.url)
    page.reload()
    assert re.fullmatch(HOME, page.url)
    address = page.url
    page.goto("about:blank")
    page.goto(address)
    assert page.url == address


@LANGS
def test_the_other_language_opens_at_the_same_section(visit, lang):
    page = visit(f"{lang}layers/softmax/#saved-eager-P")
    other = "" if lang else "en/"
    page.click("a.language")
    assert re.fullmatch(f"{HOME}{other}layers/softmax/#saved-eager-P", page.url)


@LANGS
def test_a_reference_is_copied_whole(visit, lang):
    page = visit(f"{lang}layers/softmax/")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    address = page.url
    for n, starts in enumerate(("@misc{saved-for-backward-softmax,", "Saved for", "Saved for")):
        box = page.locator(".cite pre").nth(n)
        box.hover()
        box.locator("button").first.click()
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied.startswith(starts) and address in copied and "YYYY" not in copied
        assert "0.1" in copied and "torch-" in copied
    assert page.locator("details.citing").count() == 0


@LANGS
def test_every_other_page_can_be_cited_too(visit, lang):
    page = visit(f"{lang}table/", javascript=False)
    page.locator("details.citing summary").click()
    text = page.locator(".cite pre").first.inner_text()
    assert f"url = {{{lang}table/}}" in text and "YYYY-MM-DD" in text


def test_an_address_is_shown_under_the_pointer(visit):
    page = visit("en/layers/softmax/")
    row = page.locator("td:has(#saved-eager-P)")
    link = row.locator("a.headerlink")
    assert link.evaluate("a => getComputedStyle(a).opacity") == "0"
    row.hover()
    page.wait_for_function("a => getComputedStyle(a).opacity === '1'", arg=link.element_handle())
    link.click()
    assert page.url.endswith("#saved-eager-P")
    assert page.locator("#forward-eq1 > a.headerlink").get_attribute("href") == "#forward-eq1"


@LANGS
@pytest.mark.parametrize("width, scheme", [(1440, "light"), (390, "dark")])
def test_slides(visit, lang, width, scheme):
    page = visit(f"{lang}layers/softmax/slides/", width=width, height=900, scheme=scheme)
    heights = page.eval_on_selector_all("main > section", "all => all.map((s) => s.offsetHeight)")
    assert len(heights) > 4 and all(height >= 900 for height in heights)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    count = page.locator("nav > output")
    assert count.inner_text() == f"1 / {len(heights)}"
    page.keyboard.press("ArrowRight")
    page.wait_for_url("**/#forward")
    assert count.inner_text() == f"2 / {len(heights)}"
    page.keyboard.press("End")
    page.wait_for_url("**/#bytes")
    page.click("a[data-same-section]")
    assert page.url.endswith(f"{'/' if lang else '/en/'}layers/softmax/slides/#bytes")


def test_slides_print_one_to_a_sheet(visit):
    page = visit("en/layers/softmax/slides/")
    sheets = len(re.findall(rb"/Type\s*/Page\b", page.pdf(prefer_css_page_size=True)))
    assert sheets == page.locator("main > section").count()
