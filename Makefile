# make demo: an embedding trained with small batches, in one picture; then every method, tables and a page to look at.
# make test: run the whole test suite. Both set up .venv first, on a machine with only Python and make.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-compile faults test-browser test-install docs fuzz lint format bench bench-applications bench-top bench-memory evidence clean

demo: .venv/.demo
	$(BIN)/python examples/demo.py
	$(BIN)/fcco reproduce quick

test: .venv/.dev
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

# Every loss with every option, compiled by aot_eager and by inductor.
test-compile: .venv/.dev
	FCCO_COMPILE_ALL=1 $(BIN)/python -m pytest -n auto tests/test_compile.py

# Whether the tests notice wrong changes of the core, one after the other.
faults: .venv/.dev
	$(BIN)/python tests/faults.py

test-browser: .venv/.dev
	@command -v chromium || command -v chromium-browser || command -v google-chrome || command -v google-chrome-stable \
		|| command -v chrome || { echo "no browser on PATH" >&2; exit 1; }
	$(BIN)/python -m pytest tests/reproduce/test_browser.py

# Build the wheel and the sdist, install them into empty environments, and try each.
test-install: .venv/.dev
	$(BIN)/python tests/installed.py

# The documentation, into site/index.html, which can be opened as a file.
docs: .venv/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# make fuzz MINUTES=20, or HOURS=2
MINUTES ?= 5
fuzz: .venv/.dev
	$(BIN)/python tests/fuzz.py $(if $(HOURS),--hours $(HOURS),--minutes $(MINUTES))

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/.dev
	$(BIN)/python benchmarks/engine.py
	$(BIN)/python benchmarks/losses.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/estimators.py
	$(BIN)/python benchmarks/first_fit.py
	$(BIN)/python benchmarks/threads.py
	$(BIN)/python benchmarks/distributed.py
	$(BIN)/python benchmarks/scale_simulation.py
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/chunks.py

bench-applications: .venv/.dev
	PYTHONPATH=benchmarks:build/rivals $(BIN)/python -m applications

bench-top: .venv/.dev
	PYTHONPATH=benchmarks:build/rivals $(BIN)/python -m top_of_list

bench-memory: .venv/.dev
	PYTHONPATH=benchmarks:build/rivals $(BIN)/python -m remembering

# List which stored results were made by other code than today's, and measure these again: some hours; it can be stopped.
evidence: .venv/.dev
	-$(BIN)/fcco report docs/ap docs/push docs/nca docs/theory --stale
	$(BIN)/python benchmarks/evidence.py --run
	$(BIN)/python benchmarks/measured.py

clean:
	rm -rf .venv

.venv/.%: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[$*]'
	touch $@
