# Sets everything up by itself: needs Python 3.10-3.13 and Java 17 or 21, nothing else.
#
#   make demo            the whole way, device to table and back, with kills, ending in an audit
#   make test            set up and run the tests; make test-all: more of them

VENV ?= .venv
BIN := $(VENV)/bin
# Tests wait for servers half of their time: three processes, each with servers of its own, file by file; one takes
# what needs Spark first, so that one Spark is started and is warm (tests/support/dealing.py).
JOBS ?= 3
PARALLEL := -n $(JOBS) --dist loadscope --no-loadscope-reorder
STAMP := $(VENV)/.installed

# What the caller's shell says of other projects must not leak into this one.
unexport PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONDONTWRITEBYTECODE VIRTUAL_ENV
unexport SPARK_HOME SPARK_CONF_DIR SPARK_DIST_CLASSPATH HADOOP_CONF_DIR PYSPARK_PYTHON PYSPARK_DRIVER_PYTHON
export PYTHONNOUSERSITE := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

FITS := import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))
CAN_VENV := import ensurepip, venv; $(FITS)
CANDIDATES := $(or $(PYTHON),python3 python3.12 python3.11 python3.13 python3.10)

# One moving line on a terminal, a line now and then elsewhere; what pip complains about is shown as it is.
SHOW_PIP := /^Collecting /{n++; if (tty) printf "\r  %3d packages  %-50.50s", n, $$2; else if (n % 20 == 0) print "  " n " packages"; fflush(); next} \
  /^Installing collected/{if (tty) printf "\r"; printf "  %3d packages fetched, unpacking them …%30s\n", n, ""; fflush(); next} \
  /^pip ended /{code = $$3; next} \
  /^(Ignoring|Looking in|Successfully| |$$)/{next} \
  {print; fflush()} \
  END{exit code}

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-thorough test-all test-long lint bench scale chaos fuzz simulate brokers matrix compatibility crashes soak notebook docs sbom lock clean

help: ## Show this help
	@echo "make TARGET [VARIABLES]"
	@echo
	@sed -n 's/^\([a-z-]*\):.*## /  \1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 14
	@echo
	@echo "  PYTHON=python3.12   the Python to use (3.10-3.13), found by itself if not given"

setup: $(STAMP) ## Make .venv and install the locked packages, once

demo: $(STAMP) ## Run the demo; ARGS="--quick", ARGS="--no-chaos", ARGS="--keep"
	@$(BIN)/pulsebridge demo $(ARGS)

PYTEST = $(BIN)/python -m pytest $(if $(K)$(ARGS),,$(if $(filter-out 1,$(JOBS)),$(PARALLEL))) $(if $(K),-k "$(K)") $(ARGS)

test: $(STAMP) ## Run the tests that prove the promise; K="expression" chooses some, ARGS="tests/unit" a folder, JOBS=1 spares memory
	@$(PYTEST)

test-thorough: $(STAMP)
	@$(PYTEST) -m "thorough and not long"

test-all: test test-thorough ## Run those, then the slow ones and second proofs

test-long: $(STAMP) ## Run what takes over an hour: kills at every step, all variants, Mosquitto where Artemis has passed
	@$(PYTEST) -m long

lint: $(STAMP) ## Check style, formatting, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The client that fills the peer's topics is no part of the project: it is installed beside the locked packages.
bench: $(STAMP) ## Measure; writes build/bench.json; ONLY=ingest measures one group
	@$(BIN)/python -c "import confluent_kafka" 2>/dev/null || $(BIN)/python -m pip install --quiet confluent-kafka || true
	@$(BIN)/python -m tests.bench $(if $(ONLY),--only $(ONLY)) $(ARGS)

scale: $(STAMP) ## Measure 100,000 connected and a million known devices, and size a fleet: half an hour; ARGS="--only known", ARGS=--show
	@$(BIN)/python -m tests.scale $(ARGS)

chaos: $(STAMP) ## Kill ingest, MQTT broker and Pulsar at random for 10 minutes; ARGS="--seed 7", ARGS=--push, ARGS=--hostile
	@$(BIN)/python -m tests.chaos $(ARGS)

simulate: $(STAMP) ## Simulate ingest and push in worlds drawn from seeds; STEPS=3000000, SEED=7, JOBS=2, ONLY=push
	@$(BIN)/python -m tests.simulation $(if $(ONLY),--only $(ONLY)) $(if $(STEPS),--steps $(STEPS)) $(if $(SEED),--seed $(SEED)) $(if $(filter command line,$(origin JOBS)),--jobs $(JOBS)) $(ARGS)

fuzz: $(STAMP) ## Fuzz each parser of foreign bytes; ONLY=mqtt chooses a target, SECONDS=600 for each, SEED=7
	@$(BIN)/python -m tests.fuzz $(if $(ONLY),--only $(ONLY)) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) $(ARGS)

