#!/usr/bin/env bash
# What `make run` shows: the demo model writes several stories at once. Usage: scripts/demo.sh [MODEL]
set -euo pipefail
cd "$(dirname "$0")/.."
model=${1:-models/demo}
build/nanovllm generate "$model" --temperature 0.7 --top-p 0.9 --max-tokens 200 --seed 7 \
  -p "Once upon a time, there was a little girl named Lily." \
  -p "One day, a big dog went to the park." \
  -p "The old king had three sons, and" \
  -p "Tom and Sam were best friends. They liked to" \
  -p "In a small house by the sea lived" \
  -p "A tiny bird could not fly."
