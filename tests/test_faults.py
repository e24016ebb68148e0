"""Whatever goes wrong, a record is old or new and never between, no row is lost, and the error is one line."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from dataclasses import replace

import pytest

from refcheck import Problem, evidence
from refcheck.__main__ import main
from refcheck.evidence import FOLDER, ROOT, Record, locked, merge, read, read_all, write

NAME = "torch-2.14.1-cpu"
WHOLE = read_all()[NAME]
SMALL = replace(WHOLE, rows=tuple(r for r in WHOLE.rows if r.layer in ("layernorm", "residual"))[:6])
LESS = replace(SMALL, rows=SMALL.rows[:1])


@pytest.fixture
def path(tmp_path):
    return write(SMALL, tmp_path)


def child(work):
    """Runs `work` in a process of its own; how that ended: an exit status, or minus the signal."""
    if (pid := os.fork()) == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return pid


def ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


class Half:
    """A file of which half is written when `stop` is called."""

    def __init__(self, file, stop):
        self.file, self.stop = file, stop

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def write(self, text):
        self.file.write(text[: len(text) // 2])
        self.file.flush()
        self.stop()


def halfway(stop):
    real = os.fdopen
    return lambda *args, **more: Half(real(*args, **more), stop)


STEPS = ("mkstemp", "fdopen", "fsync", "chmod", "replace")


def broken(step, stop, patch):
    """Calls `stop` in place of one step of a write, or in the middle of writing."""
    if step == "mkstemp":
        patch.setattr(evidence.tempfile, "mkstemp", stop)
    else:
        patch.setattr(os, step, halfway(stop) if step == "fdopen" else stop)


@pytest.mark.parametrize("stop", [die, lambda *_, **__: os._exit(9)], ids=["SIGKILL", "os._exit"])
@pytest.mark.parametrize("step", STEPS)
def test_killed_at_any_moment_the_old_record_is_whole(step, stop, path):
    def work():
        broken(step, stop, pytest.MonkeyPatch())
        write(LESS, path.parent)

    assert ended(child(work)) in (-signal.SIGKILL, 9)
    assert read(path) == SMALL
    assert list(read_all(path.parent)) == [NAME]  # what is left of the new one is no record
    write(LESS, path.parent)
    assert read(path) == LESS  # and is in nobody's way


def test_killed_after_the_rename_the_new_record_is_whole(path):
    def work():
        real = os.replace
        pytest.MonkeyPatch().setattr(os, "replace", lambda a, b: (real(a, b), die()))
        write(LESS, path.parent)

    assert ended(child(work)) == -signal.SIGKILL
    assert read(path) == LESS


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS], ids=errno.errorcode.get)
def test_a_write_that_fails_leaves_the_old_record_and_nothing_else(step, number, path, monkeypatch):
    def fail(*_, **__):
        raise OSError(number, os.strerror(number))

    broken(step, fail, monkeypatch)
    with pytest.raises(Problem, match=os.strerror(number)) as told:
        write(LESS, path.parent)
    monkeypatch.undo()
    assert "\n" not in str(told.value) and str(path) in str(told.value)
    assert read(path) == SMALL and list(path.parent.iterdir()) == [path]


def first(data):
    return data["rows"][0]


FOREIGN = {
    "an older schema": lambda data: data.update(schema=0),
    "a newer schema": lambda data: data.update(schema=2),
    "an unknown field": lambda data: data.update(colour="red"),
    "an unknown field of the environment": lambda data: data["environment"].update(host="here"),
    "an unknown field of a row": lambda data: first(data).update(note=""),
    "an unknown field of a tensor": lambda data: first(data)["runs"][0]["saved"][0].update(note=""),
    "no hash": lambda data: first(data).update(source="good"),
}


@pytest.mark.parametrize("change", FOREIGN.values(), ids=FOREIGN)
def test_a_foreign_record_is_one_clear_line(change, path):
    data = json.loads(path.read_text(encoding="utf-8"))
    change(data)
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(Problem, match="restore it from git, or measure again") as told:
        read(path)
    assert "\n" not in str(told.value) and str(path) in str(told.value)


@pytest.mark.parametrize("part", [0, 1, 10, 1000, -2], ids=str)
def test_a_record_cut_off_anywhere_is_refused(part, path):
    path.write_bytes(path.read_bytes()[:part])
    with pytest.raises(Problem, match=NAME):
        read(path)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The record of this torch alone, in a folder that commands write to."""
    shutil.copy(FOLDER / f"{NAME}.json", tmp_path)
    monkeypatch.setattr(evidence, "FOLDER", tmp_path)
    for function in (read_all, write):
        monkeypatch.setattr(function, "__defaults__", (tmp_path,))
    return tmp_path


