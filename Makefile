# `make demo` and `make test` each do all of their own set-up in .venv and are safe to repeat.
PYTHON ?= python3.11
BIN := .venv/bin
STAMP := .venv/.installed
# Threads that wait for others sleep soon: while they spin, they keep the cores from other tests.
PYTEST := OMP_NUM_THREADS=1 GOMP_SPINCOUNT=10000 $(BIN)/python -m pytest -q
# Else each of the thousands of processes that tests start would compile the project's code again.
unexport PYTHONDONTWRITEBYTECODE

# Three processes, since some tests wait; files stay together. What measures rates runs alone, before the others.
WHOLE := $(PYTEST) -n 3 --dist loadfile --no-loadscope-reorder --whole-run -m "not measures"

.PHONY: demo test test-all test-again lint chaos up down engine engine-stop images browser postgres screenshots clean

demo: $(STAMP)
	$(BIN)/fleetune run configs/runs/demo.yaml

# What every change must pass: lint, types, rules of imports, and all tests but those that tests/tiers.toml leaves to
# test-all; with SINCE=COMMIT also those of them that have changed since then. The last lines say what ran, what was
# left out, why, and how to run it. Property tests draw the same examples each time, and others in test-all.
# FLEETUNE_ENGINE_TESTS=required makes it a failure to leave out tests of containers; so do FLEETUNE_BROWSER_TESTS,
# FLEETUNE_POSTGRES_TESTS and FLEETUNE_CUDA_TESTS for those with a browser, Postgres or a GPU.
test: $(STAMP)
	$(if $(SINCE),$(PYTEST) -m measures tests/engine --first-tier --changed-since $(SINCE))
	$(WHOLE) --first-tier $(if $(SINCE),--changed-since $(SINCE))

# All tests, in all images, with the browser and Postgres; on a GPU too, where there is one. When all have passed and
# nothing is uncommitted, .ci/tested names the commit: CI runs of the second tier what has changed since.
test-all: export FLEETUNE_ENGINE_TESTS := required
test-all: export FLEETUNE_BROWSER_TESTS := required
test-all: export FLEETUNE_POSTGRES_TESTS := required
test-all: images browser postgres
	$(PYTEST) -m measures tests/engine
	$(WHOLE) --keep-measured
	@git diff --quiet HEAD -- . ':!tests/measured.json' && git rev-parse HEAD > .ci/tested

# Twenty runs of `make test` in a row, ten of them beside four busy processes; RUNS=... for another number.
test-again: $(STAMP)
	$(BIN)/python -m tests.support.again --runs $(or $(RUNS),20)

lint: $(STAMP)
	$(BIN)/ruff format --check -q .
	$(BIN)/ruff check -q .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

# The demo once as it is, in about half an hour, and once while 62 faults befall its devices; SEED=... draws others, and
# FAULTS=10 MINUTES=5 is the same rate for a shorter time. The number of rounds comes from the pace of a short training.
# Rounding of float64 is far below the limit after so many rounds; that of float32 would hide what differs. Each device
# trains its layers alone, so without backups its loss would cost the rounds since the newest checkpoint.
chaos: $(STAMP)
	$(BIN)/fleetune chaos configs/runs/demo.yaml --faults $(or $(FAULTS),62) --minutes $(or $(MINUTES),30) \
		--seed $(or $(SEED),1) --set model=minilm-lora --set training.batch_samples=16 \
		--set training.micro_batch_samples=4 --set training.checkpoint_every_rounds=1 --set strategy.options.backups=1

# Prefect's UI, a worker and the deployments of the store in runs/; PORT=... for another port than 4200.
up: $(STAMP)
	@$(BIN)/fleetune up $(if $(PORT),--port $(PORT))

down: $(STAMP)
	@$(BIN)/fleetune down

# Containers: an engine where none answers, what ends it again, and the images that stages run in, those of them that
# have changed: all three, or ONLY='mounted plan'; BASE_IMAGE=... for another base. A container of fleetune-mounted finds
# code and packages in folders mounted from this machine, so that no change needs a new image:
#   docker run --rm --read-only --tmpfs /tmp -v "$$PWD:$$PWD:ro" \
#     -e PYTHONPATH="$$PWD:$$PWD/.venv/lib/python3.11/site-packages" fleetune-mounted -c 'import torch'
engine:
	@$(PYTHON) -m containers.engine start

engine-stop:
	@$(PYTHON) -m containers.engine stop

images: $(STAMP)
	@$(BIN)/python -m containers.images $(ONLY)

# Debian's Chromium, unless there is one; screenshots takes those of docs/daily-use.md again.
browser:
	@command -v chromium || { apt-get update -q; apt-get install -yq --no-install-recommends chromium; } \
		|| { echo "chromium could not be installed: as root, run apt-get install chromium" >&2; exit 75; }

# Debian's Postgres, unless there is one, for the tests that start a server of it.
postgres:
	@command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 \
		|| { apt-get update -q; apt-get install -yq --no-install-recommends postgresql; } \
		|| { echo "postgresql could not be installed: as root, run apt-get install postgresql" >&2; exit 75; }

screenshots: $(STAMP)
	$(BIN)/python -m tests.support.browser.screenshots docs/images

$(STAMP): pyproject.toml constraints.txt fleetune/codecs/quantiser.c
	$(PYTHON) -m venv .venv
	$(BIN)/python -m containers.packages constraints.txt -e '.[dev]'
	touch $(STAMP)

clean:
	rm -rf .venv build *.egg-info fleetune/codecs/*.so
