# Every target creates its environment itself. Start with `make demo` or `make test`.

PYTHON ?= python3
BIN := .venv/bin
# Additional arguments for the command of a target: make test ARGS="-k eligibility"
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help screenshots demo test test-nightly test-model faults fuzz soak unit check static format traffic bench bench-allocations bench-cloud bench-copy bench-health bench-scale mutants docs image sbom audit deps servers clean

help:
	@echo "make demo     run the hub on simulated clusters; needs no Kubernetes"
	@echo "make test     run all tests on real API servers, which are built once into the cache folder if necessary"
	@echo "make test-nightly  run all tests, including those that take minutes"
	@echo "make test-model  run 20,000 random steps of the whole hub in a simulated world: 15 minutes"
	@echo "make soak     run the hub for an hour with ten times the churn and faults of production, and check the result"
	@echo "make faults   run every row of the fault table and write its figures into docs/reliability.md: 15 minutes"
	@echo "make fuzz     run FUZZ times as many damaged inputs as make test, see docs/bad-input.md"
	@echo "make unit     run the tests that need no API server"
	@echo "make check    check format, lint, types, layers and docs, and run the unit tests: before every commit"
	@echo "make static   make check without the unit tests"
	@echo "make format   format the code and apply ruff's fixes"
	@echo "make bench    compare the hub with the Go reference and a minimal program"
	@echo "make mutants  change the code in 200 random places, one at a time, and list changes that no unit test detects"
	@echo "make traffic  send real requests through kube-proxy and Envoy while something fails: 25 minutes"
	@echo "make bench-health  measure health checks: CPU, cadence, detection (needs user namespaces)"
	@echo "make bench-scale  measure the hub on 500 clusters: 30 minutes"
	@echo "make bench-allocations  measure moves of reserved addresses: 8 minutes"
	@echo "make bench-cloud  compare the cloud controller with one in Go that makes the original's requests: 90 minutes"
	@echo "make bench-copy  compare a copied Service with a client-go watcher"
	@echo "make docs     build the documentation site in build/docs/site; fails on broken links"
	@echo "make image    build the container image as build/endpointslice-hub.oci.tar, without a container engine"
	@echo "make sbom     write the bill of materials to build/sbom.json"
	@echo "make audit    list known vulnerabilities of the locked dependencies (needs network)"
	@echo "make screenshots  take the screenshots of docs/status-page.md"
	@echo "make deps     as root on Debian, install the programs that some tests need: Prometheus, Chromium, nft, tools for images"
	@echo "make clean    remove .venv and the caches of this folder (not the built API servers)"
	@echo "ARGS=… is passed to the command of the target"

# The environment is updated when one of these files is newer than the stamp.
.venv/.stamp: pyproject.toml uv.lock $(wildcard providers/*/pyproject.toml) testkit/pyproject.toml tools/make_venv.py
	@$(PYTHON) tools/make_venv.py
	@touch $@

demo: .venv/.stamp
	@$(BIN)/hub demo $(ARGS)

# If the API servers cannot be built, the tests that need them are skipped with the reason; in CI, that is a failure.
servers: .venv/.stamp
	@$(BIN)/python tests/support/apiserver/binaries.py || test -z "$$CI"

# Test processes take whole files, in collection order: models, then tests on API servers. Each process has its own servers.
# Tests on API servers wait most of the time, so three processes suit two cores.
TESTERS ?= 3
PARALLEL = -n $(TESTERS) --dist loadfile --no-loadscope-reorder

# tests/integration/test_image.py tests the image; without an image it is skipped, in CI it fails.
test: servers
	@test -z "$$CI" || $(MAKE) --no-print-directory image
	@$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

test-nightly: servers
	@$(BIN)/python -m pytest --nightly $(ARGS)

# PYTHONHASHSEED makes runs repeatable: the same seed gives the same history.
MODEL_STEPS ?= 20000
test-model: .venv/.stamp
	@PYTHONHASHSEED=0 MODEL_STEPS=$(MODEL_STEPS) $(BIN)/python -m pytest -q -s tests/model $(ARGS)

soak: servers
	@$(BIN)/python benchmarks/soak.py $(ARGS)

faults: servers
	@$(BIN)/python -m pytest tests/faults --nightly $(ARGS); result=$$?; $(BIN)/python -m tests.faults.table; exit $$result

FUZZ ?= 20
fuzz: .venv/.stamp
	@$(BIN)/python -m tests.fuzz all $(FUZZ)
	@$(BIN)/python -m tests.fuzz.listener $(FUZZ)

unit: .venv/.stamp
	@$(BIN)/python -m pytest -q -m "not apiserver" $(ARGS)

# In CI, `make test` follows and includes the unit tests.
check: static $(if $(CI),,unit)

static: .venv/.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python tools/docs_site.py build/docs

format: .venv/.stamp
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: servers
	@$(BIN)/python benchmarks/bench.py $(ARGS)

mutants: .venv/.stamp
	@$(BIN)/python tools/mutants.py $(ARGS)

# Needs user namespaces, and nft of Debian (make deps); else it says so and exits 3. kube-proxy is built once.
traffic: servers
	@$(BIN)/python -m benchmarks.traffic $(ARGS)

bench-health: .venv/.stamp
	@$(BIN)/python benchmarks/health.py $(ARGS)

bench-scale: servers
	@$(BIN)/python -m benchmarks.scale $(ARGS)

bench-allocations: .venv/.stamp
	@$(BIN)/python -m benchmarks.allocations $(ARGS)

bench-cloud: servers
	@$(BIN)/python benchmarks/cloud.py $(ARGS)

bench-copy: servers
	@$(BIN)/python benchmarks/service_copy.py $(ARGS)

docs: .venv/.stamp
	@$(BIN)/python tools/docs_site.py build/docs

# Needs mmdebstrap and umoci of Debian (make deps), not a container engine.
IMAGE := build/endpointslice-hub.oci.tar
image: .venv/.stamp
	@$(PYTHON) tools/oci.py $(IMAGE)
	@$(BIN)/python tools/sbom.py $(IMAGE) > build/sbom.json

sbom: .venv/.stamp
	@mkdir -p build
	@$(BIN)/python tools/sbom.py > build/sbom.json

# --strict: packages that the service does not know are errors. Only the tool is downloaded.
PIP_AUDIT := pip-audit==2.10.1
audit: .venv/.stamp
	@mkdir -p build
	@$(PYTHON) -m venv build/audit && build/audit/bin/python -m pip install --quiet $(PIP_AUDIT)
	@$(BIN)/python tools/lock.py > build/requirements.txt
	@build/audit/bin/pip-audit --strict --disable-pip --require-hashes --requirement build/requirements.txt $(ARGS)

# The screenshots of docs/status-page.md.
screenshots: servers
	@SCREENSHOTS=1 $(BIN)/python -m pytest -q tests/integration/test_page.py -k command_everywhere

# Prints nothing if everything is installed. Without apt-get update, package lists may be too old to install from.
PROGRAMS := prometheus promtool chromium mmdebstrap umoci bwrap nft ip
PACKAGES := prometheus chromium mmdebstrap umoci bubblewrap nftables iproute2
deps:
	@if type $(PROGRAMS) >/dev/null 2>&1; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get -qq update && DEBIAN_FRONTEND=noninteractive \
			apt-get -qq -o Dpkg::Use-Pty=0 install --yes --no-install-recommends $(PACKAGES) >/dev/null; \
	else \
		echo "not root, or no apt-get: install $(PACKAGES) yourself (their tests are skipped without them)"; \
	fi

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
