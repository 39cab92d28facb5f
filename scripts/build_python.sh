#!/usr/bin/env bash
# The Python package, built in the virtual environment FOLDER and installed there; with a second folder its archive is made
# instead, into that, and of the archive its wheel. Usage: build_python.sh FOLDER [WHEELS]
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
  pip install build
  "$venv/bin/python" -m build --sdist --no-isolation --outdir "$2" . >/dev/null
  # By its path alone, pip would take an older archive for this one.
  pip wheel --no-cache-dir --no-build-isolation --no-deps --wheel-dir "$2" "$2"/nanovllm-*.tar.gz
else
  pip install --no-build-isolation .
fi
