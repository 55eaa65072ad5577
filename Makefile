# Every target sets up what it needs. `make demo` shows the hub at work, `make test` tests it on real API servers.

PYTHON ?= python3
BIN := .venv/bin
# Further arguments of the command a target runs: make test ARGS="-k eligibility"
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test test-nightly unit check format bench bench-copy bench-health mutants deps servers clean

help:
	@echo "make demo     the hub at work on simulated clusters, no Kubernetes needed"
	@echo "make test     all tests, on real API servers (built once into the cache folder if need be)"
	@echo "make test-nightly  the same, and the tests that take minutes"
	@echo "make unit     the tests that need no API server"
	@echo "make check    format, lint, types, layers, unit tests: before every commit"
	@echo "make format   let ruff format and repair"
	@echo "make bench    measure the hub beside the Go reference and the floor"
	@echo "make mutants  what the unit tests of hub.desired, hub.plan and the guard would not notice: ten minutes"
	@echo "make bench-health  measure health checks: CPU, cadence, detection (needs user namespaces)"
	@echo "make bench-copy  measure a copied Service beside a client-go watcher"
	@echo "make deps     as root on Debian: prometheus and chromium, for the tests that want them"
	@echo "make clean    remove .venv and caches of this folder (not the built API servers)"
	@echo "ARGS=… goes to the command that is run"

# The stamp is younger than whatever decides what belongs into the environment.
.venv/.stamp: pyproject.toml uv.lock $(wildcard providers/*/pyproject.toml) tools/make_venv.py
	@$(PYTHON) tools/make_venv.py
	@touch $@

demo: .venv/.stamp
	@$(BIN)/hub demo $(ARGS)

# Without API servers their tests are skipped, with the reason; in CI that is a failure.
servers: .venv/.stamp
	@$(BIN)/python tests/support/apiserver/binaries.py || test -z "$$CI"

test: servers
	@$(BIN)/python -m pytest $(ARGS)

test-nightly: servers
	@$(BIN)/python -m pytest --nightly $(ARGS)

unit: .venv/.stamp
	@$(BIN)/python -m pytest -q -m "not apiserver" $(ARGS)

check: .venv/.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(MAKE) --no-print-directory unit

format: .venv/.stamp
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: servers
	@$(BIN)/python benchmarks/bench.py $(ARGS)

# The tool comes when it is asked for, since it brings more than all the others together.
MUTMUT := mutmut==3.8.1
mutants: .venv/.stamp
	@if command -v uv >/dev/null; then uv pip install --quiet --python $(BIN)/python $(MUTMUT); \
		else $(BIN)/python -m pip install --quiet $(MUTMUT); fi
	@$(BIN)/python -m mutmut run $(ARGS)
	@$(BIN)/python tools/mutants.py

bench-health: .venv/.stamp
	@$(BIN)/python benchmarks/health.py $(ARGS)

bench-copy: servers
	@$(BIN)/python benchmarks/service_copy.py $(ARGS)

deps:
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update && apt-get install --yes --no-install-recommends prometheus chromium; \
	else \
		echo "not root, or no apt-get: install prometheus and chromium yourself (their tests are skipped without them)"; \
	fi

clean:
	rm -rf .venv mutants .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
