# `make` alone lists the targets. Everything is installed into .venv on first use;
# PYTHON=/path/to/python3 uses that interpreter as it is instead: no .venv, nothing installed.
SHELL := bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV_PYTHON ?= python3
SITE ?= zh
ADDR ?= 127.0.0.1:8000

STAMP := .venv/.installed
PY := $(if $(PYTHON),$(PYTHON),.venv/bin/python)
READY := $(if $(PYTHON),chosen-python,$(STAMP))
MKDOCS := NO_MKDOCS_2_WARNING=1 PYTHONPATH="$$PWD$${PYTHONPATH:+:$$PYTHONPATH}" "$(PY)" -m mkdocs

.PHONY: help setup verify test mutate matrix lint format site serve addresses shots bench lock clean chosen-python

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "  PYTHON=PATH       use this interpreter as it is, install nothing"
	@echo "  VENV_PYTHON=PATH  the Python (3.11+) that .venv is made with; default python3"
	@echo "  ARGS=...          more arguments: make verify ARGS='--layer softmax', make test ARGS='-k softmax'"

setup: $(READY) ## install the locked packages into .venv
	@echo "setup: $(if $(PYTHON),nothing to install: PYTHON is used as it is,.venv is up to date)"

verify: $(READY) ## prove, measure, and check claims, records and pages
	@"$(PY)" -m refcheck verify $(ARGS)

test: lint ## ruff, mypy, pytest: what CI runs
	@$(call stage,pytest,"$(PY)" -m pytest -n 2 --dist loadgroup $(ARGS))

mutate: $(READY) ## change one thing at a time, everywhere, and count what is caught
	@"$(PY)" -m tests.mutate $(ARGS)

matrix: $(READY) ## measure in each version of torch that has records (ARGS='2.13.0': in that one); several GB each
	@"$(PY)" -m refcheck.matrix $(ARGS)

lint: $(READY) ## ruff and mypy
	@$(call stage,ruff check,"$(PY)" -m ruff check .)
	@$(call stage,ruff format --check (mend: make format),"$(PY)" -m ruff format --check .)
	@$(call stage,mypy,"$(PY)" -m mypy refcheck)

format: $(READY) ## mend what ruff can mend
	@"$(PY)" -m ruff check --fix-only .
	@"$(PY)" -m ruff format .

# Built beside the old site and swapped in at the end, so that a failed or interrupted build leaves site/ whole.
site: $(READY) ## build the site, both languages and the notebooks, into site/
	@set -eu; \
	tmp=$$(mktemp -d ./.site.XXXXXX); \
	trap 'rm -rf "$$tmp"' EXIT; trap 'exit 130' INT TERM; \
	build() { \
	  echo "== site: $$1"; \
	  $(MKDOCS) build --strict -f "$$1" -d "$$tmp/$$2" && return; \
	  echo "make site: $$1 did not build; site/ is left as it was" >&2; exit 1; \
	}; \
	build mkdocs.yml new; \
	build mkdocs.en.yml new/en; \
	build mkdocs.lab.yml new/lab; \
	trap '' INT TERM; \
	if [ -e site ]; then mv site "$$tmp/old"; fi; \
	mv "$$tmp/new" site

serve: $(READY) ## show the site with live reload: SITE=zh (default), en or lab
	@case "$(SITE)" in \
	  zh) config=mkdocs.yml;; \
	  en|lab) config=mkdocs.$(SITE).yml;; \
	  *) echo "make serve: SITE is zh, en or lab, not '$(SITE)'" >&2; exit 2;; \
	esac; \
	$(MKDOCS) serve --livereload -f "$$config" -a "$(ADDR)"

addresses: site ## add what is new in the site to docs/addresses.txt; fails if an address has vanished
	@"$(PY)" -m refcheck.addresses site

shots: $(READY) ## screenshots of the key pages of site/ into shots/, in Chromium
	@[ -e site ] || $(MAKE) site
	@"$(PY)" -m tests.shots site shots

bench: $(READY) ## time proofs, measurements, checks and audits; weigh the pages of site/ if there is one
	@set -eu; for verb in prove measure check; do \
	  echo "== bench: $$verb"; time "$(PY)" -m refcheck $$verb $(ARGS); done
	@echo "== bench: audit"; "$(PY)" -m tests.bench_audit
	@if [ -e site ]; then echo "== bench: weight"; "$(PY)" -m tests.weigh site; fi

lock: $(READY) ## write requirements.lock anew from pyproject.toml (ARGS=--upgrade: newest versions)
	@"$(PY)" -m uv pip compile pyproject.toml --group site --group test --group lock --universal --generate-hashes \
	  --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock' \
	  --quiet --output-file requirements.lock $(ARGS)

clean: ## remove what was built; .venv stays
	rm -rf site shots .site.* .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name .venv -prune -o -name __pycache__ -type d -exec rm -rf {} +

# $(call stage,name,command): run it; if it fails, say which
stage = echo "== $(1)"; $(2) || { code=$$?; echo "make: failed at: $(1) (exit $$code)" >&2; exit $$code; }

chosen-python:
	@command -v "$(PYTHON)" >/dev/null || { echo "make: PYTHON=$(PYTHON) is no program that can be run" >&2; exit 1; }

# The stamp is written last. Without it, what stands in .venv was not finished, and is made anew.
$(STAMP): requirements.lock
	@set -eu; py="$(VENV_PYTHON)"; \
	fail() { echo "make setup: $$1" >&2; exit 1; }; \
	trap 'fail "interrupted; run make again, it begins anew"' INT TERM; \
	version() { "$$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }; \
	hint="install Python 3.11 or newer, or name one: make setup VENV_PYTHON=/path/to/python3"; \
	have=$$(version "$$py") || fail "no working $$py; $$hint"; \
	"$$py" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "$$py is Python $$have, too old; $$hint"; \
	"$$py" -c 'import venv, ensurepip' 2>/dev/null || \
	  fail "$$py (Python $$have) has no venv or ensurepip; on Debian and Ubuntu: apt install python3-venv"; \
	if ! [ -e $@ ] || [ "$$(version .venv/bin/python)" != "$$have" ]; then \
	  echo "setup: making .venv with Python $$have"; \
	  "$$py" -m venv --clear .venv || fail "could not make .venv (see above)"; \
	fi; \
	rm -f $@ .venv/pip.log; \
	echo "setup: installing requirements.lock (several GB with CUDA)"; \
	if ! .venv/bin/python -m pip install --disable-pip-version-check --log .venv/pip.log \
	  --require-hashes -r requirements.lock; then \
	  log() { grep -qiE "$$1" .venv/pip.log; }; \
	  if log 'do not match the hashes'; then fail "a package differs from its hash in requirements.lock (see above)"; fi; \
	  if log 'no space left'; then fail "the disk is full; .venv needs about 7 GB, and pip as much again while it works"; fi; \
	  if log 'connection broken|failed to establish'; then \
	    fail "no network: pip could not reach its package index; connect, or point pip at a mirror, and run make again"; fi; \
	  fail "pip could not install the packages (see above; the whole log: .venv/pip.log)"; \
	fi; \
	touch $@
