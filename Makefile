# One command for everything: `make` lists them. A fresh Debian 12+ or Ubuntu 24.04+ machine needs
# python3 >= 3.11, make, git, a network, and root or sudo; `make install` gets the rest.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules --no-print-directory

BIN := .venv/bin
# Runs a command in the project's environment: its venv first on PATH, JAVA_HOME set to a usable runtime.
RUN := tools/run.sh
# How many processes run tests side by side: one more than processors, because tests also wait, and four at most.
JOBS ?= $(shell n=$$(nproc); echo $$((n < 4 ? n + 1 : 4)))
# Extra arguments: make test ARGS="tests/model -k split", make demo ARGS=..., make bench ARGS=...
ARGS ?=

.PHONY: help
help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: install
install: ## Make .venv with everything, and a Java runtime for the Spark parts (fast the second time)
	@tools/install.sh

.PHONY: demo
demo: install ## Run the demonstration; its web console stays open with KEEP=1
	@$(RUN) python -m examples.demo $(if $(KEEP),--keep) $(ARGS)

.PHONY: components
components: install ## Fetch Cassandra, etcd, Prometheus and the brokers of the tests into build/components
	@$(RUN) python -m deploy.local.install

# One node of Cassandra or three; accidents on the way; whether the cluster stays up.
NODES ?= 1
CHAOS ?=
KEEP ?=
.PHONY: cluster
cluster: components ## The main job on a cluster, compared with one process (NODES=3 CHAOS=1 KEEP=1)
	@$(RUN) python -m deploy.local --nodes $(NODES) $(if $(CHAOS),--chaos) $(if $(KEEP),--keep)

.PHONY: cluster-stop
cluster-stop: install ## Stop the cluster that KEEP=1 left up
	@$(RUN) python -m deploy.local --stop

# A process of tests that dies is not started again: it would die of the same test, until nothing is left that runs.
# A few tests that failed (exit code 1, the run was whole) have a second try alone; tests/again.py says why.
.PHONY: test
test: lint components ## Lint, then run every test
	@$(RUN) pytest -n $(JOBS) --dist loadfile --max-worker-restart 0 --durations=10 --durations-min=1 $(ARGS) || \
		{ [ $$? = 1 ] && $(RUN) python -m tests.again; }

# What is measured runs slower, so limits are three times as long. A run with failures has a report, too.
.PHONY: coverage
coverage: components ## Run every test, and show which lines and branches no test runs (build/coverage/html)
	@rm -rf build/coverage && mkdir -p build/coverage
	@failed=0; MILLWHEEL_TEST_SLOWNESS=$${MILLWHEEL_TEST_SLOWNESS:-15} $(RUN) coverage run -m pytest \
		-n $(JOBS) --dist loadfile --max-worker-restart 0 $(ARGS) || failed=$$?; \
	$(RUN) coverage combine --quiet && $(RUN) coverage html --quiet && $(RUN) coverage report && exit $$failed

.PHONY: test-cluster
test-cluster: components ## The tests that need a cluster of several nodes (slow)
	@$(RUN) pytest -m cluster --durations=10 --durations-min=1 $(ARGS)

# How often the server is killed in all, and what decides when.
RESTARTS ?= 120
SEED ?= 1
.PHONY: test-restarts
test-restarts: install ## Kill the server over and over under a load that verifies itself (RESTARTS=120 SEED=1)
	@MILLWHEEL_RESTARTS=$(RESTARTS) MILLWHEEL_SEED=$(SEED) $(RUN) pytest -s tests/system/test_restarts.py $(ARGS)

# How the names of the faults begin that happen, with commas between; a recorded history that is only checked again.
FAULTS ?=
HISTORY ?=
.PHONY: test-faults
test-faults: components ## Real faults on a real cluster, with a load that verifies itself (FAULTS=worker-killed)
	@MILLWHEEL_FAULTS=$(FAULTS) MILLWHEEL_HISTORY=$(HISTORY) MILLWHEEL_SEED=$(SEED) \
		$(RUN) pytest -s -m long tests/faults/test_faults.py $(ARGS)

FROM ?=
.PHONY: test-upgrade
test-upgrade: components ## Roles and databases go from another version to this one and back (FROM=REVISION or FROM=WHEEL)
	@MILLWHEEL_FROM=$(FROM) $(RUN) pytest -s -m long tests/upgrade $(ARGS)

