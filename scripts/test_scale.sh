#!/usr/bin/env bash
# What is for many machines: the manifests of deploy/kubernetes against Kubernetes' schemas, a pod of them played here, and
# batches on a Ray cluster of three nodes on this machine, with the Python package as it is installed.
# Usage: scripts/test_scale.sh [PATTERN], which picks among the tests by name
set -uo pipefail
cd "$(dirname "$0")/.."
pattern="${1:-}"
venv=build/scale-venv
packages=(kubernetes-validate==1.37.0 PyYAML==6.0.* 'ray[data,serve]==2.60.*')

if ! cmp -s <(printf '%s\n' "${packages[@]}") "$venv/packages"; then
  echo "nanovllm: installing ${packages[*]} into $venv"
  rm -rf "$venv"
  if ! { /usr/bin/python3 -m venv "$venv" && "$venv/bin/python" -m pip --disable-pip-version-check install -q \
    "${packages[@]}"; }; then
    echo "nanovllm: the tests of many machines can't be run: ${packages[*]} can't be installed (is there a network?)" >&2
    exit 1
  fi
  printf '%s\n' "${packages[@]}" >"$venv/packages"
fi

scripts/build_python.sh "$venv" || exit 1

export NANOVLLM="${NANOVLLM:-$PWD/build/nanovllm}" NANOVLLM_MODEL="$PWD/models/demo"
export PYTHONPATH="$PWD/tests" PYTHONDONTWRITEBYTECODE=1
# Cores may be busy: Ray's processes, which it gives niceness 15, get their share, and Serve's proxy time to start.
export RAY_worker_niceness=0 RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S=120 RAY_USAGE_STATS_ENABLED=0
failed=()
for test in tests/scale/*_test.py; do
  [[ $test == *"$pattern"* ]] || continue
  echo "== $test"
  "$venv/bin/python" "$test"
  status=$?
  [ $status -eq 0 ] || [ $status -eq 77 ] || failed+=("$test")
done
[ ${#failed[@]} -eq 0 ] && exit 0
echo "nanovllm: failed: ${failed[*]}" >&2
exit 1
