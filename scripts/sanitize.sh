#!/usr/bin/env bash
# Builds one sanitizer preset and runs every test under it. Usage: scripts/sanitize.sh asan|tsan
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:?usage: scripts/sanitize.sh asan|tsan}

scripts/install_packages.sh test
scripts/install_tokenizers.sh "build-$preset/python"
cmake --preset "$preset" -DNANOVLLM_BENCH=OFF >/dev/null
cmake --build "build-$preset" -j "$(nproc)"
export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1
export UBSAN_OPTIONS=print_stacktrace=1
# A program that a signal ends at once joins no threads.
export TSAN_OPTIONS=halt_on_error=1:report_thread_leaks=0:suppressions=$PWD/scripts/tsan.supp
scripts/run_tests.sh "build-$preset" "$(nproc)"
