#!/usr/bin/env bash
# Runs the kernels' tests under compute-sanitizer: memcheck, then racecheck, which looks for races in shared memory.
# Usage: scripts/sanitize_gpu.sh
set -euo pipefail
cd "$(dirname "$0")/.."
refuse() { echo "nanovllm: $1" >&2; exit 1; }
[ -d /usr/local/cuda/bin ] && PATH="$PATH:/usr/local/cuda/bin"
command -v compute-sanitizer >/dev/null ||
  refuse "make sanitize-gpu needs compute-sanitizer: install the CUDA toolkit (12.4 or newer) or add it to PATH."
nvidia-smi -L 2>/dev/null | grep -q '^GPU' ||
  refuse "make sanitize-gpu needs an NVIDIA GPU and nvidia-smi -L lists none."
scripts/install_packages.sh test
read -ra flags <<<"${CMAKE_FLAGS:-}"
cmake --preset cuda -B build-racecheck "${flags[@]}" -DNANOVLLM_RACECHECK=ON -DNANOVLLM_TESTS=ON -DNANOVLLM_BENCH=OFF \
  >/dev/null
cmake --build build-racecheck -j "${JOBS:-$(nproc)}" --target backend_tests
# bfloat16 is what the tensor cores' kernels take. Thousands of sequences or launches would take hours and show nothing
# new.
filter='*Ops.*cuda_bfloat16:*QkNorm*cuda_bfloat16:*Attention*cuda_bfloat16:*Sampling*cuda*-*VeryMany*:*InGraphs*'
for tool in memcheck racecheck; do
  echo "== compute-sanitizer --tool $tool"
  # What racecheck says of cuBLASLt's kernels (nvjet) is not ours to mend.
  compute-sanitizer --tool "$tool" --error-exitcode 1 --kernel-name-exclude kernel_substring=nvjet \
    build-racecheck/backend_tests --gtest_brief=1 --gtest_filter="$filter"
done
