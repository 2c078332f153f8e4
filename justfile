# `just` lists the recipes.
default:
    @just --list

# lint, types, fast tests
check:
    ruff check . && ruff format --check . && mypy && python -m pytest -n 2

# thorough tests
slow:
    python -m pytest -n 2 -m slow

# suites of hours: statistics, kills, whole runs
long *paths:
    python -m pytest -m long {{paths}}

# result pages that are not of this model and code; resumes, shortest first (--minutes N: begin nothing longer)
evidence *options:
    python research/evidence.py run {{options}}

# documentation, live
docs:
    mkdocs serve

# requirements.lock: the versions of this environment, by their hashes (needs uv)
lock:
    #!/bin/bash
    set -euo pipefail
    tested=$(mktemp) && made=$(mktemp) && trap 'rm -f "$tested" "$made"' EXIT
    python -m pip freeze --exclude-editable | grep '==' > "$tested"
    uv pip compile pyproject.toml --extra cluster --universal --python-version 3.11 --constraints "$tested" \
        --generate-hashes --no-annotate --no-header --no-emit-index-url --no-emit-find-links --quiet > "$made"
    { sed -n '/^#/p' requirements.lock; cat "$made"; } > requirements.lock.new
    mv requirements.lock.new requirements.lock
