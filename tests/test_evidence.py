"""Records are data: written whole or not at all, read strictly, and nothing in them is ever run."""

import json
import os
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
from sympy import ceiling

from refcheck import Problem, evidence
from refcheck.blocks import BLOCKS
from refcheck.evidence import Record, merge, parse, read, read_all, source_hash, to_json, write
from refcheck.layers import LAYERS
from refcheck.sizes import B, D, T, g, h

NAME = "torch-2.14.1-cpu"
SMALL = replace(
    read_all()[NAME], rows=tuple(r for r in read_all()[NAME].rows if r.layer in ("layernorm", "residual"))[:4]
)


@pytest.fixture
def path(tmp_path):
    return write(SMALL, tmp_path)


def test_a_record_comes_back_as_it_was(path):
    assert read(path) == SMALL
    assert to_json(read(path)) == path.read_text()


@pytest.mark.parametrize("record", read_all().values(), ids=lambda r: r.environment.name)
def test_the_committed_records_are_what_this_code_writes(record, tmp_path):
    assert (evidence.FOLDER / f"{record.environment.name}.json").read_text() == to_json(record)


ENVIRONMENTS = {
    "date": ("soon", "2026-13-01", "26-1-1", ""),
    "commit": ("a good one", "ffff", "0123456789abcdef-clean"),
    "python": ("three", ""),
    "cuda": ("13.0",),  # of a record from the CPU
    "gpu": ("NVIDIA H200",),
    "driver": ("580.1",),
}


def edits(data):
    """(what was done, the JSON with that one thing done)."""

    def changed(*where, to):
        new = json.loads(json.dumps(data))
        at = new
        for step in where[:-1]:
            at = at[step]
        if to is DROP:
            del at[where[-1]]
        else:
            at[where[-1]] = to
        return new

    yield "another schema", changed("schema", to=2)
    yield "no schema", changed("schema", to=DROP)
    yield "an unknown field", changed("more", to=1)
    yield "another environment", changed("environment", "torch", to="2.0.0")
    yield "another device", changed("environment", "device", to="tpu")
    for field, values in ENVIRONMENTS.items():
        for value in values:
            yield f"{field} {value}", changed("environment", field, to=value)
    yield "no rows", changed("rows", to=None)
    yield "a row twice", changed("rows", to=[*data["rows"], data["rows"][0]])
    row = ("rows", 0)
    yield "a row without its hash", changed(*row, "source", to=DROP)
    yield "a row without runs", changed(*row, "runs", to=[])
    run = (*row, "runs", 0)
    yield "a total", changed(*run, "bytes", to="1")
    yield "a host total", changed(*run, "host_bytes", to="1")
    yield "a size", changed(*run, "sizes", "B", to=0)
    yield "a size of text", changed(*run, "sizes", "B", to="2")
    saved = (*run, "saved", 1)
    yield "bytes", changed(*saved, "bytes", to="17")
    yield "hostile bytes", changed(*saved, "bytes", to="__import__('os').system('true')")
    yield "endless bytes", changed(*saved, "bytes", to="9**9**9**9")
    yield "an unknown dtype", changed(*saved, "dtype", to="float7")
    yield "an unknown class", changed(*saved, "class", to="gift")
    yield "a shape of numbers", changed(*saved, "shape", to=[1, 2])
    for field in data["rows"][0]["runs"][0]["saved"][1]:
        yield f"a tensor without {field}", changed(*saved, field, to=DROP)


DROP = object()
EDITS = dict(edits(json.loads(to_json(SMALL))))


@pytest.mark.parametrize("data", EDITS.values(), ids=EDITS)
def test_an_edited_record_is_refused(data, path):
    path.write_text(json.dumps(data))
    with pytest.raises(Problem, match=NAME) as refused:
        read(path)
    assert "\n" not in str(refused.value) and "restore it from git" in str(refused.value)


