# `make demo` and `make test` each do all of their own set-up in .venv and are safe to repeat.
PYTHON ?= python3.11
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: demo test lint up down engine engine-stop images browser screenshots clean

demo: $(STAMP)
	$(BIN)/fleetune run configs/runs/demo.yaml

# Containers' tests run last and alone, since they measure; without an engine a line says what they would need.
# Browser tests have two services and need chromium. FLEETUNE_ENGINE_TESTS=required and FLEETUNE_BROWSER_TESTS=required
# make leaving them out a failure.
test: $(STAMP) lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -q --durations=30 --durations-min=15 --ignore=tests/engine \
		--ignore=tests/browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -q tests/browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q tests/engine

lint: $(STAMP)
	$(BIN)/ruff format --check -q .
	$(BIN)/ruff check -q .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

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

screenshots: $(STAMP)
	$(BIN)/python -m tests.browser.screenshots docs/images

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(STAMP)

clean:
	rm -rf .venv build *.egg-info
