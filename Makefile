# make demo | deploy-demo | lint | settings | test | test-flower | test-all | faults | soak | mutation
# | bench: each sets up what it needs in .venv; bench in .venv-bench, beside the packages it compares with
PYTHON ?= python3
# the same bits wherever a number lies in memory, as idiolect has it
export MKL_CBWR ?= AUTO
VENV := .venv
BIN := $(VENV)/bin
BENCH := .venv-bench
FEDJAX := .venv-fedjax
# the newest flwr that pyproject.toml allows; constraints.txt has the oldest
FLOWER_NEWEST := 1.42.0
FLOWER := build/flwr-$(FLOWER_NEWEST)
PIP := $(BIN)/pip --disable-pip-version-check --quiet

.PHONY: demo deploy-demo lint settings test test-flower test-all faults soak mutation bench bench-peers clean

demo: $(VENV)/.base
	$(BIN)/idiolect demo

# three hospitals and a server on this machine, with TLS and keys: trains, shows the table, stops
deploy-demo: $(VENV)/.dev
	$(BIN)/python -m benchmarks.deploy demo

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m benchmarks.typed_settings --check

# the typed keywords of idiolect.run, from its settings
settings: $(VENV)/.dev
	$(BIN)/python -m benchmarks.typed_settings

# without the tests marked "slow" (see addopts in pyproject.toml)
test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist loadfile

# what is deployed, a real federation among it, with the newest flwr in place of the oldest; all
# other packages are the same
FLOWER_TESTS := $(addprefix tests/,engine/test_flower.py engine/test_flower_internals.py \
    deploy/test_flower_server.py deploy/test_commands.py)
test-flower: $(VENV)/.dev $(FLOWER)/.ready
	PYTHONPATH=$(CURDIR)/$(FLOWER) $(BIN)/python -c \
	    "import flwr; assert flwr.__version__ == '$(FLOWER_NEWEST)', flwr.__version__"
	PYTHONPATH=$(CURDIR)/$(FLOWER) $(BIN)/python -m pytest -n 2 --dist loadfile $(FLOWER_TESTS)

test-all: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "slow or not slow"

# docs/reliability.md: new random schedules and combinations, every kill point, 100,000 bad messages
# per channel
faults: $(VENV)/.dev
	IDIOLECT_FAULTS_SCHEDULES=400 IDIOLECT_FAULTS_KILLS=0 IDIOLECT_FAULTS_MESSAGES=100000 \
	IDIOLECT_FAULTS_FLIPS=60 IDIOLECT_FAULTS_COMBINATIONS=200 \
	$(BIN)/python -m pytest -n 2 --dist load -m "slow or not slow" tests/faults tests/combinations

# 10,000 clients, 1,000 rounds: memory and descriptors do not grow
soak: $(VENV)/.dev
	$(BIN)/python -m benchmarks.soak

# do the tests notice when the code is another? Table and survivors in build/mutation
mutation: $(VENV)/.mutation
	$(BIN)/python -m benchmarks.mutation

bench: bench-peers
	$(BENCH)/bin/python -m benchmarks.run

bench-peers: $(BENCH)/.peers $(FEDJAX)/.peers

# torch first, at the version of constraints.txt: then no other package can pull in another build
$(VENV)/.base: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt torch
	$(PIP) install -c constraints.txt -e .
	touch $@

$(VENV)/.dev: $(VENV)/.base
	$(PIP) install -c constraints.txt -e '.[dev]'
	touch $@

$(FLOWER)/.ready:
	$(PIP) install --no-deps --target $(FLOWER) flwr==$(FLOWER_NEWEST)
	touch $@

$(VENV)/.mutation: $(VENV)/.dev
	$(PIP) install -c constraints.txt -e '.[dev,mutation]'
	touch $@

$(BENCH)/.peers: pyproject.toml constraints.txt benchmarks/requirements.txt
	test -x $(BENCH)/bin/python || $(PYTHON) -m venv $(BENCH)
	echo "*" > $(BENCH)/.gitignore
	$(BENCH)/bin/pip --disable-pip-version-check --quiet install -c constraints.txt torch
	$(BENCH)/bin/pip --disable-pip-version-check --quiet install -c constraints.txt -e .
	$(BENCH)/bin/pip --disable-pip-version-check --quiet install -r benchmarks/requirements.txt
	touch $@

$(FEDJAX)/.peers: pyproject.toml constraints.txt benchmarks/requirements-fedjax.txt
	test -x $(FEDJAX)/bin/python || $(PYTHON) -m venv $(FEDJAX)
	echo "*" > $(FEDJAX)/.gitignore
	$(FEDJAX)/bin/pip --disable-pip-version-check --quiet install -c benchmarks/requirements-fedjax.txt torch
	$(FEDJAX)/bin/pip --disable-pip-version-check --quiet install -r benchmarks/requirements-fedjax.txt -e .
	touch $@

clean:
	rm -rf $(VENV) $(BENCH) $(FEDJAX) build dist src/*.egg-info
	rm -rf .pytest_cache .ruff_cache .mypy_cache .import_linter_cache
