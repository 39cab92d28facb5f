#!/usr/bin/env bash
# The Python package: builds its archive and of that its wheel, installs the wheel into a fresh virtual environment, and there
# runs its tests, mypy and the notebooks. Usage: scripts/test_python.sh [PYTEST_ARGUMENT...]
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/install_packages.sh python
if ! /usr/bin/python3 -c 'import venv, ensurepip' 2>/dev/null; then
  echo "nanovllm: SKIPPED: the tests of the Python package, for there is no Python with venv here" >&2
  exit 0
fi
builder=build/python-builder venv=build/python-venv wheels=build/wheels
packages=(pytest==9.* mypy==1.* numpy matplotlib nbclient==0.10.* ipykernel==6.* transformers==5.* jinja2)

# Two environments, so that the wheel is tried where nothing of its building is.
if ! cmp -s <(printf '%s\n' "${packages[@]}") "$venv/packages"; then
  echo "nanovllm: installing ${packages[*]} into $venv"
  rm -rf "$venv"
  if ! { /usr/bin/python3 -m venv "$venv" && "$venv/bin/pip" install -q --disable-pip-version-check "${packages[@]}"; }; then
    echo "nanovllm: SKIPPED: the tests of the Python package: ${packages[*]} can't be installed" >&2
    exit 0
  fi
  printf '%s\n' "${packages[@]}" >"$venv/packages"
fi
start=$SECONDS
rm -rf "$wheels"
scripts/build_python.sh "$builder" "$wheels"
"$venv/bin/pip" install -q --disable-pip-version-check --force-reinstall --no-deps "$wheels"/nanovllm-*.whl
echo "nanovllm: built and installed archive and wheel in $((SECONDS - start)) s"

export NANOVLLM="$PWD/build/nanovllm" NANOVLLM_MODEL="$PWD/models/demo" PYTHONDONTWRITEBYTECODE=1
"$venv/bin/mypy" --strict python/nanovllm python/tests/typed_program.py
cd python/tests # where Python finds the installed package, and not the sources
"../../$venv/bin/python" -m pytest -q -rs "$@"
