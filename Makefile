# watchrelay. `make` alone lists the verbs.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip --disable-pip-version-check -q
FULL ?= 0
REAL ?= 0
CHART ?= 0
PAGE ?= 0
IMAGE ?= 0
SEED ?=
SEEDS ?= 1000
MINUTES ?= 30
ROUNDS ?= 3
# Most tests wait for brokers and clocks: files run side by side, six on two processors, with real parts four (each of them keeps about a third
# of one busy), the simulation first and the others in the order of their names, so that the short ones among the unit tests fill the end;
# T=tests/some_file.py runs alone.
JOBS ?= $(if $(T),0,$(if $(filter 1,$(REAL)),4,6))

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 10

# What pip prints, as a line for each 20 packages.
PIP_PROGRESS := /^Collecting/ { if (++n % 20 == 0) print "  " n " packages found" } /^Installing/ { print "  all " n " found, unpacking them" } { fflush() }

.PHONY: install
install: .venv/.installed ## make the virtual environment .venv with everything pinned by hash

.venv/.installed: requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "watchrelay needs Python 3.11 or newer; set PYTHON=python3.x")'
	@$(BIN)/pip --version >/dev/null 2>&1 || { echo "install 1/4: making the virtual environment .venv"; $(PYTHON) -m venv --clear .venv; }
	@echo "install 2/4: packages into .venv, pinned by hash (half a minute, by the network)"
	@$(BIN)/pip --disable-pip-version-check install --progress-bar off --no-deps --require-hashes -r requirements/dev.txt | awk '$(PIP_PROGRESS)'
	@echo "install 3/4: watchrelay, from this directory"
	@$(PIP) install --no-build-isolation --no-deps -e .
	@echo "install 4/4: compiling it"
	@$(BIN)/python -m compileall -q watchrelay
	@touch $@

.PHONY: demo
demo: install ## a synthetic cluster, an embedded Kafka and the relay between them, on this machine; Ctrl-C ends it
	@# In the foreground of a terminal Ctrl-C is for the demo alone, in a process group of its own: make would end itself with 130.
	@if [[ -t 0 && $$(ps -o stat= -p $$$$ 2>/dev/null) == *+* ]]; then set -m; fi; $(BIN)/watchrelay demo $(ARGS) || exit $$?

.PHONY: test
test: install $(if $(T),,collected) ## the tests of 5 minutes; FULL=1 plays all seeds and cases, planted faults, docs and fuzz, REAL=1 adds real Kafka and API server
	@if [ "$(REAL)" = 1 ]; then $(MAKE) --no-print-directory real; fi
	@FULL=$(FULL) REAL=$(REAL) CHART=$(CHART) PAGE=$(PAGE) IMAGE=$(IMAGE) $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(COVERAGE) --durations=15 --durations-min=20 $(if $(T),$(T),tests) $(ARGS)

# Compiles the tests that changed as pytest rewrites them, in two processes; in a clean clone each of the workers would do that for itself.
.PHONY: collected
collected: .venv/.collected
.venv/.collected: $(shell find tests -name '*.py') | .venv/.installed
	@printf '%s\n' tests/unit 'tests --ignore=tests/unit' | PYTHONDONTWRITEBYTECODE= \
	  xargs -L 1 -P 2 $(BIN)/python -m pytest -qq --collect-only > $@.log || { tail -n 40 $@.log; exit 1; }
	@mv $@.log $@

.PHONY: coverage
coverage: ## `make test` with the coverage of each file; takes three times the processor, so it is no part of CI
	@$(MAKE) --no-print-directory test COVERAGE="--cov --cov-report="
	@$(BIN)/python -m coverage report

.PHONY: sim
sim: install ## the whole daemon in virtual time: SEED=n plays one run and tells of it, SEEDS=10000 that many on all processors
	@$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) $(ARGS)

.PHONY: fuzz
fuzz: install ## seeds of each kind of unexpected input, clock, flood and end: SEEDS=n of each (20), MINUTES=n in all; T=world SEED=n plays one again
	@$(BIN)/python -m tests.fuzz $(T) $(if $(SEED),--seed $(SEED),$(if $(filter command line,$(origin MINUTES)),--minutes $(MINUTES),--seeds $(if $(filter file,$(origin SEEDS)),20,$(SEEDS)))) $(ARGS)

.PHONY: check
check: install ## format, lint, types, import contracts
	@$(BIN)/ruff format --check --diff .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache | tail -n 12

.PHONY: format
format: install ## write the format that check asks for
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

.PHONY: bench
bench: install ## measure the whole relay in turns with go-raw, a floor and the tree BEFORE=rev; writes docs/performance.md, with ARGS only if they say --record
	@$(BIN)/python -m tests.bench $(if $(BEFORE),--before $(BEFORE)) $(or $(ARGS),--record)
	@$(BIN)/python -m tools.docs.generate

.PHONY: soak
soak: install ## MINUTES=30 of everything at once on real parts, faults by SEED, then verify --cluster
	@tools/build.sh
	@$(BIN)/python -m tests.soak --minutes $(MINUTES) --seed $(or $(SEED),1) $(ARGS)

.PHONY: alerts-hour
alerts-hour: install chart-tools ## the shipped alerts over MINUTES=60 of a quiet and a busy relay on real parts: none may be pending
	@tools/build.sh
	@$(BIN)/python -m tests.alerts.hour --minutes $(if $(filter command line,$(origin MINUTES)),$(MINUTES),60)

