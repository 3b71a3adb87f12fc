PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/setup.stamp
QUICK := not slow and not gpu
unexport PYTHONDONTWRITEBYTECODE

FLOWER := .venv-flower
RAY := .venv-ray
BROWSER := .venv-browser
OUTPUTS := .venv-outputs
DOCS := .venv-docs

.PHONY: help setup demo test test-slow test-flower test-ray test-browser test-outputs test-installs docs bench gpu lint kernels format
.DEFAULT_GOAL := help

help:
	@echo "make setup      an environment in .venv with everything that development needs (once)"
	@echo "make demo       two real federations: who holds what, training, the comparison"
	@echo "make test       lint, then the quick tests"
	@echo "make test-slow  the slow tests"
	@echo "make test-flower the tests over Flower, in an environment of its own in $(FLOWER)"
	@echo "make test-browser reports and the console in a real browser, Chromium, with $(BROWSER)"
	@echo "make test-ray   the tests over two nodes of Ray on this machine, with an environment in $(RAY)"
	@echo "make test-outputs models as ONNX and scikit-learn, runs in trackers, with an environment in $(OUTPUTS)"
	@echo "make test-installs wheel and sdist in fresh environments: lowest and newest versions, extras"
	@echo "make docs       the documents as a site in site/, the tutorials executed, with $(DOCS)"
	@echo "make bench      benchmarks/hyfdca.py; the tables go into benchmarks/RESULTS.md"
	@echo "make gpu        published settings on an accelerator, 40 minutes a call; a later call goes on"
	@echo "make lint       ruff, mypy --strict, import-linter"
	@echo "make format     let ruff rewrite what it can"

setup: $(STAMP)

# What constraints.txt lists, hatchling for the build too, each file held against its checksum.
# Python compiles what is imported, a third of it all, and keeps that for the next process.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python %d.%d is too old; 3.11 or newer is needed: make PYTHON=python3.12 ..." % sys.version_info[:2])'
	@echo "Setting up .venv (once, a minute or two)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@grep '^torch==' constraints.txt > .venv/torch.txt
	@grep -v '^torch==' constraints.txt > .venv/hashed.txt
	@$(BIN)/python -m pip install -qq --no-deps --no-compile --require-hashes -r .venv/hashed.txt
	@$(BIN)/python -m pip install -qq --no-deps --no-compile -r .venv/torch.txt
	@$(BIN)/python -m pip install -qq --no-deps --no-build-isolation -e '.[dev]'
	@$(BIN)/python -m pip check > .venv/check.txt || { cat .venv/check.txt; exit 1; }
	@touch $@

demo: $(STAMP)
	$(BIN)/intarsia inspect experiments/credit.toml
	$(BIN)/intarsia run experiments/credit.toml --overwrite
	$(BIN)/intarsia inspect experiments/heart.toml
	$(BIN)/intarsia run experiments/heart.toml --overwrite

# Kernels are compiled once, beside the checks of the code, and not by each process that tests. A
# process per core; a file's tests stay together, as they share what they set up.
test: $(STAMP)
	$(MAKE) -j2 lint kernels
	$(BIN)/python -m pytest -q -m "$(QUICK)" -n auto --dist loadfile

test-slow: $(STAMP)
	$(BIN)/python -m pytest -q -m "slow and not gpu"

# The second file takes ten minutes on two loaded cores: Flower starts a process for each call to a node.
test-flower: $(FLOWER)/setup.stamp
	$(FLOWER)/bin/python -m pytest -q -m "not gpu" tests/engines/transports/test_flower.py tests/engines/transports/test_flower_deployment.py

# flwr 1.41 and its libraries do not go with the versions of constraints.txt (it wants packaging below
# 26, for one); of these only torch is pinned here, which a bare pip would fetch with all of CUDA.
$(FLOWER)/setup.stamp: pyproject.toml constraints.txt
	@echo "Setting up $(FLOWER) (once, a few minutes)"
	@test -x $(FLOWER)/bin/python || $(PYTHON) -m venv $(FLOWER)
	@grep '^torch==' constraints.txt > $(FLOWER)/constraints.txt
	@PIP_CONSTRAINT=$(FLOWER)/constraints.txt $(FLOWER)/bin/python -m pip install -qq -e '.[flower,privacy,torch]' 'flwr[simulation]' hypothesis psutil pytest
	@touch $@

