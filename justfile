# `just` lists the recipes.
default:
    @just --list

# ruff, types, fast tests
check:
    ruff check . && ruff format --check . && mypy && python -m pytest -n 2

# the long tests
slow:
    python -m pytest -m slow

# the documentation, live
docs:
    mkdocs serve
