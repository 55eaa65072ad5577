# Every target sets up what it needs. `make demo` shows the hub at work, `make test` tests it on real API servers.

PYTHON ?= python3
BIN := .venv/bin
# Further arguments of the command a target runs: make test ARGS="-k eligibility"
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help screenshots demo test test-nightly test-model faults fuzz soak unit check static format bench bench-copy bench-health bench-scale mutants docs image-steps sbom audit deps servers clean

help:
	@echo "make demo     the hub at work on simulated clusters, no Kubernetes needed"
	@echo "make test     all tests, on real API servers (built once into the cache folder if need be)"
	@echo "make test-nightly  the same, and the tests that take minutes"
	@echo "make test-model  20,000 random steps of the whole hub in a simulated world: a quarter of an hour"
	@echo "make soak     an hour of churn and faults at ten times production's rate, judged"
	@echo "make faults   every row of the fault table, and its figures into docs/reliability.md: a quarter of an hour"
	@echo "make fuzz     damaged input for everything the hub reads, FUZZ times as much as make test: docs/bad-input.md"
	@echo "make unit     the tests that need no API server"
	@echo "make check    format, lint, types, layers, docs, unit tests: before every commit; CI runs it"
	@echo "make static   make check without the unit tests"
	@echo "make format   let ruff format and repair"
	@echo "make bench    measure the hub beside the Go reference and the floor"
	@echo "make mutants  change the code in 200 random places, one at a time, and list what no unit test notices"
	@echo "make bench-health  measure health checks: CPU, cadence, detection (needs user namespaces)"
	@echo "make bench-scale  measure the hub on 500 clusters: half an hour"
	@echo "make bench-copy  measure a copied Service beside a client-go watcher"
	@echo "make docs     the documentation as a site in build/docs/site; fails on links that lead nowhere"
	@echo "make image-steps  what the Dockerfile does, into build/image, and the demo from there"
	@echo "make sbom     the bill of materials in build/sbom.json"
	@echo "make audit    known vulnerabilities of what is locked (asks the service of pip-audit)"
	@echo "make screenshots  take the pictures of docs/status-page.md anew"
	@echo "make deps     as root on Debian: prometheus and chromium, for the tests that want them"
	@echo "make clean    remove .venv and caches of this folder (not the built API servers)"
	@echo "ARGS=… goes to the command that is run"

# The stamp is younger than whatever decides what belongs into the environment.
.venv/.stamp: pyproject.toml uv.lock $(wildcard providers/*/pyproject.toml) testkit/pyproject.toml tools/make_venv.py
	@$(PYTHON) tools/make_venv.py
	@touch $@

demo: .venv/.stamp
	@$(BIN)/hub demo $(ARGS)

# Without API servers their tests are skipped, with the reason; in CI that is a failure.
servers: .venv/.stamp
	@$(BIN)/python tests/support/apiserver/binaries.py || test -z "$$CI"

# Whole files go to whoever is free, in their order: those that wait for API servers first. Each has servers of its own.
TESTERS ?= 2
SIDE_BY_SIDE = -n $(TESTERS) --dist loadfile --no-loadscope-reorder

# CI cannot build the image: it runs its steps.
test: servers
	@test -z "$$CI" || $(MAKE) --no-print-directory image-steps
	@$(BIN)/python -m pytest $(SIDE_BY_SIDE) $(ARGS)

test-nightly: servers
	@$(BIN)/python -m pytest --nightly $(ARGS)

# Strings hash alike in every run: a seed gives one history, whichever process runs it.
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

# In CI `make test` follows, which runs the unit tests with all the others.
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

bench-health: .venv/.stamp
	@$(BIN)/python benchmarks/health.py $(ARGS)

bench-scale: servers
	@$(BIN)/python -m benchmarks.scale $(ARGS)

bench-copy: servers
	@$(BIN)/python benchmarks/service_copy.py $(ARGS)

docs: .venv/.stamp
	@$(BIN)/python tools/docs_site.py build/docs

# With the Python that the image has, and away from the sources. The image has no test kit, which the demo is in: that is
# added to a copy.
image-steps: .venv/.stamp
	@$(PYTHON) tools/image.py build/image
	@cd build && env -u PYTHONPATH image/bin/hub check ../clusters.example.yaml
	@rm -rf build/image-with-testkit build/testkit && cp -a build/image build/image-with-testkit
	@$(BIN)/python tools/lock.py endpointslice-hub-testkit > build/testkit.txt
	@cd testkit && ../$(BIN)/python -m hatchling build --target wheel --directory ../build/testkit
	@build/image-with-testkit/bin/python -m pip install --quiet --require-hashes --requirement build/testkit.txt
	@build/image-with-testkit/bin/python -m pip install --quiet --no-index --no-deps build/testkit/*.whl
	@cd build && env -u PYTHONPATH image-with-testkit/bin/python -m hub demo --for 10s

sbom: .venv/.stamp
	@mkdir -p build
	@$(BIN)/python tools/sbom.py > build/sbom.json

# Strict: otherwise what the service does not know counts as fine. Nothing is downloaded but the tool.
PIP_AUDIT := pip-audit==2.10.1
audit: .venv/.stamp
	@mkdir -p build
	@$(PYTHON) -m venv build/audit && build/audit/bin/python -m pip install --quiet $(PIP_AUDIT)
	@$(BIN)/python tools/lock.py > build/requirements.txt
	@build/audit/bin/pip-audit --strict --disable-pip --require-hashes --requirement build/requirements.txt $(ARGS)

# The pictures of docs/status-page.md.
screenshots: servers
	@SCREENSHOTS=1 $(BIN)/python -m pytest -q tests/integration/test_page.py -k command_everywhere

# Says nothing where there is nothing to do. apt's lists may be older than what they lead to.
deps:
	@if command -v prometheus >/dev/null && command -v promtool >/dev/null && command -v chromium >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get -qq update && DEBIAN_FRONTEND=noninteractive \
			apt-get -qq -o Dpkg::Use-Pty=0 install --yes --no-install-recommends prometheus chromium >/dev/null; \
	else \
		echo "not root, or no apt-get: install prometheus and chromium yourself (their tests are skipped without them)"; \
	fi

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
