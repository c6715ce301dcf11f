# Everything that a fresh clone needs: Python 3.11 or newer, make, and a package index that pip can reach.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
CLIENTS = $(VENV)-clients
MODEL ?= smollm2
PROMPT ?= Explain in two sentences why the sky is blue.
TORCH = torch>=2.11,<2.14
# Of the suite; 0 runs it in one. Whoever works on a test calls pytest itself.
PROCESSES ?= 2

.PHONY: run serve test long lint types bench docs clean

# Torch first and alone: where a machine offers its own build, that one is taken.
$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tripower needs Python 3.11 or newer; set PYTHON=…")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q "$(TORCH)"
	$(BIN)/python -m pip install -q -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install -q -e ".[dev]"
	@touch $@

run: $(VENV)/.installed
	$(BIN)/tripower run $(MODEL) "$(PROMPT)"

serve: $(VENV)/.installed
	$(BIN)/tripower serve $(MODEL)

# Where no index is reachable the pulls fail, and the tests that need a model are skipped with that reason.
test: $(VENV)/.installed-dev
	-$(BIN)/tripower pull smollm2
	-$(BIN)/tripower pull gemma3-270m
	-$(BIN)/tripower pull minilm
	$(BIN)/python -m pytest -m "not long" -n $(PROCESSES) --dist worksteal

# Other people's clients come with plugins of pytest, so they live beside the environment and not in it; the extra says which they are.
# Where no index is reachable the tests that need them are skipped with that reason.
EXTRA = import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["clients"])
$(CLIENTS)/.installed: pyproject.toml $(VENV)/.installed
	-$(PYTHON) -m venv $(CLIENTS) \
	&& $(CLIENTS)/bin/python -m pip install -q --disable-pip-version-check $$($(BIN)/python -c '$(EXTRA)') \
	&& touch $@

long: $(VENV)/.installed-dev $(CLIENTS)/.installed
	$(BIN)/python -m pytest -m long

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

# Some three hours. What cannot run is named at the end; the page shows what has been measured.
bench: $(VENV)/.installed-dev
	-$(BIN)/tripower bench all
	$(BIN)/python docs/generate_performance.py

docs: $(VENV)/.installed-dev
	$(BIN)/python docs/generate_messages.py
	$(BIN)/python docs/generate_settings.py
	$(BIN)/python docs/generate_performance.py

clean:
	rm -rf $(VENV) $(CLIENTS) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
