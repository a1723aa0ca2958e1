# `make demo` and `make test` each do all of their own set-up in .venv and are safe to repeat.
PYTHON ?= python3.11
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: demo test lint engine engine-stop images clean

demo: $(STAMP)
	$(BIN)/fleetune run configs/runs/demo.yaml

test: $(STAMP) lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -q

lint: $(STAMP)
	$(BIN)/ruff format --check -q .
	$(BIN)/ruff check -q .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

# Containers: an engine where none answers, what ends it again, and the images that stages run in (BASE_IMAGE=... for
# another base). For development, code and packages can stay outside the image, so that no change needs a new one:
#   docker run --rm --read-only -v "$$PWD:/opt/fleetune/code:ro" \
#     -v "$$PWD/.venv/lib/python3.11/site-packages:/opt/fleetune/packages:ro" fleetune-mounted -c 'import torch'
engine:
	$(PYTHON) -m containers.engine start

engine-stop:
	$(PYTHON) -m containers.engine stop

images: $(STAMP)
	$(BIN)/python -m containers.images

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(STAMP)

clean:
	rm -rf .venv build *.egg-info
