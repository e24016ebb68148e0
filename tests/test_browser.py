"""The page of the table in a real browser: what it adds up is what Python does, whoever types whatever."""

import csv
import json
import random
import re

import pytest

from refcheck import menu
from refcheck.models import MODELS
from refcheck.words import CALCULATOR

pytestmark = pytest.mark.xdist_group("browser")  # one worker builds the pages, once
TABLE = {"zh": "table/", "en": "en/table/"}
LANGS = pytest.mark.parametrize("lang", TABLE)


def ready(page):
    page.wait_for_selector("#calculate .totals")
    return page


def totals(page):
    exact = page.locator("#calculate .totals .exact").all_inner_texts()
    return tuple(int(re.sub(r"\D", "", text)) for text in exact)


def message(page, field):
    """The message that is tied to a field, which must be marked as wrong."""
    control = page.locator(f"#calc-{field}")
    assert control.get_attribute("aria-invalid") is not None
    return page.locator(f"#{control.get_attribute('aria-describedby')}").inner_text()


def choose(page, choices, sizes):
    for question, choice in choices.items():
        page.select_option(f"#calc-{question}", choice)
    for name, value in sizes.items():
        page.fill(f"#calc-{name}", str(value))


@LANGS
def test_every_model_adds_up(visit, lang):
    page = ready(visit(TABLE[lang]))
    assert totals(page) == menu.totals(menu.DEFAULT[1], dict(MODELS[menu.DEFAULT[0]], B=1))
    names = [name for name, sizes in MODELS.items() if "E" not in sizes]
    assert [*filter(None, page.eval_on_selector_all("#calc-model option", "all => all.map((o) => o.value)"))] == names
    for name in names:
        page.select_option("#calc-model", name)
        family = name.partition("-")[0]
        choices = {**menu.DEFAULT[1], **{"GPT": menu.GPT, "Llama": menu.LLAMA, "Qwen3": menu.QWEN}[family]}
        assert totals(page) == menu.totals(choices, dict(MODELS[name], B=1)), name


def test_choices_and_sizes_add_up(visit):
    page, chance = ready(visit(TABLE["en"])), random.Random(3)
    for n in range(5):
        dtype = chance.choice(("bfloat16", "float16"))
        attention = chance.choice(("eager", "flash", "cudnn"))
        choices = {question: chance.choice(ids) for question, ids in menu.QUESTIONS.items()}
        choices |= dict(attention=attention, dtype=dtype, device="cuda")
        if attention != "eager" and choices["dropout"] == "everywhere":
            choices["dropout"] = "branches"
        sizes = {name: chance.randint(1, 5000) for name in ("B", "T", "L", "M", "V", "d")}
        sizes |= dict(h=2 * n + 2, g=2, D=(2 * n + 2) * sizes["d"])
        choose(page, choices, sizes)
        assert totals(page) == menu.totals(choices, sizes), (choices, sizes)
        rows = page.locator("#calculate tbody tr:not(.detail):not(.total) td:nth-child(5)").all_inner_texts()
        assert sum(int(re.sub(r"\D", "", row)) for row in rows) == sum(menu.totals(choices, {**sizes, "L": 1})[1:])
        assert page.input_value("#calc-model") == ""


@LANGS
def test_bad_input_has_a_message_and_no_total(visit, lang):
    page, words = ready(visit(TABLE[lang])), CALCULATOR[lang]
    for typed, key in [("", "empty"), ("0", "small"), ("-3", "small"), ("many", "no number"), ("9" * 20, "large")]:
        page.fill("#calc-T", typed)
        assert message(page, "T") == words[key].format("1,000,000,000")
        assert page.locator("#calculate .totals").inner_text() == words["no total"]
        assert "NaN" not in page.locator("#calculate").inner_text()
        assert not page.locator("#calculate table").is_visible()
    page.fill("#calc-T", "8192")
    page.fill("#calc-d", "127")
    assert message(page, "D") == words["h·d ≠ D"].format("4,064")
    page.fill("#calc-D", "4064")
    page.select_option("#calc-dtype", "float32")
    assert "FlashAttention" in message(page, "dtype")
    page.select_option("#calc-attention", "eager")
    choices = {**menu.DEFAULT[1], "dtype": "float32", "attention": "eager"}
    assert totals(page) == menu.totals(choices, dict(MODELS["Llama-3-8B"], B=1, d=127, D=4064))
    assert page.locator("#calculate [aria-invalid]").count() == 0


def test_a_link_restores_the_choice_in_either_language(visit):
    page = ready(visit(TABLE["en"]))
    page.select_option("#calc-model", "GPT-2-XL")
    page.fill("#calc-B", "16")
    page.select_option("#calc-recompute", "attention")
    wanted, shown = totals(page), page.locator("#calculate .take a").get_attribute("href")
    assert page.url.endswith(shown.removesuffix("#calculator"))
    for path in (TABLE["en"] + shown, TABLE["zh"] + shown):
        again = ready(visit(path))
        assert totals(again) == wanted
        assert (again.input_value("#calc-model"), again.input_value("#calc-B")) == ("GPT-2-XL", "16")
        assert again.locator("#calculate .notice").inner_text() == ""
    page.click("a[data-same-section]")
    assert "/en/" not in page.url and totals(ready(page)) == wanted