.PHONY: long
long: install ## the tests on real parts that take long on the clock, which CI leaves out; T=tests/some_file.py narrows
	@tools/build.sh
	@REAL=1 LONG=1 $(BIN)/python -m pytest -q -m long --timeout=600 --durations=0 --durations-min=1 $(or $(T),tests/integration) $(ARGS)

.PHONY: replicas
replicas: install ## three replicas on real Kafka, ROUNDS=3 of each fault, or MINUTES=n of them by SEED, verify --cluster after each; ARGS="kill --kafka 3.9"
	@tools/build.sh
	@$(BIN)/python -m tests.replicas --rounds $(ROUNDS) $(if $(filter command line,$(origin MINUTES)),--minutes $(MINUTES)) --seed $(or $(SEED),1) $(ARGS)

.PHONY: mutations
mutations: install ## takes out each step of redaction, and plants each fault of the fuzz tests, to see a test catch it; T=canaries or T=fuzz
	@$(BIN)/python -m tests.mutations $(T) $(ARGS)

.PHONY: real
real: install chart-tools ## build the real parts (etcd, kube-apiserver, Kafka) into the cache outside the tree
	@tools/build.sh
	@$(BIN)/python -m tests.support.class_archive

.PHONY: chart-tools
chart-tools: ## get both Helms, promtool and the other checkers of the chart into the cache outside the tree
	@tools/charttools.sh

.PHONY: chart
chart: install chart-tools ## every check of the chart, the alerts, the dashboards and the manifests
	@CHART=1 $(BIN)/python -m pytest -q tests/chart $(ARGS)

.PHONY: page
page: install ## the tests of the status page in Chromium, with axe-core where npm can get it; PAGE_SHOTS=DIR keeps pictures
	@PAGE=1 $(BIN)/python -m pytest -q tests/integration/test_status_page*.py $(ARGS)

.PHONY: dashboards-shots
dashboards-shots: install chart-tools ## pictures of the dashboards for docs/images, by Grafana's own components (real parts, npm, a Chromium; 5 minutes)
	@tools/build.sh
	@$(BIN)/python -m tests.dashboards $(ARGS)

.PHONY: systems
systems: install ## Kafka Streams, Flink SQL and Kafka Connect, as docs/systems.md sets them up, on a topic that the relay wrote (Maven, 0.3 GB)
	@tools/build.sh
	@$(BIN)/python -m tests.systems

.PHONY: image
image: ## build the container image with buildah; PYTHON_IMAGE=... chooses the base, TAG=... names it
	@tools/image.sh $(TAG)

.PHONY: image-check
image-check: install ## build the image twice, compare, and run it restricted (root, buildah, mmdebstrap, umoci, runc)
	@IMAGE=1 $(BIN)/python -m pytest -q tests/image --timeout=900 $(ARGS)

.PHONY: generate
generate: install chart-tools ## write what is made from one source: the chart's schema and README, dashboards, manifests
	@$(BIN)/python -m tools.chart.generate

.PHONY: docs
docs: install .venv/docs/.installed ## build the site of docs/ into build/docs/site, strictly: broken links, anchors and foreign assets fail
	@$(BIN)/python -m tools.docs.build

.venv/docs/.installed: requirements/docs.txt | .venv/.installed
	@.venv/docs/bin/pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv/docs
	@.venv/docs/bin/pip --disable-pip-version-check -q install --no-deps --require-hashes -r requirements/docs.txt
	@touch $@

.PHONY: docs-check
docs-check: docs ## the site, and its tests: every command runs, every config is valid, what is generated is fresh
	@FULL=1 $(BIN)/python -m pytest -q tests/docs $(ARGS)

.PHONY: generate-docs
generate-docs: install ## write the reference pages from their sources, and the figures of docs/capacity.md
	@$(BIN)/python -m tools.docs.generate

.PHONY: lock
lock: install ## resolve the pins again (hashes, no addresses)
	@for spec in "pyproject.toml -o requirements/run.txt" "pyproject.toml --extra demo --extra msk --extra socks -o requirements/image.txt" \
	  "pyproject.toml --extra demo --extra socks --group dev -o requirements/dev.txt" \
	  "tools/chart/requirements.in -o tools/chart/requirements.txt"; do \
	  UV_SYSTEM_CERTS=1 $(BIN)/uv pip compile -q --universal --generate-hashes --no-header --no-emit-index-url $$spec; done
	@echo zensical | UV_SYSTEM_CERTS=1 $(BIN)/uv pip compile -q --universal --generate-hashes --no-header --no-emit-index-url - -o requirements/docs.txt
	@printf 'pip-audit\ncyclonedx-bom\npypi-attestations\nsigstore\nuv\n' | UV_SYSTEM_CERTS=1 $(BIN)/uv pip compile -q --universal --generate-hashes --no-header --no-emit-index-url - -o requirements/release.txt
	@echo hatchling | UV_SYSTEM_CERTS=1 $(BIN)/uv pip compile -q --universal --generate-hashes --no-header --no-emit-index-url - -o requirements/build.txt

.PHONY: ci
ci: install ## what CI runs: check, the site, the tests with real parts and of the chart; in a browser, and of the image, where they can be had
	@$(MAKE) --no-print-directory -j 3 --output-sync=target check docs collected
	@$(MAKE) --no-print-directory test FULL=1 REAL=1 CHART=1 IMAGE=auto PAGE=$(if $(CHROMIUM)$(shell command -v chromium chromium-browser google-chrome),1,0)

.PHONY: clean
clean: ## remove what was built here (not the cache of real parts)
	rm -rf .venv build dist .coverage .coverage.* .mypy_cache .ruff_cache .hypothesis .import_linter_cache
