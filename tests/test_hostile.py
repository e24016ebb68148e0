"""Records are data from elsewhere: what is in them is refused or shown as text, and reading them runs nothing."""

import html
import json
import subprocess
import sys
from dataclasses import replace

import pytest

from refcheck import Problem, audit_html, evidence, rows, score, site, tables
from refcheck.check import check_record
from refcheck.evidence import ROOT, read, read_all, to_json
from refcheck.layers import LAYERS
from refcheck.words import MUTANTS

NAME = "torch-2.14.1-cpu"
WHOLE = read_all()[NAME]
SMALL = replace(WHOLE, rows=tuple(r for r in WHOLE.rows if r.layer == "layernorm")[:1])

HOSTILE = {
    "a script": "<script>alert(1)</script>",
    "the end of a script": "</script><img src=x onerror=alert(1)>",
    "an entity": "&lt;b&gt;",
    "a link": "[here](javascript:alert(1))",
    "a cell": "a | b",
    "code that ends": "`</code><b>",
    "attributes": "x{ #id onclick=alert(1) }",
    "TeX": r"$\href{javascript:alert(1)}{x}$",
    "TeX that reads": r"\input{/etc/passwd}",
    "a shell": "$(touch HERE)",
    "a shell in backticks": "`touch HERE`",
    "a call of a page": "[= cycler.__init__.__globals__ =]",
    "a call of Jinja": "{{ 7 * 7 }}",
    "Python": "__import__('os').system('touch HERE')",
    "two lines": "x\n# Heading",
    "a terminal's": "\x1b[2Jx",
    "right to left": "x\u202ey",
}