@LANGS
def test_a_broken_link_says_so(visit, lang):
    page = ready(visit(TABLE[lang] + "?sizes=B1-Tmany&attention=fast"))
    notice = page.locator("#calculate .notice").inner_text()
    assert notice.startswith(CALCULATOR[lang]["broken"]) and "Tmany" in notice and "attention" in notice
    assert totals(page) == menu.totals(menu.DEFAULT[1], dict(MODELS[menu.DEFAULT[0]], B=1))


def test_a_click_shows_where_a_number_comes_from(visit):
    page = ready(visit(TABLE["en"]))
    row = page.locator("#calculate tbody tr", has=page.locator("code", has_text=re.compile("^P$|^z1$"))).first
    button = row.locator("button")
    assert button.get_attribute("aria-expanded") == "false"
    button.focus()
    page.keyboard.press("Enter")
    assert button.get_attribute("aria-expanded") == "true"
    detail = page.locator(f"#{button.get_attribute('aria-controls')}")
    assert "2 × B × T × M = 2 × 1 × 8192 × 14336 = 234,881,024 B" in detail.inner_text()
    assert "SiluBackward0.self" in detail.inner_text()
    assert detail.locator("a").get_attribute("href").endswith("/en/layers/ffn-swiglu/#saved-z1")
    button.click()
    assert not detail.is_visible()


def test_what_can_be_downloaded(visit):
    page = ready(visit(TABLE["en"]))
    found = {}
    for button in page.locator("#calculate .take button").all():
        with page.expect_download() as download:
            button.click()
        found[download.value.suggested_filename] = download.value.path().read_text()
    rows, data = list(csv.DictReader(found["saved.csv"].splitlines())), json.loads(found["saved.json"])
    assert (data["block"], data["model"]) == totals(page)
    assert sum(int(row["counted"]) for row in rows if row["stage"] != "outside") == data["block"]
    assert [row["tensor"] for row in rows] == [row["tensor"] for row in data["rows"]]


def test_the_static_table_follows(visit):
    page = ready(visit(TABLE["en"]))
    row = page.locator("tr", has=page.locator('td > a[href*="softmax"][href*="#saved-eager"]')).last
    assert row.locator("small").inner_text() == "bf16: 4 GiB"
    page.fill("#calc-T", "16384")
    assert row.locator("small").inner_text() == "bf16: 16 GiB"


@LANGS
def test_without_javascript_the_table_is_all_there(visit, lang):
    page = visit(TABLE[lang], javascript=False)
    assert page.locator("#calculate").inner_text() == CALCULATOR[lang]["no script"]
    assert page.locator("table.ruled tbody tr").count() > 40


@LANGS
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_telephone(visit, lang, scheme):
    page = ready(visit(TABLE[lang], width=390, height=844, scheme=scheme))
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    fields = page.locator("#calculate :is(input, select)")
    assert all(box.bounding_box()["width"] > 100 for box in fields.all())


@LANGS
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_on_its_ground(visit, lang, scheme):
    """WCAG 2, 4.5 to 1, for every piece of text in the calculator, with a message and a notice on show."""
    page = ready(visit(TABLE[lang] + "?attention=fast", scheme=scheme))
    page.locator("#calculate tbody button").first.click()
    assert page.evaluate(CONTRAST) == []
    page.fill("#calc-T", "")
    assert page.evaluate(CONTRAST) == []


@LANGS
def test_every_field_and_picture_has_a_name(visit, lang):
    page = ready(visit(TABLE[lang]))
    for control in page.locator("#calculate :is(input, select)").all():
        assert page.locator(f"label[for={control.get_attribute('id')}]").inner_text().strip()
    assert page.locator("#calculate fieldset > legend").count() == 2
    name = page.locator("#calculate .bar").get_attribute("aria-label")
    block, _ = menu.totals(menu.DEFAULT[1], dict(MODELS[menu.DEFAULT[0]], B=1))
    assert name.startswith(CALCULATOR[lang]["picture"]) and f"z1: 224 MiB, {(224 << 20) / block:.1%}"[:-1] in name
    assert page.locator("#calculate output").get_attribute("for")


CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (color) => rgb(color).slice(0, 3).map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, n) => sum + v * [0.2126, 0.7152, 0.0722][n], 0);
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = getComputedStyle(at).backgroundColor;
      if (rgb(color)[3] === 255) return color;
    }
    return "white";
  };
  const low = [];
  for (const element of document.querySelectorAll("#calculate *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || !element.checkVisibility()) continue;
    const [a, b] = [light(getComputedStyle(element).color), light(ground(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) low.push(`${element.tagName} ${element.className} ${element.textContent}: ${ratio.toFixed(2)}`);
  }
  return low;
}"""
