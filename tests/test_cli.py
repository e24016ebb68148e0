"""The commands: what they print and write, and that bad input gets one clear line and changes nothing."""

import csv
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from functools import partial

import pytest
import torch
from sympy import simplify

from refcheck import check, evidence, measure, pages, prove
from refcheck.__main__ import main
from refcheck.blocks import BLOCKS
from refcheck.evidence import FOLDER, ROOT, parse
from refcheck.layers import LAYERS
from refcheck.sizes import DEVICES, DTYPES


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A copy of the committed records that a command may write to."""
    copy = tmp_path / "evidence"
    shutil.copytree(FOLDER, copy)
    monkeypatch.setattr(evidence, "FOLDER", copy)
    monkeypatch.setattr(evidence.read_all, "__defaults__", (copy,))
    monkeypatch.setattr(evidence.write, "__defaults__", (copy,))
    return copy


def run(*argv):
    try:
        return main(argv)
    except SystemExit as stop:
        return stop.code


def test_table_json_has_a_row_for_everything(capsys):
    assert run("table", "--json", "-") == 0
    rows = json.loads(capsys.readouterr().out)
    wanted = {
        (layer.id, i.id, device, dtype)
        for layer in (*LAYERS, *BLOCKS)
        for i in layer.implementations
        for device in DEVICES
        for dtype in DTYPES
    }
    assert {(r["layer"], r["implementation"], r["environment"], r["dtype"]) for r in rows} == wanted
    for row in rows:
        if row["absent"]:
            assert (row["saved"], row["bytes"], row["measured"]) == ([], None, [])
            continue
        counted = [s["bytes"] for s in row["saved"] if s["class"] not in ("parameter", "number", "host")]
        assert simplify(sum(map(parse, counted)) - parse(row["bytes"])) == 0
        assert set(row["needed"]) <= {s["name"] for s in row["saved"]}
        assert row["measured"] or row["environment"] == "cuda"


def test_table_csv_has_the_same_rows(capsys):
    assert run("table", "--csv", "-") == 0
    text = capsys.readouterr().out
    assert run("table", "--json", "-") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [r["bytes"] for r in csv.DictReader(io.StringIO(text))] == [r["bytes"] or "" for r in rows]


@pytest.mark.parametrize("lang, word", [("zh", "需要"), ("en", "Needed")])
def test_table_markdown(lang, word, capsys):
    assert run("table", "--lang", lang) == 0
    head, _, *body = capsys.readouterr().out.strip().splitlines()
    assert word in head and all(line.count("|") == head.count("|") for line in body)


def test_prove_one_layer(capsys):
    assert run("prove", "--layer", "residual") == 0
    assert "residual add | dx | every size | holds" in capsys.readouterr().out


def test_check_holds_and_a_planted_error_does_not(folder, capsys):
    assert run("check") == 0
    path = folder / "torch-2.14.1-cpu.json"
    text = path.read_text()
    before, layernorm = text.split('"layer": "layernorm"', 1)
    path.write_text(before + '"layer": "layernorm"' + layernorm.replace('"attr": "result1"', '"attr": "result2"', 1))
    assert run("check", "--json", "-") == 1
    (drift,) = json.loads(capsys.readouterr().out)
    assert (drift["layer"], drift["tensor"], drift["what"]) == ("layernorm", "mean", "place")


def test_measure_writes_only_what_changed(folder, capsys):
    assert run("measure", "--device", "cpu", "--layer", "residual") == 0
    assert "torch-2.14.1-cpu.json: as it was" in capsys.readouterr().out
    path = folder / "torch-2.14.1-cpu.json"
    before = evidence.read(path)
    evidence.write(evidence.Record(before.environment, tuple(r for r in before.rows if r.layer != "residual")), folder)
    assert run("measure", "--device", "cpu", "--layer", "residual") == 0
    assert "written, 3 of its" in capsys.readouterr().out
    assert evidence.read(path).rows == before.rows


BAD = {
    "an unknown layer": (["prove", "--layer", "softmx"], "invalid choice: 'softmx'"),
    "an unknown device": (["measure", "--device", "tpu"], "invalid choice: 'tpu'"),
    "an unknown dtype": (["table", "--dtype", "fp8"], "invalid choice: 'fp8'"),
    "no command": ([], "required"),
    "a file that can't be written": (["table", "--json", "/nowhere/rows.json"], "can't write /nowhere/rows.json"),
}


@pytest.mark.parametrize("argv, message", BAD.values(), ids=BAD)
def test_bad_input(argv, message, capsys):
    assert run(*argv) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert message in last


def test_no_gpu(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run("measure", "--device", "cuda") == 2
    err = capsys.readouterr().err.strip()
    assert err.count("\n") == 0 and "needs a GPU" in err and "--device cuda-trace" in err


def test_no_cuda_build(capsys, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    assert run("measure", "--device", "cuda-trace") == 2
    err = capsys.readouterr().err.strip()
    assert err.count("\n") == 0 and "needs a CUDA build" in err and "--device cpu" in err


def test_without_a_cuda_build_the_rest_goes_on(capsys, monkeypatch, folder):
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run("verify", "--layer", "residual") == 0
    assert "not measured: cuda-trace needs a CUDA build" in capsys.readouterr().err


def test_torch_too_old(capsys, monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.8.1")
    assert run("check") == 2
    assert "too old" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["check", "verify", "measure", "table"])
def test_a_damaged_record(command, folder, capsys):
    path = folder / "torch-2.14.1-cpu.json"
    path.write_text(path.read_text()[:1000])
    from refcheck import rows

    for cached in (rows.records, rows.supported):
        cached.cache_clear()
    try:
        assert run(command, "--layer", "residual") == 2
    finally:
        for cached in (rows.records, rows.supported):
            cached.cache_clear()
    err = capsys.readouterr().err.strip().splitlines()[-1]
    assert path.name in err and "restore it from git" in err
    assert len(path.read_text()) == 1000


def test_a_folder_that_cant_be_written(folder, capsys, monkeypatch):
    (folder / "torch-2.14.1-cpu.json").unlink()

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(evidence.tempfile, "mkstemp", refuse)
    assert run("measure", "--device", "cpu", "--layer", "residual") == 2
    assert "Permission denied" in capsys.readouterr().err


def test_a_disagreement_is_one_line(capsys, monkeypatch):
    def disagree(*_):
        raise measure.Unavailable("tracing pinned a size")

    monkeypatch.setattr(measure, "_traced", disagree)
    if torch.version.cuda:
        assert run("measure", "--device", "cuda-trace", "--layer", "residual") == 2
        assert capsys.readouterr().err.strip().splitlines()[-1] == "refcheck: tracing pinned a size"


def test_interrupted_in_the_middle():
    before = {p.name: p.read_bytes() for p in FOLDER.iterdir()}
    command = [sys.executable, "-m", "refcheck", "verify"]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a job in the background is started deaf to it
    with subprocess.Popen(command, cwd=ROOT, preexec_fn=heard, **pipes) as process:
        process.stdout.readline()  # it has begun
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.strip().splitlines()[-1] == "refcheck: interrupted; nothing was half-written"
    assert {p.name: p.read_bytes() for p in FOLDER.iterdir()} == before


@pytest.mark.parametrize("missing", ["torch", "sympy"])
def test_a_python_without_what_it_needs(missing, tmp_path):
    (tmp_path / f"{missing}.py").write_text(f"raise ModuleNotFoundError('no', name={missing!r})")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "refcheck", "check"], cwd=ROOT, env=env, capture_output=True, text=True
    )
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert re.search(rf"no {missing}: .*-m pip install '{missing}", done.stderr)


HIDDEN = ("mkdocs", "jinja2", "markdown", "yaml", "jieba", "py_mini_racer", "jupytext", "matplotlib", "pytest", "rich")


def test_only_torch_and_sympy_are_imported_to_verify():
    """On a bare GPU image there is nothing of the site's or the tests' packages."""
    hide = f"import sys; sys.modules.update(dict.fromkeys({HIDDEN}))"
    command = "from refcheck.__main__ import main; sys.exit(main(['verify', '--layer', 'residual', '--device', 'cpu']))"
    done = subprocess.run([sys.executable, "-c", f"{hide}; {command}"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


WRONG = check.Drift("softmax", "eager", "bfloat16", "here", "P", "dtype", "float32", "bfloat16", "look")
REFUTED = prove.Finding("softmax", "from-output", "every size", "dS", "it differs", 0.0)


@pytest.mark.parametrize("command", ["check", "verify"])
@pytest.mark.parametrize("where", ["record", "page"])
def test_a_drift_is_told_and_fails(command, where, monkeypatch, capsys):
    module, name = {"record": (check, "check_record"), "page": (pages, "check_pages")}[where]
    monkeypatch.setattr(module, name, lambda *_: [WRONG])
    assert run(command, "--layer", "softmax", "--device", "cpu", "--dtype", "float32") == 1
    assert f"DRIFT {WRONG}" in capsys.readouterr().out


def test_a_fresh_drift_is_told_and_fails(monkeypatch, capsys):
    monkeypatch.setattr(check, "check_fresh", lambda *_: [WRONG])
    assert run("verify", "--layer", "softmax", "--device", "cpu", "--dtype", "float32") == 1
    assert f"DRIFT {WRONG}" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["prove", "verify"])
def test_a_refutation_is_told_and_fails(command, monkeypatch, capsys):
    monkeypatch.setattr(prove, "prove", lambda layer: iter([REFUTED]))
    devices = [] if command == "prove" else ["--device", "cpu", "--dtype", "float32"]
    assert run(command, "--layer", "softmax", *devices) == 1
    assert str(REFUTED) in capsys.readouterr().out
