#!/usr/bin/env bash
# The server against real clients: the openai package, lm_eval, schemathesis, the distribution's prometheus and a headless
# browser; under faults and load; and our cache of models against huggingface_hub. Usage: scripts/test_serve.sh [PATTERN],
# which picks among the tests by name
set -uo pipefail
cd "$(dirname "$0")/.."
pattern="${1:-}"
venv=build/serve-venv
# What these tests ask for by name (transformers for lm_eval's tokenizer, markdown-it-py for the page); a part that can't be had
# skips, and says so.
packages=(openai==3.* schemathesis==4.* "lm_eval[api]==0.4.*" transformers==5.* huggingface_hub "markdown-it-py==4.*")

if ! cmp -s <(printf '%s\n' "${packages[@]}") "$venv/packages"; then
  echo "nanovllm: installing ${packages[*]} into $venv"
  rm -rf "$venv"
  if python3 -m venv "$venv" && "$venv/bin/pip" install -q "${packages[@]}"; then
    printf '%s\n' "${packages[@]}" >"$venv/packages"
  else
    echo "nanovllm: SKIPPED: the tests with real clients: ${packages[*]} can't be installed" >&2
  fi
fi

export NANOVLLM="$PWD/build/nanovllm" NANOVLLM_MODEL="$PWD/models/demo" NANOVLLM_SHARED="$PWD/../shared"
export PYTHONPATH="$PWD/tests" PYTHONDONTWRITEBYTECODE=1
python=python3
[ -f "$venv/packages" ] && python="$venv/bin/python"
failed=()
for test in tests/page_test.py tests/page_markdown_test.py tests/serve/*_test.py; do
  [[ $test == *"$pattern"* ]] || continue
  echo "== $test"
  "$python" "$test"
  status=$?
  [ $status -eq 0 ] || [ $status -eq 77 ] || failed+=("$test")
done
[ ${#failed[@]} -eq 0 ] && exit 0
echo "nanovllm: failed: ${failed[*]}" >&2
exit 1
