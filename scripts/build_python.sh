#!/usr/bin/env bash
# The Python package, built in the virtual environment FOLDER and installed there; with a second folder only its wheel is
# made, into that. Usage: build_python.sh FOLDER [WHEELS]
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:?usage: build_python.sh FOLDER [WHEELS]}
scripts/install_packages.sh python
# The distribution's Python, whose headers and venv were just installed.
[ -x "$venv/bin/python" ] || /usr/bin/python3 -m venv "$venv"
pip() { "$venv/bin/pip" --quiet --disable-pip-version-check "$@"; }
# In an environment that stays, with the compiler that CMake takes for `make build`: ccache has what that compiled.
read -ra needed < <(sed -n 's/^requires = \[\(.*\)\]$/\1/p' pyproject.toml | tr -d '",')
pip install "${needed[@]}"
export CXX=${CXX:-c++}
if [ $# -gt 1 ]; then
  pip wheel --no-build-isolation --no-deps --wheel-dir "$2" .
else
  pip install --no-build-isolation .
fi
