"""Pages in a real browser: a few pages of both languages, built and served from this machine, in Chromium.

A test asks for `visit`, and opens pages with it: ``page = visit("table/", width=390, scheme="dark")``.
"""

import os
import re
import shutil
import subprocess
import sys
import threading
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from refcheck.evidence import ROOT

PAGES = ("index.md", "table.md", "layers/softmax.md")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *given):
        pass


@contextmanager
def serving(folder):
    """The address at which this machine serves a folder, for as long as it is wanted."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()


@contextmanager
def running():
    """The Chromium that is there, started by playwright."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def few_pages(folder):
    """A checkout with these pages alone, which is quick to build."""
    away = shutil.ignore_patterns(".git", ".venv", "site", ".site.*", "__pycache__", "tests", "lab")
    shutil.copytree(ROOT, folder, ignore=away)
    for lang in ("zh", "en"):
        for path in (folder / "docs" / lang).rglob("*.md"):
            if path.relative_to(folder / "docs" / lang).as_posix() not in PAGES:
                path.unlink()
    config = folder / "mkdocs.yml"
    kept = [line for line in config.read_text().splitlines() if not re.match(r"  - (?!index|table)\w+\.md$", line)]
    config.write_text("\n".join(kept) + "\n")


@pytest.fixture(scope="session")
def served(tmp_path_factory):
    """The address of these pages, built as the site is; links to the pages left out lead nowhere."""
    folder = tmp_path_factory.mktemp("browser")
    few_pages(folder / "checkout")
    env = {**os.environ, "PYTHONPATH": str(folder / "checkout"), "NO_MKDOCS_2_WARNING": "1"}
    for config, part in (("mkdocs.yml", ""), ("mkdocs.en.yml", "en")):
        command = [sys.executable, "-m", "mkdocs", "build", "-q", "-f", config, "-d", str(folder / "site" / part)]
        done = subprocess.run(command, cwd=folder / "checkout", env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
    with serving(folder / "site") as address:
        yield address


@pytest.fixture(scope="session")
def chromium():
    if CHROMIUM is None:
        pytest.skip("no Chromium here; on Debian: apt install chromium")
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make setup")
    with running() as browser:
        yield browser


@pytest.fixture
def visit(chromium, served):
    """Opens a page; at the end of the test none may have complained, or asked another host for anything."""
    wrong, contexts = [], []

    def note(page):
        page.on("console", lambda m: m.type in ("error", "warning") and wrong.append(f"{m.type}: {m.text}"))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda r: r.url.startswith((served, "blob:", "data:")) or wrong.append(f"asked {r.url}"))
        page.on("response", lambda r: r.status < 400 or wrong.append(f"{r.status} {r.url}"))

    def open_page(path, width=1440, height=1000, scheme="light", javascript=True, locale="en-US"):
        context = chromium.new_context(
            viewport=dict(width=width, height=height),
            color_scheme=scheme,
            java_script_enabled=javascript,
            locale=locale,
        )
        contexts.append(context)
        page = context.new_page()
        note(page)
        page.goto(served + path)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []
