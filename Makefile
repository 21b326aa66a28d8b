# what people and machines call: `make help`

.PHONY: help test lint docs check-docs bench

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

test:  ## run the tests
	uv run pytest

lint:  ## ruff, its formatter, and mypy
	uv run ruff check .
	uv run ruff format --check .
	uv run mypy

docs:  ## run every example of the documentation and write what it prints; the coverage table, too
	uv run python tools/docs.py
	cd tests && uv run python architectures.py

check-docs:  ## say where the documentation is out of date
	uv run python tools/docs.py --check

bench:  ## measure beside the alternatives; prints ratios and figures
	uv run --group bench pytest tests/benchmarks --benchmark-only -n 0
