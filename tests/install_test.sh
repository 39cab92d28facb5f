#!/usr/bin/env bash
# Installs into an empty folder, builds examples/embed against the package found there and runs it.
# Usage: install_test.sh CMAKE BUILD_DIR SOURCE_DIR
set -euo pipefail
cmake=$1 build=$2 source=$3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# A library that was compiled with sanitizers needs programs that are.
sanitize=$(sed -n 's/^NANOVLLM_SANITIZE:STRING=//p' "$build/CMakeCache.txt")
[ -z "$sanitize" ] || export CXXFLAGS="${CXXFLAGS:-} -fsanitize=$sanitize"
"$cmake" --install "$build" --prefix "$folder/prefix" >"$folder/log"
"$cmake" -S "$source/examples/embed" -B "$folder/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_PREFIX_PATH="$folder/prefix" >>"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
"$cmake" --build "$folder/build" >>"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
output=$("$folder/build/embed" "$source/models/demo")
[ "$(printf '%s\n' "$output" | grep -c -E '^(Once upon a time|The little dog)\|.+')" -ge 2 ] ||
  { echo "unexpected output: $output"; exit 1; }
[ "$("$folder/prefix/bin/nanovllm" --version)" = "nanovllm $(sed -nE 's/^project\(nanovllm VERSION ([0-9.]+).*/\1/p' \
  "$source/CMakeLists.txt")" ]
if "$folder/build/embed" /nonexistent 2>"$folder/error"; then exit 1; fi
grep -q '/nonexistent' "$folder/error"

# What was linked is the build's own library: with CUDA it looks for a device, without it says so.
refusal='this build has no CUDA backend'
if grep -q '^NANOVLLM_CUDA:BOOL=ON$' "$build/CMakeCache.txt"; then refusal='no CUDA device 0'; fi
if CUDA_VISIBLE_DEVICES='' "$folder/build/embed" "$source/models/demo" cuda 2>"$folder/error"; then exit 1; fi
grep -q "$refusal" "$folder/error" || { cat "$folder/error"; exit 1; }
