# Every target prepares the environment first; scripts/setup does nothing if pyproject.toml has not changed.
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 4
PYTEST_ARGS ?=
IMAGE_BASE ?=
BENCH ?= store bus relay cluster drain locks send start memory
PEERS ?=

LINTS := style types layers declared dead
# Keep compiled modules: without them each of the many processes of the tests compiles posthouse again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup up down test check lint $(LINTS) format house bench peers sample faults soak lock audit docs site release image clean

help: ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 16

setup: ## make .venv and install posthouse into it
	@scripts/setup

up: ## run posthouse on this machine and print what to try
	@scripts/setup run
	@scripts/up

down: ## stop the relay and the daemon that `make up` started
	@$(BIN)/posthouse down

test: lint check ## everything that has to pass: lint and all tests

check: setup ## the tests alone
	@$(BIN)/pytest -n $(JOBS) --dist loadgroup -m "not campaign" $(PYTEST_ARGS)

lint: setup house ## ruff, types, layers, declared dependencies, dead code, house report
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target $(LINTS)

style:
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types:
	@$(BIN)/mypy

layers:
	@$(BIN)/lint-imports --no-cache

declared:
	@$(BIN)/deptry src
	@$(BIN)/deptry tests bench scripts examples --ignore DEP002,DEP004

dead:
	@$(BIN)/vulture

format: setup ## let ruff format the files
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

house: setup ## sizes of modules and functions, importers, names
	@$(BIN)/python scripts/house.py

bench: setup ## measure posthouse against the bare libraries on this machine
	@for part in $(BENCH); do $(BIN)/python -m bench $$part --json || exit; done

peers: setup ## posthouse beside Redis, PostgreSQL, JetStream, RabbitMQ and etcd, on this machine
	@bench/peers/install
	@$(BIN)/python -m bench peers $(PEERS)

sample: setup ## a short round of every fault campaign, and a Spark cluster; CI runs it after the tests
	@$(BIN)/pytest -n $(JOBS) --dist loadgroup -m campaign $(PYTEST_ARGS)

faults: setup ## the whole fault campaigns: kill -9, full disks, stalled readers
	@POSTHOUSE_FAULTS=full $(BIN)/pytest -m "faults or campaign" --timeout 7200 -o faulthandler_timeout=0 $(PYTEST_ARGS)

soak: setup ## keep 50 idle connections for ten minutes; none may be lost
	@$(BIN)/python -m scripts.soak

lock: setup ## choose versions for uv.lock again, within the ranges of pyproject.toml
	@scripts/lock --upgrade

audit: setup ## ask the public database whether a locked version has a known weakness
	@$(BIN)/uv export --quiet --frozen --no-emit-project --all-extras --all-groups \
		| $(BIN)/pip-audit --strict --disable-pip --require-hashes --progress-spinner off -r /dev/stdin

docs: setup ## regenerate docs/reference from the registries
	@$(BIN)/python -m scripts.reference

site: setup ## build the documentation as a site in build/site, and check its links
	@$(BIN)/python -m scripts.site

release: setup ## build sdist, wheel, image, bill of materials and checksums into dist
	@IMAGE_BASE='$(IMAGE_BASE)' $(BIN)/python -m scripts.release

image: setup ## build the image on a base made here, and run a relay in it (needs buildah and mmdebstrap)
	@POSTHOUSE_TEST_IMAGE=1 $(BIN)/pytest tests/deploy/test_image.py $(PYTEST_ARGS)

clean: ## remove what the other targets created
	@rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache dist build clients/typescript/node_modules clients/typescript/dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
