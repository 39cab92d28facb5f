#!/usr/bin/env bash
# Fuzzes what reads model files, texts, templates and requests: FUZZ_SECONDS (30) for each target, or for those named.
# What the fuzzers learn stays in build-fuzz/corpus, an input that breaks something is left in build-fuzz/findings.
# Usage: [FUZZ_SECONDS=600] scripts/fuzz.sh
#        [tokenizer_json|tokenizer_text|chat_template|safetensors|gguf|gguf_tokenizer|model_config|request_line|hub_listing|
#         grammar_schema|grammar_regex|grammar_gbnf|grammar_tag]...
set -euo pipefail
cd "$(dirname "$0")/.."
targets=("$@")
[ ${#targets[@]} -gt 0 ] ||
  targets=(tokenizer_json tokenizer_text chat_template safetensors gguf gguf_tokenizer model_config request_line hub_listing
           grammar_schema grammar_regex grammar_gbnf grammar_tag)
scripts/install_packages.sh fuzz
cmake --preset fuzz >/dev/null
cmake --build build-fuzz -j "$(nproc)" --target fuzzers
export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1
export UBSAN_OPTIONS=print_stacktrace=1
failed=()
for target in "${targets[@]}"; do
  corpus=build-fuzz/corpus/$target findings=build-fuzz/findings/$target
  mkdir -p "$corpus" "$findings"
  log=build-fuzz/$target.log
  dictionary=()
  [ -f "fuzz/$target.dict" ] && dictionary=("-dict=fuzz/$target.dict")
  if build-fuzz/fuzz/fuzz_"$target" "$corpus" "fuzz/seeds/$target" "${dictionary[@]}" \
      -max_total_time="${FUZZ_SECONDS:-30}" -timeout=20 -rss_limit_mb=4096 -max_len=8192 \
      -artifact_prefix="$findings/" -print_final_stats=1 >"$log" 2>&1; then
    echo "$target: no finding in $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs"
  else
    failed+=("$target")
    tail -n 60 "$log"
    echo "$target: broken by $(ls -t "$findings"/* | head -n 1); run build-fuzz/fuzz/fuzz_$target on it to see how"
  fi
done
[ ${#failed[@]} -eq 0 ] || { echo "fuzzing broke: ${failed[*]}" >&2; exit 1; }
