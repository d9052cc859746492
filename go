#!/bin/sh
# Sets nanolens up in .venv beside this file and runs it; seconds on the second call.
#   ./go                 train the quickstart on the built-in corpus
#   ./go test            ruff, mypy and the default tests (./go test tests/data -k char: only these)
#   ./go test-heavy      the tests that kill processes, open browsers and start several ranks
#   ./go docs            build the documentation site into site/, strictly
#   ./go COMMAND ...     any command of nanolens: ./go explain train.log
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
python="$here/.venv/bin/python"

setup() { # setup EXTRA: installs nanolens[EXTRA] unless this very pyproject.toml is installed already
    if [ ! -x "$python" ]; then
        "${PYTHON:-python3}" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
            echo "nanolens needs Python 3.11 or newer; name one with PYTHON=/path/to/python3 ./go" >&2
            exit 1
        }
        "${PYTHON:-python3}" -m venv "$here/.venv"
    fi
    mark="$here/.venv/installed-$1"
    if ! cmp -s "$here/pyproject.toml" "$mark"; then
        echo "setting up .venv (once; torch is the large one) ..." >&2
        "$python" -m pip install --quiet --disable-pip-version-check --editable "$here[$1]"
        cp "$here/pyproject.toml" "$mark"
    fi
}

case "${1-}" in
test)
    shift
    setup dev
    cd "$here"
    if [ $# -eq 0 ]; then
        "$python" -m ruff check .
        "$python" -m ruff format --check .
        "$python" -m mypy
    fi
    exec env OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" "$python" -m pytest --numprocesses=auto "$@"
    ;;
test-heavy)
    shift
    setup dev
    cd "$here"
    exec "$python" -m pytest -m heavy --timeout=1200 --numprocesses=2 --dist=loadfile "$@"
    ;;
docs)
    shift
    setup docs
    cd "$here"
    exec env NO_MKDOCS_2_WARNING=1 "$python" -m mkdocs build --strict --clean --quiet "$@"
    ;;
"")
    setup all
    exec "$here/.venv/bin/nanolens" train
    ;;
*)
    setup all
    exec "$here/.venv/bin/nanolens" "$@"
    ;;
esac
