#!/usr/bin/env bash
# Installs the distribution packages that building, testing, checking and fuzzing need (Debian 12 and 13, Ubuntu 24.04). Does
# nothing, and needs no rights, where all of them are there already. Usage: install_packages.sh [build|test|check|serve|fuzz|pip|python]
set -euo pipefail

build=(g++ cmake ninja-build pkg-config ccache nlohmann-json3-dev libcli11-dev libfmt-dev libxxhash-dev
       libpcre2-dev libutf8proc-dev libedit-dev libssl-dev libcurl4-openssl-dev prometheus-cpp-dev libyaml-cpp-dev)
# Boost 1.81 or newer, whose package has its version in its name where the distribution's own choice is older.
codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
build+=("$([ "$codename" = bookworm ] && echo libboost1.81-dev || echo libboost-dev)")
test=(libgtest-dev libbenchmark-dev python3 python3-jinja2 xz-utils)
check=(clang-format clang-tidy git)
python=(python3-dev python3-venv)
serve=(python3 python3-venv curl prometheus)

is_installed() { dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'ok installed'; }

install_missing() {
  local missing=() package
  for package in "$@"; do
    is_installed "$package" || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return

  if ! command -v apt-get >/dev/null; then
    echo "nanovllm: these packages are missing and there is no apt-get to install them with: ${missing[*]}" >&2
    exit 1
  fi
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
      echo "nanovllm: run this as root, or install sudo: packages are missing: ${missing[*]}" >&2
      exit 1
    fi
    as_root=(sudo)
  fi
  echo "nanovllm: installing packages: ${missing[*]}"
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# The distribution's version of clang, which the package of its libFuzzer and sanitizers has in its name.
clang_version() { apt-cache depends clang | sed -n 's/^ *Depends: clang-\([0-9]*\)$/\1/p' | head -n 1; }

case "${1:-build}" in
  build) install_missing "${build[@]}" ;;
  test) install_missing "${build[@]}" "${test[@]}" ;;
  check) install_missing "${build[@]}" "${test[@]}" "${check[@]}" ;;
  fuzz)
    install_missing "${build[@]}" clang
    install_missing "libclang-rt-$(clang_version)-dev"
    ;;
  serve)
    install_missing "${serve[@]}"
    # Where chromium is only a snap, which runs in no container, its test skips.
    if apt-cache show chromium >/dev/null 2>&1; then install_missing chromium; fi
    ;;
  python) install_missing "${build[@]}" "${python[@]}" ;;
  pip) install_missing python3-pip ;;
  *) echo "usage: $0 [build|test|check|serve|fuzz|pip|python]" >&2; exit 2 ;;
esac