BROKEN = {
    "truncated": lambda text: text[: len(text) // 2],
    "empty": lambda text: "",
    "a list": lambda text: "[]",
    "deep": lambda text: "[" * 100_000,
    "not a number": lambda text: text.replace('"schema": 1', '"schema": NaN'),
}


@pytest.mark.parametrize("damage", BROKEN.values(), ids=BROKEN)
def test_a_damaged_file_is_refused(damage, path):
    path.write_text(damage(path.read_text()))
    with pytest.raises(Problem, match=NAME):
        read(path)


def test_bytes_that_are_not_text(path):
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(Problem, match=NAME):
        read(path)


def test_an_interrupted_write_leaves_the_old_record(path, monkeypatch):
    before = path.read_text()
    for step in ("fsync", "replace", "chmod"):

        def interrupted(*_):
            raise KeyboardInterrupt

        with monkeypatch.context() as m:
            m.setattr(os, step, interrupted)
            with pytest.raises(KeyboardInterrupt):
                write(replace(SMALL, rows=()), path.parent)
        assert path.read_text() == before and list(path.parent.iterdir()) == [path]


def test_a_full_disk_leaves_the_old_record(path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Problem, match="No space left on device"):
        write(replace(SMALL, rows=()), path.parent)
    assert read(path) == SMALL and list(path.parent.iterdir()) == [path]


def test_merging_keeps_what_was_not_measured_now_and_drops_what_is_unknown():
    old, new = SMALL, Record(SMALL.environment, (replace(SMALL.rows[0], source="new"),))
    merged = merge(old, new, {row.key: None for row in SMALL.rows[:2]})
    assert [row.source == "new" for row in merged.rows] == [True, False]


@pytest.mark.parametrize(
    "form, text",
    [
        (2 * B * T * D + 8 * B * T, "2*B*T*D + 8*B*T"),
        (B * T**2, "B*T**2"),
        (0 * B, "0"),
        (h / g, "h/g"),
        (128 * B * ceiling(T / 32), "128*B*ceiling(T/32)"),
    ],
)
def test_closed_forms_are_read(form, text):
    assert parse(text) == form


@pytest.mark.parametrize(
    "text",
    [
        "",
        "B(",
        "f(B)",
        "B.x",
        "B[0]",
        "'B'",
        "1.5*B",
        "B/0",
        "B//2",
        "ceiling(T, 32)",
        "ceiling()",
        "floor(T)",
        "B**T",
        "B**99",
        "lambda: 0",
        "B if T else D",
        "B # and a comment",
        "B\n",
        "Ｂ",
    ],
)
def test_nothing_else_is_read(text):
    with pytest.raises(ValueError, match="no closed form"):
        parse(text)


LAYERNORM = next(layer for layer in LAYERS if layer.id == "layernorm")


def test_the_hash_follows_the_code_and_not_its_layout_or_prose(tmp_path, monkeypatch):
    text = Path(find_spec(LAYERNORM.module).origin).read_text()
    copy = tmp_path / "layer.py"
    monkeypatch.setattr(evidence, "find_spec", lambda _: SimpleNamespace(origin=str(copy)))

    def hash_of(version):
        copy.write_text(version)
        return source_hash.__wrapped__(LAYERNORM)

    assert text.count('en="LayerNorm"') == 1 and text.count("x - mean") > 1
    assert hash_of("# a comment\n" + text) == hash_of(text)
    assert hash_of(text.replace('en="LayerNorm"', 'en="Layer norm"')) == hash_of(text)
    assert hash_of(text.replace("x - mean", "x + mean")) != hash_of(text)


def test_the_hash_follows_the_layers_that_a_layer_is_made_from(tmp_path, monkeypatch):
    """Changed in one place, stale everywhere: an instance, a layer that uses another, a block."""
    spoilt = tmp_path / "dropout.py"
    text = Path(find_spec("refcheck.layers.dropout").origin).read_text()
    assert text.count("training=True, inplace=True") == 1
    spoilt.write_text(text.replace("training=True, inplace=True", "training=True"))

    def hashes():
        return {layer.id: source_hash.__wrapped__(layer) for layer in (*LAYERS, *BLOCKS)}

    def find(module):
        return SimpleNamespace(origin=str(spoilt)) if module == "refcheck.layers.dropout" else find_spec(module)

    before = hashes()
    monkeypatch.setattr(evidence, "find_spec", find)
    changed = {name for name, value in hashes().items() if value != before[name]}
    assert changed == {
        *("dropout", "attention-dropout", "ffn-dropout"),  # instances
        *("sdpa", "gqa", "lora"),  # call it, or one that does
        *("gpt2", "article", "llama3", "qwen3"),  # blocks made of these
    }


@pytest.mark.parametrize(
    "module, old, new, which",
    [
        ("refcheck.blocks.llama3", "eps=1e-5", "eps=1e-6", {"llama3", "qwen3"}),
        ("refcheck.routing", "def plan(", "def planned(", {"moe"}),
    ],
)
def test_the_hash_follows_blocks_and_routing(module, old, new, which, tmp_path, monkeypatch):
    spoilt = tmp_path / "other.py"
    text = Path(find_spec(module).origin).read_text()
    assert text.count(old) == 1
    spoilt.write_text(text.replace(old, new))

    def hashes():
        return {layer.id: source_hash.__wrapped__(layer) for layer in (*LAYERS, *BLOCKS)}

    before = hashes()
    monkeypatch.setattr(
        evidence, "find_spec", lambda name: SimpleNamespace(origin=str(spoilt)) if name == module else find_spec(name)
    )
    assert {name for name, value in hashes().items() if value != before[name]} == which


def test_a_device_is_written_to_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    evidence.replace(pipe, "text")
    assert os.read(reader, 10) == b"text" and pipe.is_fifo()
    os.close(reader)


def test_a_link_stays_a_link(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    evidence.replace(link, "new")
    assert link.is_symlink() and target.read_text() == "new"
