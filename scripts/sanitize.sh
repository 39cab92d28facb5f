#!/usr/bin/env bash
# Builds one sanitizer preset and runs the tests under it. Usage: scripts/sanitize.sh asan|tsan
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:?usage: scripts/sanitize.sh asan|tsan}

# What is left out, by the names of tests. labs_test compares pages with what commands print; cli_test runs the same
# commands.
left_out='^labs_test$'
if [[ $preset == tsan ]]; then
  # Long work on one thread, which cannot race: parsers and templates under random and reference input.
  left_out+='|Fuzz|Vectors|^JinjaLimits|^Tokenizer\.LongRuns|^NormalizeUnicode|^tokenizer_differential$|^chat_template_oracle$'
fi

scripts/install_packages.sh test
cmake --preset "$preset" -DNANOVLLM_BENCH=OFF >/dev/null
cmake --build "build-$preset" -j "$(nproc)"
export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1
export UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1
echo "left out under $preset (scripts/sanitize.sh says why): $left_out"
ctest --test-dir "build-$preset" --output-on-failure -j "$(nproc)" -E "$left_out"
