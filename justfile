# `just` lists the recipes.
default:
    @just --list

# lint, types, fast tests
check:
    ruff check . && ruff format --check . && mypy && python -m pytest -n 2

# long tests
slow:
    python -m pytest -m slow

# documentation, live
docs:
    mkdocs serve
