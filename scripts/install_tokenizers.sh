#!/usr/bin/env bash
# The Python package `tokenizers` for tests/tokenizer_differential.py. No distribution has it, so it comes from PyPI into
# FOLDER, where a network is. Never fails: without it that test is skipped, and says so. Usage: install_tokenizers.sh FOLDER
set -uo pipefail
folder=${1:?usage: install_tokenizers.sh FOLDER}
version=0.22.2
python=/usr/bin/python3
[ -x "$python" ] || python=python3

[ -d "$folder/tokenizers-$version.dist-info" ] && exit 0
# pip comes from the distribution, if that needs no password and not long.
if ! "$python" -m pip --version >/dev/null 2>&1 && { [ "$(id -u)" -eq 0 ] || sudo -n true 2>/dev/null; }; then
  timeout 120 "$(dirname "$0")/install_packages.sh" pip
fi
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
# Its dependencies only download models.
if timeout 60 "$python" -m pip --disable-pip-version-check install --quiet --no-deps --only-binary :all: --retries 0 \
    --timeout 5 --target "$fresh/packages" "tokenizers==$version" 2>"$fresh/log"; then
  mkdir -p "$(dirname "$folder")"
  rm -rf "$folder"
  mv "$fresh/packages" "$folder"
else
  echo "nanovllm: SKIPPED: tokenizer_differential, for the Python package tokenizers==$version cannot be installed here:" >&2
  echo "nanovllm:   $(tail -n 1 "$fresh/log" 2>/dev/null)" >&2
  echo "nanovllm:   run $0 $folder where there is a network, or" >&2
  echo "nanovllm:   make test CMAKE_FLAGS=-DNANOVLLM_PYTHON=PYTHON with one that has the package" >&2
fi
exit 0
