#!/usr/bin/env bash
# Mixed traffic on the server for SOAK_SECONDS (30 minutes) under address+undefined sanitizers, then under the thread
# sanitizer; memory must stay flat, and no sanitizer may say a word.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/install_packages.sh test
for preset in asan tsan; do
  cmake --preset "$preset" >/dev/null
  cmake --build "build-$preset" -j "$(nproc)" --target nanovllm_cli
  echo "== $preset"
  NANOVLLM="$PWD/build-$preset/nanovllm" NANOVLLM_MODEL="$PWD/models/demo" PYTHONPATH="$PWD/tests" \
    ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1:quarantine_size_mb=16 UBSAN_OPTIONS=print_stacktrace=1 \
    TSAN_OPTIONS=halt_on_error=1 python3 tests/serve/soak.py
done
