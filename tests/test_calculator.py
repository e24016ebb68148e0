"""The calculator's script in an engine without a page: it agrees with Python to the byte, and refuses what is bad."""

import csv
import io
import json
import random

import pytest
from py_mini_racer import JSEvalException, MiniRacer
from sympy import ceiling, sqrt

from refcheck import calculator, menu
from refcheck.evidence import ROOT
from refcheck.layers import LAYERS
from refcheck.models import MODELS
from refcheck.notation import human
from refcheck.saved import device_bytes
from refcheck.sizes import DTYPES, B, D, T, V, at_sizes, d, g, h
from refcheck.spec import absence
from refcheck.words import DEVICE

EXPORTED = {lang: json.loads(json.dumps(calculator.export(lang))) for lang in ("zh", "en")}
MENU = EXPORTED["en"]
GLUE = """
const whole = (sizes) => Object.fromEntries(Object.entries(sizes).map(([name, n]) => [name, BigInt(n)]));
const asText = (value) => JSON.stringify(value, (_, v) => (typeof v === "bigint" ? `${v}` : v));
const counted = (menu, choices, sizes) => ledger(menu, choices, whole(sizes));
const total = (...given) => asText([counted(...given).block, counted(...given).model]);
const worth = (form, sizes) => `${evaluate(form, whole(sizes))}`;
const checked = (menu, state) => asText(check(menu, state).errors);
const restored = (menu, asked) => asText(restore(menu, asked));
const shown = (...given) => [csv(table(counted(...given))), json(table(counted(...given)))];
const unit = (n) => human(BigInt(n));
"""


@pytest.fixture(scope="module")
def script():
    engine = MiniRacer()
    engine.eval((ROOT / "docs/assets/ledger.js").read_text().replace("export ", "") + GLUE)
    return lambda name, *given: engine.call(name, *given)


def total(script, exported, choices, sizes):
    return tuple(map(int, json.loads(script("total", exported, choices, {n: str(v) for n, v in sizes.items()}))))


def refuses(choices):
    return any(all(choices[q] in ids.split() for q, ids in when.items()) for when, *_ in menu.refused())


def drawn(random):
    """Choices that go together, and sizes of any kind with D = h·d and g dividing h."""
    while True:
        choices = {q: random.choice(ids) for q, ids in menu.QUESTIONS.items()}
        if not refuses(choices):
            break
    sizes = {
        n: random.choice((1, random.randint(1, 99), random.randint(1, 10**6))) for n in ("B", "T", "L", "d", "M", "V")
    }
    sizes["g"] = random.randint(1, 16)
    sizes["h"] = sizes["g"] * random.randint(1, 16)
    return choices, {**sizes, "D": sizes["h"] * sizes["d"]}


def test_it_agrees_with_python_to_the_byte(script):
    chance = random.Random(1)
    for _ in range(150):
        choices, sizes = drawn(chance)
        assert total(script, MENU, choices, sizes) == menu.totals(choices, sizes), (choices, sizes)


@pytest.mark.parametrize("name", [name for name in MODELS if name in MENU["models"]])
def test_each_model_as_it_is_offered(script, name):
    offered = MENU["models"][name]
    choices = {**menu.DEFAULT[1], **offered["choices"]}
    assert (
        not refuses(choices)
        and json.loads(script("checked", MENU, dict(sizes=offered["sizes"], choices=choices))) == {}
    )
    assert total(script, MENU, choices, offered["sizes"]) == menu.totals(choices, dict(MODELS[name], B=1))


def test_rows_of_the_static_table(script):
    sizes, seen = dict(MODELS["Llama-3-8B"], B=3), 0
    for layer in LAYERS:
        for implementation in layer.implementations:
            for device in DEVICE:
                for dtype in DTYPES:
                    found = MENU["table"].get(f"{layer.id} {implementation.id}", {}).get(device, {}).get(dtype)
                    if absence(implementation, device, dtype):
                        assert found is None
                    elif found is not None:
                        worth = sum(int(script("worth", MENU["storages"][n]["bytes"], sizes)) for n in found)
                        assert worth == at_sizes(device_bytes(implementation.claim(device, dtype)), sizes)
                        seen += 1
    assert seen > 200


