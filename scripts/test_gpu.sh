#!/usr/bin/env bash
# Builds with the CUDA backend and runs every test that computes on a GPU: the op tests' CUDA cases, the golden tests of
# every model family, the installed package, and whatever else names cuda. Usage: scripts/test_gpu.sh
set -euo pipefail
cd "$(dirname "$0")/.."
refuse() { echo "nanovllm: $1" >&2; exit 1; }
[ -d /usr/local/cuda/bin ] && PATH="$PATH:/usr/local/cuda/bin"
command -v nvcc >/dev/null ||
  refuse "make test-gpu needs nvcc to build the kernels: install the CUDA toolkit (12.4 or newer) or add it to PATH."
nvidia-smi -L 2>/dev/null | grep -q '^GPU' ||
  refuse "make test-gpu needs an NVIDIA GPU and nvidia-smi -L lists none; make test runs what needs no GPU."
scripts/install_packages.sh test
read -ra flags <<<"${CMAKE_FLAGS:-}"
cmake --preset cuda "${flags[@]}" -DNANOVLLM_TESTS=ON -DNANOVLLM_BENCH=OFF >/dev/null
cmake --build build-cuda -j "${JOBS:-$(nproc)}"

# As ctest sets them; see cmake/layers.cmake.
export CUDA_MODULE_LOADING=EAGER CUDA_DEVICE_MAX_CONNECTIONS=32 GTEST_TOTAL_SHARDS=4
filter='*cuda*:*Cuda*:*CUDA*:*Golden*'
# A process runs a quarter of a program's tests: ctest has one for each, and where there are several GPUs it takes
# seconds to reach them.
run_tests() {
  local program=$1 shard log running=() failed=0
  for shard in 0 1 2 3; do
    GTEST_SHARD_INDEX=$shard timeout 1200 "build-cuda/$program" --gtest_brief=1 --gtest_filter="$filter" \
      >"build-cuda/$program.$shard.log" 2>&1 &
    running+=($!)
  done
  for shard in 0 1 2 3; do
    log=build-cuda/$program.$shard.log
    wait "${running[shard]}" || { failed=1 && cat "$log"; }
    grep -q '^\[  PASSED  \] [1-9]' "$log" || { failed=1 && echo "$log: nothing passed"; }
  done
  cat "build-cuda/$program".?.log | awk -v program="$program" '
    /^\[  PASSED  \]/ { passed += $4 } /^\[  SKIPPED \] [0-9]/ { skipped += $4 }
    END { printf "%s: %d passed, %d skipped\n", program, passed, skipped }'
  return $failed
}
failed=0
for program in backend_tests models_tests runner_tests api_tests; do
  run_tests $program || failed=1
done
ctest --test-dir build-cuda --output-on-failure --no-tests=error -R '^install_test$' || failed=1
exit $failed
