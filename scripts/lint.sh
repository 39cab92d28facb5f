#!/usr/bin/env bash
# Format, layering, files of over 600 lines, unused names and awaits that g++ 12 gets wrong, of what git tracks; clang-tidy
# over library, program and benchmarks; every finding fails.
set -euo pipefail
cd "$(dirname "$0")/.."
git ls-files '*.h' '*.cc' '*.cu' '*.cuh' | xargs clang-format --dry-run --Werror
echo "format: clean"
python3 scripts/check_layers.py .
git ls-files '*.h' '*.cc' '*.cu' '*.cuh' | grep -v -E '_test\.(cc|cu)$' | xargs wc -l |
  awk '$1 > 600 && $2 != "total" {print $2 " has " $1 " lines; split it, a file may have 600."; long = 1} END {exit long}'
git ls-files '*.cc' '*.cu' | xargs scripts/check_usings.py
git ls-files '*.h' '*.cc' | xargs scripts/check_awaits.py
cmake --preset lint >/dev/null
# Files for one instruction set hold intrinsics only, GoogleTest's macros are not ours to mend, and without CUDA there
# is no compile command for CUDA. Merged files include each other.
grep -oP '"file": "\K[^"]+' build-lint/compile_commands.json | grep -v -E '_(avx2|avx512|avx512bf16|amx|each_isa)\.cc$' |
  xargs -P "$(nproc)" -n 1 clang-tidy -p build-lint --quiet --checks=-bugprone-suspicious-include \
    2> >(grep -v -E '^[0-9]+ warnings? generated\.$' >&2)
echo "clang-tidy: clean"