# Brokers that are not found keep their last results; tests/brokers/servers.py says how to name a program.
brokers: $(STAMP) ## Check each MQTT broker that is installed, with restarts, and write docs/operate/brokers.md; ARGS="--only mosquitto"
	@$(BIN)/python -m tests.brokers $(ARGS)

matrix: $(STAMP) ## Run the tests of source and sink on Spark 4.0, 4.1 and 4.2; writes build/matrix.json; ARGS="--spark 4.0"
	@$(BIN)/python -m tests.matrix $(ARGS)

compatibility: $(STAMP) ## Run a part of the tests on each Python, and write docs/reference/compatibility.md; ARGS="--python 3.12", ARGS="--part spark --java /usr/lib/jvm/…"
	@$(BIN)/python -m tests.compatibility $(ARGS)

crashes: $(STAMP) ## Kill each component at each step of each commit order, and write docs/explain/crashes.md; ONLY='push/*/mqtt', ARGS=--missing, ARGS="--third COMMIT"
	@$(BIN)/python -m tests.crashes $(if $(ONLY),--only '$(ONLY)') $(ARGS)

soak: $(STAMP) ## Run everything under load with random faults: nothing may lack or grow; HOURS=2, the next piece keeps the data
	@$(BIN)/python -m tests.soak --hours $(or $(HOURS),2) $(ARGS)

notebook: $(STAMP) ## Open the notebooks in JupyterLab, which this installs beside the locked packages
	@$(BIN)/python -c "import jupyterlab" 2>/dev/null || $(BIN)/python -m pip install --quiet jupyterlab
	@$(BIN)/jupyter lab notebooks

# The builder is no part of the locked packages.
docs: $(STAMP) ## Write the generated pages and build the documentation strictly, into build/site
	@$(BIN)/python -c "import zensical, nbconvert" 2>/dev/null || $(BIN)/python -m pip install --quiet -e ".[docs]"
	@$(BIN)/python -m tests.docs
	@$(BIN)/python -m tests.docs.notebooks
	@$(BIN)/zensical build --strict --clean

sbom: $(STAMP) ## Write the software bill of materials of the locked packages, build/sbom.json (CycloneDX)
	@mkdir -p build
	@$(BIN)/cyclonedx-py requirements requirements.lock --pyproject pyproject.toml --mc-type application --output-reproducible --of JSON --output-file build/sbom.json

lock: ## For maintainers: write requirements.lock anew from pyproject.toml (needs uv)
	uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-emit-index-url --no-annotate \
	  --custom-compile-command "make lock" --extra dev pyproject.toml --output-file requirements.lock

clean: ## Remove what was made here (.venv, build, caches of the tools); downloads stay in the user's cache
	rm -rf $(VENV) build dist spark-warehouse metastore_db derby.log
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find bridge sources sinks streaming sparkplug pulsebridge tests notebooks -type d -name __pycache__ -prune -exec rm -rf {} +

# The locked packages first, then the project itself in place: an edit needs no new set-up.
$(STAMP): requirements.lock pyproject.toml
	@python=; for p in $(CANDIDATES); do \
	  if "$$p" -c '$(CAN_VENV)' 2>/dev/null; then python="$$p"; break; fi; done; \
	if [ -z "$$python" ]; then \
	  for p in $(CANDIDATES); do if "$$p" -c '$(FITS)' 2>/dev/null; then "$$p" pulsebridge/downloads/preflight.py; exit 1; fi; done; \
	  echo "Python: needs 3.10 to 3.13 with venv, found $$(python3 --version 2>&1 | head -n 1) — install one (on Debian: apt-get install python3 python3-venv) or name it: make PYTHON=/path/to/python3.12" >&2; \
	  exit 1; fi; \
	"$$python" pulsebridge/downloads/preflight.py || exit 1; \
	start=$$(date +%s); tty=0; if [ -t 1 ]; then tty=1; fi; \
	echo "Setting up $(VENV) with $$("$$python" --version), once …"; \
	if ! $(BIN)/python -c '$(FITS)' 2>/dev/null; then rm -rf $(VENV) && "$$python" -m venv $(VENV) || exit 1; fi; \
	( $(BIN)/python -m pip install --no-compile --no-deps --require-hashes -r requirements.lock 2>&1; echo "pip ended $$?" ) \
	  | awk -v tty=$$tty '$(SHOW_PIP)' || exit 1; \
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable . || exit 1; \
	mkdir -p build && echo "{\"packages_s\": $$(( $$(date +%s) - start ))}" > build/setup.json; \
	touch $@; \
	echo "Set up in $$(( $$(date +%s) - start )) s."
