# make lab                    install, make or update the workspace, open JupyterLab on 00-start.ipynb
# make lab ARGS=--no-browser  the same, but print the address
# make test                   install the test tools and run all tests; ARGS reaches pytest
# make build                  cut the stubs, draw the figures, make nbgrader's source
# make clean                  remove .venv and what was built; workspaces and grades stay
#
# PYTHON       the Python that makes .venv, 3.11 to 3.13
# WORKSPACE    the learner's folder
# TORCH        cpu: the small CPU-only build, from pytorch.org; cuda or empty: what `pip install torch` gives, which
#              on Linux is the CUDA build of PyPI
# TORCH_INDEX  the index to take torch from, for example that of another CUDA version
# To change the torch build of an existing .venv, run `make clean` first.

PYTHON ?= python3
WORKSPACE ?= workspace
TORCH ?=
ARGS ?=

TORCH_INDEX_cpu := https://download.pytorch.org/whl/cpu
TORCH_INDEX ?= $(TORCH_INDEX_$(TORCH))
ifneq ($(filter-out cpu cuda,$(TORCH)),)
$(error TORCH is cpu, cuda or empty, not "$(TORCH)"; another index is TORCH_INDEX=...)
endif

PIP := .venv/bin/python -m pip install --quiet --constraint constraints.txt
# nbgrader and JupyterLab call other commands by bare name
export PATH := $(CURDIR)/.venv/bin:$(PATH)
# in a container one is root, which JupyterLab wants to be told
ROOT_OK := $(if $(filter 0,$(shell id -u)),--allow-root)

.PHONY: lab test build clean

lab: .venv/installed
	mha build
	mha start "$(WORKSPACE)"
	jupyter lab --ServerApp.root_dir="$(abspath $(WORKSPACE))" --LabApp.default_url=/lab/tree/00-start.ipynb $(ROOT_OK) $(ARGS)

test: .venv/installed-test
	mha build
	OMP_NUM_THREADS=1 .venv/bin/python -m pytest --numprocesses auto $(ARGS)

build: .venv/installed
	mha build

clean:
	rm -rf .venv dist .pytest_cache .ruff_cache .hypothesis course/source
	find . -name __pycache__ -not -path "./$(WORKSPACE)/*" -prune -exec rm -rf {} +

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
		{ echo "The course needs Python 3.11 to 3.13; choose one with PYTHON=..."; exit 1; }
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python pyproject.toml constraints.txt course/overrides.json
ifneq ($(TORCH_INDEX),)
	$(PIP) --index-url $(TORCH_INDEX) torch
endif
	$(PIP) --editable .
	mkdir -p .venv/share/jupyter/lab/settings
	cp course/overrides.json .venv/share/jupyter/lab/settings/overrides.json
	touch $@

.venv/installed-test: .venv/installed
	$(PIP) --editable '.[test]'
	touch $@
