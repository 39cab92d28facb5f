#!/usr/bin/env bash
# The Python package with all that it needs into the virtual environment FOLDER. Usage: build_python.sh FOLDER [PACKAGE...],
# which come from PyPI besides
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:?usage: build_python.sh FOLDER [PACKAGE...]}
scripts/install_packages.sh python
# The distribution's own, whose headers and venv were just installed.
[ -x "$venv/bin/python" ] || /usr/bin/python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check . "${@:2}"
