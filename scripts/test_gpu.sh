#!/usr/bin/env bash
# Builds with the CUDA backend and runs every test that computes on a GPU: the op tests' CUDA cases, the golden tests of
# every model family, the installed package, and whatever else names cuda. Tells how many ran on a GPU, and names what was
# skipped. Usage: scripts/test_gpu.sh
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
cmake --preset cuda -DNANOVLLM_TESTS=ON -DNANOVLLM_BENCH=OFF "${flags[@]}" >/dev/null
cmake --build build-cuda -j "${JOBS:-$(nproc)}"

# As ctest sets them; see cmake/layers.cmake.
export CUDA_DEVICE_MAX_CONNECTIONS=32
# A test that computes on a GPU says so in its name; those of goldens and of GGUF files go through every backend that there
# is, one after the other. Plans of kernels are computed by the CPU, but only a build with CUDA has them.
filter='*cuda*:*Cuda*:*CUDA*:*Gpu*:All/Golden.*:*GgufOfAFolder.*'
# A process runs a quarter of a program's tests: ctest has one for each, and where there are several GPUs it takes
# seconds to reach them.
cd build-cuda
run_tests() {
  local program=$1 shard running=() failed=0
  for shard in 0 1 2 3; do
    GTEST_TOTAL_SHARDS=4 GTEST_SHARD_INDEX=$shard timeout 1200 "./$program" --gtest_filter="$filter" \
      >"$program.$shard.log" 2>&1 &
    running+=($!)
  done
  for shard in 0 1 2 3; do
    wait "${running[shard]}" || { failed=1 && grep -v '^\[ RUN  \|^\[       OK' "$program.$shard.log"; }
  done
  local all of_gpu
  all=$(count_tests "$program" '*') of_gpu=$(count_tests "$program" "$filter")
  cat "$program".[0-3].log | summary "$program" $((all - of_gpu)) || failed=1
  return $failed
}
# Of the output of tests: how many passed, and which were skipped and why.
summary() {
  awk -v program="$1" -v others="$2" '
    /: Skipped$/ { getline reason }
    /^\[       OK \] Cuda[A-Za-z]*Plan\./ { ++plans; next }
    /^\[       OK \]/ { ++passed }
    /^\[  SKIPPED \] .* ms\)$/ { ++skipped; names = names "\n  skipped: " $4 ": " reason }
    END {
      printf "%s: %d passed on a GPU, %d about plans on the CPU, %d skipped; %d of the CPU alone left to make test%s\n",
             program, passed, plans, skipped, others, names
      exit passed + plans == 0
    }'
}
count_tests() { "./$1" --gtest_list_tests --gtest_filter="$2" | grep -c '^  ' || true; }
failed=0 found=0
for program in *_tests; do
  [ -n "$("./$program" --gtest_list_tests --gtest_filter="$filter" | grep '^  ')" ] || continue
  found=1
  run_tests "$program" || failed=1
done
[ $found = 1 ] || refuse "no test of build-cuda names cuda; is NANOVLLM_CUDA on?"
ctest --output-on-failure --no-tests=error -R '^install_test$' || failed=1
exit $failed