FORMS = [8 * B * T, 2 * B * T * D * h / g, 4 * B * h * 32 * ceiling(T / 32) + 7, B * T * D / 4 + 3 * V**2, 0 * B + 5]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_any_closed_form_is_evaluated_exactly(script, form):
    sizes = dict(B=3, T=8200, D=10**9 * 4, h=96, d=128, g=8, V=10**9 - 1)
    assert int(script("worth", calculator.as_data(form), sizes)) == at_sizes(form, sizes)


def test_what_is_no_closed_form_is_refused(script):
    for form in (2 ** (B * T), sqrt(B), B / (T + d), B / 2.5):
        with pytest.raises((ValueError, AttributeError)):
            calculator.as_data(form)
    for data in ([[1, 2, [["B", 1]]]], [[1, 1, [["Z", 1]]]]):  # half a byte; a size that nobody knows
        with pytest.raises(JSEvalException):
            script("worth", data, dict(B=3))


@pytest.mark.parametrize("n", [0, 1, 1023, 1024, 1536, 1152, 10**6, 2**30 + 2**20, 3 * 2**40, 10**15 + 7, 1477509144])
def test_units_are_those_of_the_pages(script, n):
    assert script("unit", str(n)) == human(n)


# --- a spoilt export ------------------------------------------------------------------------------------------------


def spoil(change):
    spoilt = json.loads(json.dumps(MENU))
    change(spoilt)
    return spoilt


def storage(exported, name):
    return [s for s in exported["storages"] if s["name"] == name]


SPOILT = {
    "a coefficient": lambda m: [s["bytes"][0].__setitem__(0, 3) for s in storage(m, "lse")],
    "an exponent": lambda m: [s["bytes"][0][2][0].__setitem__(1, 2) for s in storage(m, "z1")],
    "a tensor less": lambda m: [
        line["kept"]["cuda"]["bfloat16"].clear() for line in m["lines"] if "gqa" in line["path"]
    ],
    "a storage under a name of its own": lambda m: [s.update(name="O") for s in storage(m, "c") if "gqa" in s["path"]],
    "what all blocks share": lambda m: [s.update(once=True) for s in storage(m, "v")],
    "a line's choice": lambda m: [line["when"].update(ffn=["gelu"]) for line in m["lines"] if "swiglu" in line["path"]],
    "where a line stands": lambda m: [
        line.update(stage="outside") for line in m["lines"] if line["path"] == "layers/qkv/"
    ],
}


@pytest.mark.parametrize("change", SPOILT.values(), ids=SPOILT)
def test_a_spoilt_export_is_noticed(script, change):
    _, choices = menu.DEFAULT
    sizes = dict(MODELS["Llama-3-8B"], B=2)
    assert total(script, MENU, choices, sizes) == menu.totals(choices, sizes)
    assert total(script, spoil(change), choices, sizes) != menu.totals(choices, sizes)


def test_two_tensors_of_one_name_are_noticed(script):
    with pytest.raises(JSEvalException, match="two tensors that differ are called c"):
        spoilt = spoil(lambda m: [s["bytes"][0].__setitem__(0, 7) for s in storage(m, "c") if "gqa" in s["path"]])
        total(script, spoilt, menu.DEFAULT[1], dict(MODELS["Llama-3-8B"], B=1))


# --- what a reader types --------------------------------------------------------------------------------------------

STATE = dict(sizes={n: str(v) for n, v in MENU["models"]["Llama-3-8B"]["sizes"].items()}, choices=menu.DEFAULT[1])
BAD = {
    ("T", ""): "empty",
    ("T", "  "): "empty",
    ("T", "0"): "small",
    ("T", "-8"): "small",
    ("T", "1000000001"): "large",
    ("T", "9" * 400): "large",
    ("T", "NaN"): "no number",
    ("T", "8.5"): "no number",
    ("T", "1e3"): "no number",
    ("T", "八"): "no number",
    ("T", "0x10"): "no number",
    ("L", "Infinity"): "no number",
    ("g", "5"): "g ∤ h",
}


@pytest.mark.parametrize("field, typed", BAD, ids=str)
def test_bad_input_has_its_message(script, field, typed):
    errors = json.loads(script("checked", MENU, {**STATE, "sizes": {**STATE["sizes"], field: typed}}))
    assert {name: key for name, (key, *_) in errors.items()} == {field: BAD[field, typed]}
    assert all(BAD[field, typed] in exported["words"] for exported in EXPORTED.values())