def test_a_row_with_the_hash_of_another_layer_is_a_drift(folder, capsys):
    other = next(row.source for row in WHOLE.rows if row.layer == "linear")
    rows = tuple(replace(row, source=other) if row.layer == "residual" else row for row in WHOLE.rows)
    assert main(["check", "--layer", "residual", "--json", "-"]) == 0
    capsys.readouterr()
    write(Record(WHOLE.environment, rows), folder)
    assert main(["check", "--layer", "residual", "--json", "-"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert {d["what"] for d in told} == {"module"} and {d["measured"] for d in told} == {f"as of {other}"}


# --- two at once -----------------------------------------------------------------------------------------------------


def add(rows, folder, lock):
    """What `measure` does with its rows, slowly."""
    with lock:
        old = read(folder / f"{NAME}.json")
        time.sleep(0.2)
        write(merge(old, Record(SMALL.environment, rows), {r.key: None for r in SMALL.rows}), folder)


def together(folder, lock):
    write(replace(SMALL, rows=()), folder)
    work = [child(lambda row=row: add((row,), folder, lock())) for row in SMALL.rows[:3]]
    assert [ended(pid) for pid in work] == [0, 0, 0]
    return len(read(folder / f"{NAME}.json").rows)


def test_processes_that_write_at_once_lose_no_row(tmp_path):
    assert together(tmp_path, lambda: locked(tmp_path)) == 3
    assert list(tmp_path.iterdir()) == [tmp_path / f"{NAME}.json"]  # the lock leaves nothing behind


def test_without_the_lock_they_would(tmp_path):
    assert together(tmp_path, nullcontext) < 3


def test_measure_waits_for_another_and_keeps_what_that_wrote(folder, monkeypatch, capsys):
    import fcntl

    write(replace(WHOLE, rows=()), folder)
    real, asked, codes = fcntl.flock, threading.Event(), []
    argv = ["measure", "--device", "cpu", "--layer", "residual", "--dtype", "float32"]
    work = threading.Thread(target=lambda: codes.append(main(argv)))
    with locked(folder):
        monkeypatch.setattr(fcntl, "flock", lambda *args: (asked.set(), real(*args)))
        work.start()
        assert asked.wait(60)
        other = next(row for row in WHOLE.rows if row.layer == "linear")
        write(replace(WHOLE, rows=(other,)), folder)  # the other one is done, and lets go
    work.join(60)
    assert codes == [0]
    assert {row.layer for row in read(folder / f"{NAME}.json").rows} == {"linear", "residual"}


def test_a_folder_that_cant_be_locked_is_told_and_written_to(tmp_path, monkeypatch, capsys):
    import fcntl

    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with locked(tmp_path):
        write(SMALL, tmp_path)
    assert "can't be locked: No locks available" in capsys.readouterr().err


def test_a_folder_that_is_none_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Problem, match=r"can't open .*file"), locked(tmp_path / "file"):
        pass


# --- other places and locales ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """The project without git, at a path with spaces and Chinese characters, and one record to keep it quick."""
    place = tmp_path_factory.mktemp("place") / "我的 项目 (copy)"
    leave = shutil.ignore_patterns("__pycache__", "*.woff2", "torch-2.9*", "torch-2.11*", "torch-2.13*", "*trace.json")
    for part in ("refcheck", "docs"):
        shutil.copytree(ROOT / part, place / part, ignore=leave)
    for part in ("README.md", "CITATION.cff"):
        shutil.copy(ROOT / part, place)
    return place


@pytest.fixture(scope="module")
def gb18030(tmp_path_factory):
    """A folder with a Chinese locale that isn't UTF-8, compiled for this test."""
    folder = tmp_path_factory.mktemp("locales")
    if not (tool := shutil.which("localedef")):
        pytest.skip("no localedef")
    target = folder / "zh_CN.GB18030"
    subprocess.run([tool, "-c", "-i", "zh_CN", "-f", "GB18030", str(target)], capture_output=True, check=False)
    if not target.exists():
        pytest.skip("the sources of locales are not installed")
    return folder


def started(checkout, argv, **env):
    """Runs commands in one process; no git is on its path."""
    env = {**os.environ, "PATH": "", "PYTHONUTF8": "0", "PYTHONPATH": str(checkout), **env}
    env.pop("PYTHONIOENCODING", None) if "PYTHONIOENCODING" not in env else None
    code = f"from refcheck.__main__ import main; import sys; sys.exit(max([main(argv) for argv in {argv!r}]))"
    return subprocess.run([sys.executable, "-c", code], cwd=checkout, env=env, capture_output=True)


COMMANDS = [["table", "--lang", "zh", "--layer", "residual"], ["check", "--layer", "residual"]]


def same_as_ever(done, encoding):
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-2000:]
    text = done.stdout.decode(encoding)
    assert "| 层 |" in text and "残差" in text
    assert b"check: all holds" in done.stderr and b"Traceback" not in done.stderr


def test_where_the_locale_knows_ascii_only(checkout):
    same_as_ever(started(checkout, COMMANDS, LC_ALL="C"), "utf-8")


def test_where_the_locale_is_chinese_and_not_utf8(checkout, gb18030):
    done = started(checkout, COMMANDS, LC_ALL="zh_CN.GB18030", LOCPATH=str(gb18030))
    same_as_ever(done, "gb18030")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "gbk", "gb18030", "utf-8"])
def test_every_encoding_gets_json_that_says_the_same(encoding, monkeypatch):
    import io

    from refcheck.__main__ import _printable, _write_json

    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))
    _printable()
    facts = ["é → 残差 \U0001d4ab √"]
    _write_json(type("Args", (), {"json": "-"}), facts)
    sys.stdout.flush()
    assert json.loads(raw.getvalue().decode("utf-8" if encoding == "ascii" else encoding)) == facts


def test_an_error_in_such_a_place_is_one_line_too(checkout, tmp_path):
    copy = tmp_path / "拷贝 二"
    shutil.copytree(checkout / "refcheck", copy / "refcheck")
    (copy / "docs" / "evidence").mkdir(parents=True)
    record = copy / "docs" / "evidence" / f"{NAME}.json"
    record.write_text('{"schema"', encoding="utf-8")
    done = started(copy, [["check", "--layer", "residual"]], LC_ALL="C")
    assert done.returncode == 2 and done.stdout == b"" and done.stderr.count(b"\n") == 1
    assert done.stderr.startswith(b"refcheck: ") and b"restore it from git" in done.stderr
    assert record.read_text(encoding="utf-8") == '{"schema"'
