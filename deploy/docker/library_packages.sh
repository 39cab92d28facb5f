#!/usr/bin/env bash
# The distribution's packages of the shared libraries that a program names, one a line. Usage: library_packages.sh PROGRAM
set -euo pipefail
objdump -p "$1" | awk -v folder="*/$(gcc -print-multiarch)/" '$1 == "NEEDED" && $2 !~ /^ld-/ {print folder $2}' |
  xargs dpkg-query -S | cut -d: -f1 | sort -u