def test_h_times_d_must_be_D(script):
    errors = json.loads(script("checked", MENU, {**STATE, "sizes": {**STATE["sizes"], "d": "127"}}))
    assert errors == {"D": ["h·d ≠ D", str(32 * 127)]}


def test_what_may_be_typed(script):
    for typed in ("7", " 7 ", "007", "+7", "1000000000"):
        assert json.loads(script("checked", MENU, {**STATE, "sizes": {**STATE["sizes"], "T": typed}})) == {}


def test_choices_that_do_not_go_together(script):
    def said(**choices):
        return json.loads(script("checked", MENU, {**STATE, "choices": {**STATE["choices"], **choices}}))

    assert said(dtype="float32") == {"dtype": ["FlashAttention, enable_gqa=True can't be used on CUDA with fp32"]}
    assert said(attention="cudnn", device="cpu").keys() == {"dtype"}
    assert said(dropout="everywhere").keys() == {"dropout"}
    assert said(attention="eager", dropout="everywhere", dtype="float32") == {}
    assert said(attention="fast").keys() == {"attention"}


def test_a_link_restores_the_choice(script):
    chance = random.Random(2)
    for _ in range(50):
        choices, sizes = drawn(chance)
        state = dict(sizes={n: str(v) for n, v in sizes.items()}, choices=choices)
        asked = dict(part.split("=") for part in script("query", MENU, state).split("&"))
        assert json.loads(script("restored", MENU, asked)) == dict(state=state, broken=[])


BROKEN = {
    "an unknown choice": (dict(attention="fast"), ["attention"]),
    "an inherited name": (dict(attention="toString"), ["attention"]),
    "no number": (dict(sizes="T8k-L7"), ["T"]),
    "a size that is not there": (dict(sizes="B1-Q7"), ["Q"]),
    "no sizes": (dict(sizes=""), [""]),
    "a negative size": (dict(sizes="B-1"), ["1", "B"]),
    "h·d ≠ D": (dict(sizes="h33"), ["D", "g"]),
    "what doesn't go together": (dict(dtype="float32"), ["dtype"]),
}


@pytest.mark.parametrize("asked, broken", BROKEN.values(), ids=BROKEN)
def test_a_broken_link_falls_back_to_the_default(script, asked, broken):
    found = json.loads(script("restored", MENU, asked))
    default = dict(sizes=MENU["models"]["Llama-3-8B"]["sizes"], choices=menu.DEFAULT[1])
    assert (found["state"], found["broken"]) == (default, broken)


def test_other_parts_of_an_address_are_not_ours(script):
    assert json.loads(script("restored", MENU, dict(h="softmax", utm_source="x")))["broken"] == []


# --- what can be taken away -----------------------------------------------------------------------------------------


def test_csv_and_json_hold_the_rows(script):
    name, choices = menu.DEFAULT
    sizes = dict(MODELS[name], B=10**9)  # beyond 2⁵³
    text, data = script("shown", MENU, choices, {n: str(v) for n, v in sizes.items()})
    rows, found = list(csv.DictReader(io.StringIO(text))), json.loads(data)
    block, _ = menu.totals(choices, sizes)
    inside = [row for row in found if row["stage"] != "outside"]
    assert sum(row["counted"] for row in inside) == block
    assert sum(row["counted"] for row in found) == menu.totals(choices, {**sizes, "L": 1})[1]
    assert [int(row["counted"]) for row in rows] == [row["counted"] for row in found]
    assert [row["tensor"] for row in rows] == [row["tensor"] for row in found]
    assert {row["form"] for row in inside if row["tensor"] == "z1"} == {"2 × B × T × M"}


def test_languages_differ_in_words_alone():
    zh, en = EXPORTED["zh"], EXPORTED["en"]
    assert zh["storages"] == en["storages"] and zh["table"] == en["table"] and zh["models"] == en["models"]
    assert [line["kept"] for line in zh["lines"]] == [line["kept"] for line in en["lines"]]
    assert zh["words"].keys() == en["words"].keys()
