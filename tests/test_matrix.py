"""`make matrix`: an environment per version of torch, finished or made anew, and a failure that is told."""

import sys
from pathlib import Path

import pytest

from refcheck import Problem, matrix
from refcheck.evidence import read_all


@pytest.fixture
def ran(monkeypatch):
    """The commands that would be run; those that hold a word of `fails` fail."""
    commands = []

    def run(command):
        commands.append(" ".join(map(str, command)))
        if command[1:3] == ["-m", "venv"]:
            Path(command[3]).mkdir(parents=True)
        return int(any(word in commands[-1] for word in run.fails))

    run.fails = ()
    monkeypatch.setattr(matrix, "run", run)
    monkeypatch.setattr(matrix, "devices", lambda python: ["cpu", "cuda-trace"])
    return commands, run


def test_the_versions_are_those_of_the_records_in_order():
    found = matrix.known()
    assert {*found} == {r.environment.torch for r in read_all().values()}
    assert found.index("2.9.1") < found.index("2.11.0")


def test_an_environment_is_made_once(ran, tmp_path):
    commands, _ = ran
    python = matrix.environment("2.13.0", tmp_path)
    assert python == tmp_path / "torch-2.13.0" / "bin" / "python"
    assert commands[1:] == [f"{python} -m pip install torch==2.13.0 sympy numpy"]
    matrix.environment("2.13.0", tmp_path)
    assert len(commands) == 2


def test_one_that_was_not_finished_is_made_anew(ran, tmp_path):
    commands, run = ran
    run.fails = ("pip",)
    with pytest.raises(Problem, match=r"torch 2.13.0 can't be installed"):
        matrix.environment("2.13.0", tmp_path)
    (tmp_path / "torch-2.13.0" / "half").touch()
    run.fails = ()
    matrix.environment("2.13.0", tmp_path)
    assert len(commands) == 4 and not (tmp_path / "torch-2.13.0" / "half").exists()


@pytest.mark.parametrize("fails, failures", [((), 0), (("--device cpu",), 2), (("torch==2.9.1",), 1)])
def test_each_version_is_measured_whatever_becomes_of_another(fails, failures, ran, tmp_path, capsys):
    commands, run = ran
    run.fails = fails
    assert matrix.main(["2.9.1", "2.13.0", "--cache", str(tmp_path)]) == (1 if failures else 0)
    measured = [c for c in commands if "-m refcheck measure" in c]
    assert len(measured) == (2 if failures == 1 else 4)
    assert capsys.readouterr().err.count("matrix: ") == failures


@pytest.mark.parametrize("version", ["2", "2.14", "latest", "2.14.1 --index-url x", "../2.14.1"])
def test_another_word_is_refused_before_anything_is_installed(version, ran, tmp_path, capsys):
    assert matrix.main(["2.9.1", version, "--cache", str(tmp_path)]) == 2
    assert ran[0] == [] and capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("said, found", [("cuda", ["cpu", "cuda-trace"]), ("none", ["cpu"]), (None, ["cpu"])])
def test_a_build_without_cuda_is_not_traced(said, found, monkeypatch):
    monkeypatch.setattr(matrix, "output", lambda *_: said)
    assert matrix.devices(Path(sys.executable)) == found
