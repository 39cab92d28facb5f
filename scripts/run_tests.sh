#!/usr/bin/env bash
# Runs the tests of a build folder. What those that failed printed last stands at the end, where a log that is cut still
# has it. Usage: scripts/run_tests.sh BUILD_FOLDER JOBS
set -euo pipefail
ctest --test-dir "$1" --output-on-failure -j "$2" && exit
status=$?
logs=$1/Testing/Temporary
head -n 10 "$logs/LastTestsFailed.log" | while IFS=: read -r _ name; do
  printf '\n== %s\n' "$name"
  awk -v name="$name" '/ Testing: / {ours = substr($0, index($0, " Testing: ") + 10) == name} ours' "$logs/LastTest.log" | tail -n 40
done
exit $status
