# Needs git, make and Python >= 3.11; everything else goes into .venv.

PYTHON ?= python3
BIN := .venv/bin

# Tests that `make test` leaves out; with PyTorch, Triton and Chromium installed none of them skips.
MORE := torch or gpu_kernels or browser or cluster or docs or pictures or process or recovery

.PHONY: demo trials test test-more test-slow bench docs numbers package clean

demo: .venv/installed
	$(BIN)/robustcp demo --out demo

trials: .venv/installed
	$(BIN)/robustcp trials $(KINDS) --out results

test: .venv/tested
	$(BIN)/ruff check src tests benchmarks examples scripts docs/*.py
	$(BIN)/ruff format --check src tests benchmarks examples scripts docs/*.py
	$(BIN)/mypy
	$(BIN)/pytest -n 2 -q

test-more: .venv/tested
	$(BIN)/pytest -n 2 -q -rs -m '($(MORE)) and not slow'

test-slow: .venv/tested
	$(BIN)/pytest -q -m slow

bench: .venv/benched
	$(BIN)/python benchmarks/bench.py --out bench $(if $(ONLY),--only $(ONLY)) \
	  $(if $(AGAINST),--against $(AGAINST)) $(if $(ALSO),--also $(ALSO)) $(if $(DOCS),--docs $(DOCS))

docs: .venv/documented
	$(BIN)/sphinx-build -W --keep-going -j 2 -d docs/_build/doctrees docs docs/_build/html
	@echo "open docs/_build/html/index.html"

numbers: .venv/benched
	$(BIN)/python scripts/check_numbers.py

package: .venv/installed
	$(BIN)/python -m pip install --quiet build twine
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/python -m twine check --strict dist/*
	$(PYTHON) scripts/check_package.py dist $(foreach python,$(PYTHONS),--python $(python))

.venv/installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "robustcp needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

.venv/tested: .venv/installed
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@

.venv/benched: .venv/installed
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	touch $@

.venv/documented: .venv/installed
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	touch $@

clean:
	rm -rf .venv demo bench dist docs/_build docs/api docs/gallery