PICTURES ?=
.PHONY: test-console
test-console: install ## The web console in a headless Chromium, which is installed if there is none (PICTURES=build/console)
	@command -v chromium-headless-shell chromium chromium-browser google-chrome >/dev/null || \
		bash -c '. tools/apt.sh && apt_install chromium-headless-shell chromium'
	@MILLWHEEL_PICTURES=$(PICTURES) $(RUN) pytest -m long tests/console $(ARGS)

.PHONY: test-kafka
test-kafka: components ## The connector of Kafka, and minutes of kills of a server and its broker
	@$(RUN) pytest -s -m "long or not long" tests/connectors/kafka tests/system/test_kafka.py $(ARGS)

# How many records, over how many seconds; seconds from one kill to the next; how many workers.
RECORDS ?= 1000000
SECONDS ?= 600
EVERY ?= 10
WORKERS ?= 2
.PHONY: kafka-endurance
kafka-endurance: components ## Kafka to Kafka on a cluster that is killed all the time (RECORDS=1000000 SECONDS=600 EVERY=10)
	@MILLWHEEL_RECORDS=$(RECORDS) MILLWHEEL_SECONDS=$(SECONDS) MILLWHEEL_EVERY=$(EVERY) MILLWHEEL_WORKERS=$(WORKERS) \
		$(RUN) pytest -s -m long tests/faults/test_kafka_endurance.py $(ARGS)

# Needs go, for Helm and for what other projects define.
.PHONY: test-deploy
test-deploy: components ## The Helm chart with Helm, and all that is deployed, run as processes
	@$(RUN) pytest -m "long or not long" tests/deploy $(ARGS)

# Needs root, for chroot.
.PHONY: test-image
test-image: install ## Lint the Dockerfile, carry it out in a root of its own, and try what comes out
	@command -v debootstrap >/dev/null || bash -c '. tools/apt.sh && apt_install debootstrap'
	@$(RUN) pytest -s -m long tests/image $(ARGS)

.PHONY: test-alerts
test-alerts: components ## Cause what the alerts are about, and see each alert fire and end
	@$(RUN) pytest -s -m long tests/monitoring $(ARGS)

# The name of one incident; QUICK=1 shortens the minutes of the alert rules, for trying a change.
ONLY ?=
QUICK ?=
.PHONY: incidents
incidents: components ## Cause each incident of docs/incidents.md on a cluster, find it, and mend it (ONLY=hot-key QUICK=1)
	@MILLWHEEL_INCIDENT=$(ONLY) MILLWHEEL_QUICK=$(QUICK) $(RUN) pytest -s -m long tests/incidents $(ARGS)

MINUTES ?= 30
.PHONY: soak
soak: components ## A steady load for long, with moves, splits and merges: nothing may grow (MINUTES=30)
	@MILLWHEEL_MINUTES=$(MINUTES) MILLWHEEL_SEED=$(SEED) $(RUN) pytest -s -m long tests/faults/test_soak.py $(ARGS)

# How many hostile cases in all, drawn from SEED; the only one to run. ARGS="-k packages": on one surface.
CASES ?= 100000
CASE ?=
.PHONY: fuzz
fuzz: install ## Hostile input at every surface: calls, settings, packages, stored values (CASES=100000 SEED=1)
	@MILLWHEEL_FUZZ_CASES=$(CASES) MILLWHEEL_FUZZ_CASE=$(CASE) MILLWHEEL_SEED=$(SEED) \
		$(RUN) pytest tests/fuzz -s $(if $(CASE),-o log_cli=true --log-cli-level=INFO,-p no:logging) $(ARGS)

# The whole cluster in virtual time, from SEEDS seeds, of which SEED is the first.
SEEDS ?= 300
.PHONY: simulate
simulate: install ## Simulate the whole cluster from seeds; show the history of one that fails (SEEDS=300 SEED=1)
	@$(RUN) python -m simulation --seeds $(SEEDS) --seed $(SEED) $(ARGS)

.PHONY: ways
ways: install ## Count the files on a record's way and on a watermark's (ARGS=--order names them in their order)
	@PYTHONPATH=. $(RUN) python tools/ways.py $(ARGS)

.PHONY: test-mutations
test-mutations: install ## Take each protecting mechanism out; show which seed or test misses it (ARGS="no-fence")
	@$(RUN) python -m simulation.mutations $(ARGS)