def places(data, at=()):
    """The address of every text in a record."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for step, value in items:
        if isinstance(value, str):
            yield (*at, step)
        yield from places(value, (*at, step))


def planted(at, text):
    data = json.loads(to_json(SMALL))
    inner = data
    for step in at[:-1]:
        inner = inner[step]
    inner[at[-1]] = text
    return data


def put(path, data):
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


PLACES = [at for at in places(json.loads(to_json(SMALL))) if at[:1] != ("rows",) or at[3:4] not in [("runs",)]]
PLACES = [at for at in PLACES if at[0] != "rows" or at[2] != "runs" or (at[3] == 0 and at[4:6] in [("bytes",), ()])]
PLACES += [("rows", 0, "runs", 0, "saved", 1, field) for field in ("name", "node", "attr", "dtype", "bytes", "class")]
PLACES += [("rows", 0, "runs", 0, "saved", 1, "shape", 0)]
SHOWN = (
    "name",
    "node",
    "attr",
)  # which may be any line of text: they are compared with the claims, and never on a page


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("at", PLACES, ids=lambda at: ".".join(map(str, at)))
def test_it_is_refused_or_a_drift_of_one_line(at, text, tmp_path):
    """And told of in one line that a terminal can print."""
    path = put(tmp_path / f"{NAME}.json", planted(at, text))
    if at[-1] not in SHOWN or not text.isprintable():
        with pytest.raises(Problem) as refused:
            read(path)
        assert str(refused.value).isprintable()
        return
    layer = next(layer for layer in LAYERS if layer.id == "layernorm")
    row = read(path).rows[0]
    assert row.source == SMALL.rows[0].source
    told = [str(d) for d in check_record(replace(WHOLE, rows=(row,)), [layer], LAYERS) if d.dtype == row.dtype]
    assert told and all(line.isprintable() for line in told)


@pytest.mark.parametrize("field", ["torch", "cuda", "gpu", "driver", "python", "platform", "commit", "date"])
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_no_environment_of_a_gpu_holds_it(field, text):
    """Even one that is written with its digest and under its own name."""
    good = replace(WHOLE.environment, device="cuda", cuda="13.0", gpu="NVIDIA H200", driver="580.65.06")
    evidence._check(good)
    with pytest.raises(ValueError, match=f"its {field} is"):
        evidence._check(replace(good, **{field: text}))
    with pytest.raises(ValueError, match=f"its {field} is"):
        evidence._check(replace(good, **{field: getattr(good, field) + text}))


GPUS = ["NVIDIA H200", "Tesla V100-SXM2-16GB", "NVIDIA A100-SXM4-80GB MIG 1g.10gb", "Orin (nvgpu)", "GTX 1650 / 4GB"]


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("torch", ["2.9.1", "2.14.0a0", "2.9.0.dev20260101"])
def test_real_ones_are_let_in(gpu, torch):
    evidence._check(replace(WHOLE.environment, device="cuda", torch=torch, cuda="12.8", gpu=gpu, driver="580.1"))


@pytest.fixture
def spoilt(monkeypatch):
    """Records whose kept tensors are called names, as if they had been read."""

    def spoil(text):
        def renamed(row):
            runs = (replace(run, saved=tuple(replace(s, name=text, node=text) for s in run.saved)) for run in row.runs)
            return replace(row, runs=tuple(runs))

        new = {NAME: replace(WHOLE, rows=tuple(map(renamed, WHOLE.rows)))}
        monkeypatch.setattr(rows, "records", lambda: new)
        for module in (tables, site.cite):
            monkeypatch.setattr(module, "records", lambda: new)
        rows.supported.cache_clear()

    yield spoil
    rows.supported.cache_clear()


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", "[= 7 * 7 =]", "a | b"])
def test_no_table_shows_what_a_record_calls_it(text, spoilt):
    """Names on pages come from the claims; a record that has others stands behind no row."""
    layer = next(layer for layer in LAYERS if layer.id == "layernorm")
    spoilt(text)
    for lang in ("zh", "en"):
        shown = [tables.summary(lang, [layer]), tables.saved(layer, lang), tables.evidence(layer, lang)]
        assert not any(text in part or NAME in part for part in shown)
    found = list(rows.rows([layer]))
    assert text not in json.dumps(found) and text not in rows.as_csv(found)
    assert not any(row["measured"] for row in found)


@pytest.mark.parametrize("text", ["[= 1 / 0 =]", "[%% set x = 1 %%]", "[## x ##]", "{{ 1 / 0 }}"])
def test_what_a_call_returns_is_not_called_again(text):
    assert site.JINJA.from_string("a [= text =] b").render(text=text) == f"a {text} b"


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_ledger_shows_it_as_text(text):
    shown = audit_html.treemap({text: 8, "x": 8})
    assert html.escape(f"{text}: 8 bytes") in shown
    assert "<script" not in shown and "<img" not in shown and "<b>" not in shown


SCORE = dict(commit=None, date="2026-01-01", parts={}, made={}, survivors=[])


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("field", ["commit", "date", "made", "parts"])
def test_a_score_with_it_is_refused(field, text, tmp_path):
    path = tmp_path / "mutants.json"
    assert score.read(put(path, SCORE)).made == {}
    value = {text: 1} if field == "made" else {text: "0"} if field == "parts" else text
    with pytest.raises(Problem, match="make mutate"):
        score.read(put(path, {**SCORE, field: value}))


WATCHED = """
import builtins, sys
from pathlib import Path
from refcheck import Problem, evidence
seen = []
def heed(event, args):
    if event in ("exec", "import", "os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "socket.connect"):
        seen.append((event, str(args)[:80]))
    if event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+"):
        seen.append((event, str(args)[:80]))
paths = sorted(Path(sys.argv[1]).glob("*/*.json"))
evidence.read(paths[0])  # what is imported late is imported now
sys.addaudithook(heed)
for path in paths:
    try:
        evidence.read(path)
    except Problem:
        pass
if len(sys.argv) > 2:
    exec("1")
print(len(paths), seen)
"""


@pytest.mark.parametrize("planted_call", [[], ["planted"]], ids=["reading", "a planted call"])
def test_reading_runs_nothing(planted_call, tmp_path):
    """Python itself tells of whatever is run, imported, started or written to."""
    (tmp_path / "000").mkdir()
    put(tmp_path / "000" / f"{NAME}.json", json.loads(to_json(SMALL)))
    cases = [(at, text) for at in PLACES for text in HOSTILE.values()]
    for n, (at, text) in enumerate(cases, 1):
        (tmp_path / f"{n:03}").mkdir()
        put(tmp_path / f"{n:03}" / f"{NAME}.json", planted(at, text))
    command = [sys.executable, "-c", WATCHED, str(tmp_path), *planted_call]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{len(cases) + 1} ") and not (ROOT / "HERE").exists()
    assert done.stdout.endswith("[]\n") is not bool(planted_call)


def test_a_score_of_every_kind_is_read(tmp_path):
    made = dict.fromkeys(MUTANTS["en"].keys() - {"no git"}, 1)
    assert score.read(put(tmp_path / "mutants.json", {**SCORE, "made": made})).made == made
