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
ctest --test-dir build-cuda --output-on-failure --no-tests=error -j 4 -R '[Cc]uda|CUDA|Golden|^install_test$'