# The stages of `make lint`, in order; the first that fails ends it.
.PHONY: lint
lint: install ## Style, formatting, types, import rules, fresh stubs
	@tools/stage.sh "ruff check" $(RUN) ruff check --quiet .
	@tools/stage.sh "ruff format" $(RUN) ruff format --quiet --check .
	@tools/stage.sh "generated code" $(RUN) python tools/generate_protos.py --check
	@tools/stage.sh "import rules" $(RUN) lint-imports --no-logo
	@tools/stage.sh "mypy --strict" $(RUN) mypy

.PHONY: format
format: install ## Format the code, and mend what ruff can mend
	@$(RUN) ruff check --quiet --fix .
	@$(RUN) ruff format .

.PHONY: proto
proto: install ## Generate the stubs from proto/
	@$(RUN) python tools/generate_protos.py

.PHONY: man
man: install ## Write the man page of the command line, docs/millwheel.1
	@$(RUN) python -m tools.man_page

.PHONY: runbook
runbook: install ## Write the console's page of the runbook from docs/runbook.md
	@$(RUN) python -m tools.runbook_page

.PHONY: compiled
compiled: install ## Compile the worker's core into build/compiled, for benchmarks (fast the second time)
	@tools/compile.sh

# The tests of the cores and of what drives them. Left out: what a compiled Context does not show of itself, which
# exception a hook gets for a value of another type than a signature says, and what replaces a method of one core, or a
# constant of a compiled module.
COMPILED_TESTS := $(addprefix tests/,authority master model sdk windows worker) \
	--ignore tests/sdk/test_public_names.py \
	--deselect tests/worker/interval/test_holds.py::test_what_cannot_be_read_again_is_refused_before_the_journal \
	--deselect tests/worker/interval/test_skipped_passes.py::test_a_pass_skipped_with_work_is_a_broken_invariant \
	--deselect tests/worker/interval/test_result_columns.py::test_runs_are_sent_as_their_rows_are \
	--deselect tests/worker/interval/test_read_columns.py::test_reads_have_no_gapped_ranges_while_a_mark_stands_still
.PHONY: test-compiled
test-compiled: compiled ## The tests of the cores, and 100 simulated seeds, on the compiled tree
	@tools/compiled.sh pytest --import-mode=append -n $(JOBS) --dist loadfile --max-worker-restart 0 $(COMPILED_TESTS) $(ARGS)
	@tools/compiled.sh python -m simulation --seeds 100 --seed $(SEED)

# What benchmarks measure is compiled first, unless --pure is given; where it cannot be they say so, and measure pure Python.
COMPILE := $(if $(findstring --pure,$(ARGS)),true,tools/compile.sh || true)

.PHONY: bench
bench: install ## Run the benchmarks (ARGS="--pure": of pure Python)
	@$(COMPILE)
	@$(RUN) python -m bench $(ARGS)

.PHONY: bench-cluster
bench-cluster: components ## Run the benchmarks of a cluster of processes, with Cassandra and etcd
	@$(COMPILE)
	@$(RUN) python -m bench.cluster $(ARGS)

.PHONY: bench-interval
bench-interval: components ## Move, split and merge an interval with 1 GB of state under load
	@$(COMPILE)
	@$(RUN) python -m bench.cluster --interval $(ARGS)

.PHONY: bench-peers
bench-peers: components ## Kafka to Kafka by MillWheel and five other systems by turns (ARGS="--only millwheel --records 100000")
	@$(COMPILE)
	@$(RUN) python -m bench.peers $(ARGS)

.PHONY: bench-nexmark
bench-nexmark: components ## The queries of Nexmark by MillWheel, PyFlink and Bytewax by turns (ARGS="--only millwheel --queries q5,q7")
	@$(COMPILE)
	@$(RUN) python -m bench.nexmark $(ARGS)

.PHONY: bench-full
bench-full: components ## Measure all figures of docs/performance.md, and put them into the page (ARGS="--only cache")
	@$(COMPILE)
	@$(RUN) python -m bench.figures $(ARGS)

.PHONY: dist
dist: install ## Build source distribution and wheels into dist/, and try each in an environment of its own
	@tools/dist.sh
	@$(RUN) pytest -m release tests/release

.PHONY: constraints
constraints: install ## Pin the versions that work now in tools/constraints.txt
	@{ sed -n '/^#/p' tools/constraints.txt; $(BIN)/pip freeze --all --exclude-editable; } > .constraints.new
	@mv .constraints.new tools/constraints.txt

.PHONY: clean
clean: ## Remove .venv, caches and build output
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
