# Two commands matter: `make demo` and `make test`. Both set up what they need; second runs are fast.

VENV := .venv
BENCH := .venv-bench
OLD := .venv-old-client
RUN := $(VENV)/bin

.PHONY: help demo test lint unit packages soak bench docs requirements clean

help:
	@echo "make demo    set up .venv and show Pinwarden at work"
	@echo "make test    set up everything the tests need, then lint and run the whole suite (minutes)"
	@echo "make lint    ruff, mypy --strict, layer contract, spelling"
	@echo "make soak    the long tests: hours of use in minutes, faults, many real servers"
	@echo "make bench   compare the hot paths with their floors and peers, as ratios"
	@echo "make docs    build the documentation as a site, in build/site"
	@echo "make requirements   renew the pinned and hashed requirements (needs uv)"
	@echo "make clean   remove everything that was set up here"

demo: $(VENV)/.base
	@echo "==> demo"
	@PATH="$(CURDIR)/$(RUN):$$PATH" pinwarden demo

# Downloads and tests wait and mypy computes, so they go side by side.
test: $(VENV)/.dev
	@$(MAKE) --no-print-directory -j 3 --output-sync=line lint unit

lint: $(VENV)/.dev
	@echo "==> ruff"
	@$(RUN)/ruff check .
	@$(RUN)/ruff format --check .
	@echo "==> mypy --strict"
	@$(RUN)/mypy
	@echo "==> import-linter"
	@$(RUN)/lint-imports --no-logo
	@echo "==> codespell"
	@$(RUN)/codespell

packages: $(VENV)/.dev $(OLD)/.ready
	@echo "==> system packages for the tests"
	@tools/system-packages.sh
	@echo "==> npm packages for the tests"
	@tools/npm-packages.sh

unit: packages
	@echo "==> pytest"
	@# Many tests wait for servers that start; two workers more than cores fill those gaps.
	@$(RUN)/pytest -rs -n $$(( $$(nproc 2>/dev/null || echo 2) + 2 ))

soak: packages
	@echo "==> pytest, the long tests"
	@$(RUN)/pytest -rs -n 0 -m soak --timeout 1800
	@echo "==> pytest, 500 publishes at three replicas, and 50 replicas killed"
	@PINWARDEN_SOAK=1 $(RUN)/pytest tests/registry/test_replicas.py -n 0 --timeout 1800

bench: $(BENCH)/.ready $(VENV)/.dev
	@{ command -v nginx && command -v wrk; } >/dev/null || tools/system-packages.sh nginx-light wrk
	@echo "==> benchmarks"
	@$(BENCH)/bin/python -m benchmarks --page

docs: $(VENV)/.dev
	@NO_MKDOCS_2_WARNING=1 $(RUN)/mkdocs build --strict --quiet
	@echo "build/site/index.html"

$(VENV)/.base: requirements/base.txt pyproject.toml
	@tools/venv.sh $(VENV) base
	@touch $@

$(VENV)/.dev: $(VENV)/.base requirements/dev.txt
	@tools/venv.sh $(VENV) dev
	@touch $@

# A client of the older SDK, for the tests of the gateway.
$(OLD)/.ready: requirements/old-client.txt
	@tools/venv.sh $(OLD) old-client
	@touch $@

# Installed as a user would have it, not from the source folder: start-up is part of what is measured.
$(BENCH)/.ready: requirements/bench.txt requirements/bench-rules.txt pyproject.toml $(shell find src -name '*.py')
	@tools/venv.sh $(BENCH) bench
	@touch $@

requirements:
	@for name in base uv dev bench old-client gateway; do \
	  uv pip compile -q --upgrade --universal --generate-hashes --no-emit-index-url --python-version 3.11 \
	    --custom-compile-command "make requirements" requirements/$$name.in -o requirements/$$name.txt || exit 1; \
	done
	@uv pip compile -q --upgrade --no-deps --universal --generate-hashes --no-emit-index-url --python-version 3.11.4 \
	  --custom-compile-command "make requirements" requirements/bench-rules.in -o requirements/bench-rules.txt

clean:
	rm -rf $(VENV) $(BENCH) $(OLD) tests/npm/node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