test-ray: $(RAY)/setup.stamp
	$(RAY)/bin/python -m pytest -q tests/engines/transports/test_ray.py

# At the versions of constraints.txt, and Ray, which they do not have.
$(RAY)/setup.stamp: pyproject.toml constraints.txt
	@echo "Setting up $(RAY) (once, a few minutes)"
	@test -x $(RAY)/bin/python || $(PYTHON) -m venv $(RAY)
	@sed -n 's/^\([A-Za-z0-9._-]*==[^ ]*\).*/\1/p' constraints.txt > $(RAY)/constraints.txt
	@PIP_CONSTRAINT=$(RAY)/constraints.txt $(RAY)/bin/python -m pip install -qq -e '.[privacy,ray,torch]' hypothesis pandas psutil pytest
	@touch $@

test-browser: $(BROWSER)/setup.stamp
	$(BROWSER)/bin/python -m pytest -q tests/reports/test_browser.py

# The package at the versions of constraints.txt, with torch and what the console needs, and what
# drives a browser. The browser is the system's Chromium; where there is none, playwright is asked
# for its own.
$(BROWSER)/setup.stamp: pyproject.toml constraints.txt
	@echo "Setting up $(BROWSER) (once, a few minutes)"
	@test -x $(BROWSER)/bin/python || $(PYTHON) -m venv $(BROWSER)
	@sed -n 's/^\([A-Za-z0-9._-]*==[^ ]*\).*/\1/p' constraints.txt > $(BROWSER)/constraints.txt
	@PIP_CONSTRAINT=$(BROWSER)/constraints.txt $(BROWSER)/bin/python -m pip install -qq -e '.[console,nvflare,torch]' hypothesis playwright==1.65.2 pytest
	@command -v chromium || command -v chromium-browser || command -v google-chrome || $(BROWSER)/bin/playwright install chromium
	@touch $@

test-outputs: $(OUTPUTS)/setup.stamp
	$(OUTPUTS)/bin/python -m pytest -q tests/inference/test_export.py tests/callbacks tests/test_documented_commands.py -k "not test_documented_commands or how-to/export or how-to/trackers"

# The newest versions, but for the build of torch.
$(OUTPUTS)/setup.stamp: pyproject.toml constraints.txt
	@echo "Setting up $(OUTPUTS) (once, a few minutes)"
	@test -x $(OUTPUTS)/bin/python || $(PYTHON) -m venv $(OUTPUTS)
	@grep '^torch==' constraints.txt > $(OUTPUTS)/constraints.txt
	@PIP_CONSTRAINT=$(OUTPUTS)/constraints.txt $(OUTPUTS)/bin/python -m pip install -qq -e '.[export,mlflow,tensorboard,torch,wandb]' hypothesis pytest
	@touch $@

# What passed with the same files is not tried again: after a stop the same command goes on.
test-installs: $(STAMP)
	$(BIN)/python tests/installs/environments.py

# The notebooks of the tutorials, then the site; a link or a name that leads nowhere is an error.
docs: $(DOCS)/setup.stamp
	@PATH="$(CURDIR)/$(BIN):$$PATH" MPLBACKEND=Agg $(DOCS)/bin/python docs/scripts/notebooks.py $(DOCS)/notebooks
	NO_MKDOCS_2_WARNING=true $(DOCS)/bin/mkdocs build --strict
	@echo "open site/index.html"

# What draws the site, and behind it what .venv has, for the blocks of the tutorials.
$(DOCS)/setup.stamp: $(STAMP) docs/requirements.txt
	@echo "Setting up $(DOCS) (once, a minute)"
	@test -x $(DOCS)/bin/python || $(BIN)/python -m venv $(DOCS)
	@$(DOCS)/bin/python -m pip install -qq -r docs/requirements.txt
	@$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' > `$(DOCS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'`/development.pth
	@touch $@

bench: $(STAMP)
	$(BIN)/python benchmarks/hyfdca.py --write

# constraints.txt pins a build of torch for processors: put one for the accelerator into .venv first.
gpu: $(STAMP)
	$(BIN)/python -m pytest -q -m gpu
	$(BIN)/python benchmarks/accelerator.py --minutes 40 --write

kernels: $(STAMP)
	@$(BIN)/intarsia doctor --warm > .venv/kernels.txt 2>&1 || { cat .venv/kernels.txt; exit 1; }

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
