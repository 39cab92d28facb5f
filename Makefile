# nanovllm: `make help` lists what there is.
SHELL := /bin/bash
JOBS ?= $(shell nproc)
MODEL ?= models/demo
PREFIX ?= /usr/local
SMOLLM2 ?= models/SmolLM2-135M-Instruct.Q4_1.gguf
FUZZ_SECONDS ?= 30

# Targets install packages and configure the same folders; their builds are parallel by JOBS.
.NOTPARALLEL:
.PHONY: all build cuda python run chat test test-real test-python test-serve test-agents test-scale soak-serve test-gpu sanitize-gpu bench format lint check asan tsan fuzz install clean help

all: build

help: ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

# Who only wants to talk need not be told that there is nothing to build. Errors are told all the same.
run chat: QUIETLY = $(if $(wildcard build/nanovllm),-- --quiet | (grep -v '^ninja: no work to do' || true))

build: ## build the library and build/nanovllm (installs missing packages first)
	@scripts/install_packages.sh build
	@cmake --preset release -DNANOVLLM_TESTS=OFF -DNANOVLLM_BENCH=OFF $(CMAKE_FLAGS) >/dev/null
	@set -o pipefail; cmake --build build -j $(JOBS) $(QUIETLY)

cuda: ## build build-cuda/nanovllm, which serves NVIDIA GPUs too (needs the CUDA toolkit, 12.4 or newer)
	@scripts/install_packages.sh build
	@cmake --preset cuda -DNANOVLLM_TESTS=OFF -DNANOVLLM_BENCH=OFF $(CMAKE_FLAGS) >/dev/null
	@cmake --build build-cuda -j $(JOBS)

python: ## build the Python package into .venv
	@scripts/build_python.sh .venv
	@echo "nanovllm: .venv/bin/python has the package nanovllm"

run: build ## let the demo model write several stories at once
	@scripts/demo.sh "$(MODEL)"

chat: build ## talk to a real model, SmolLM2-135M-Instruct (fetches its 98 MB once)
	@scripts/fetch_smollm2.sh "$(SMOLLM2)"
	@build/nanovllm chat "$(SMOLLM2)" --temperature 0.2 --top-p 0.9 --engine-seed $$RANDOM # as its authors draw

test: ## build and run every test
	@scripts/install_packages.sh test
	@scripts/install_tokenizers.sh build/python
	@cmake --preset release -DNANOVLLM_TESTS=ON -DNANOVLLM_BENCH=ON $(CMAKE_FLAGS) >/dev/null
	@cmake --build build -j $(JOBS)
	@scripts/run_tests.sh build $(JOBS)

test-real: build ## a published model against what transformers gives on it (fetches its 98 MB once)
	@scripts/fetch_smollm2.sh "$(SMOLLM2)"
	@python3 tests/real_model_test.py build/nanovllm "$(SMOLLM2)" tests/data/smollm2

test-python: build ## the Python package in a virtual environment of its own: tests, types, examples and notebooks
	@scripts/test_python.sh

test-serve: build ## the server against real clients (openai, lm_eval, schemathesis, prometheus, a browser) and under faults
	@scripts/install_packages.sh serve
	@scripts/test_serve.sh

test-agents: ## the server against Codex, Claude Code and the packages of agents (fetches some 320 MB with pip)
	@scripts/install_packages.sh test
	@cmake --preset release -DNANOVLLM_TESTS=ON -DNANOVLLM_BENCH=OFF $(CMAKE_FLAGS) >/dev/null
	@cmake --build build -j $(JOBS) --target nanovllm_cli dictated_server
	@scripts/test_agents.sh

test-scale: build ## what runs on many machines: Kubernetes' manifests, a pod of them played here, batches on Ray
	@scripts/install_packages.sh python
	@scripts/test_scale.sh

soak-serve: ## an hour of mixed traffic on the server under sanitizers (SOAK_SECONDS=1800 for each)
	@scripts/soak_serve.sh

test-gpu: ## build the CUDA backend and run every test that computes on a GPU
	@CMAKE_FLAGS="$(CMAKE_FLAGS)" JOBS=$(JOBS) scripts/test_gpu.sh

sanitize-gpu: ## compute-sanitizer's memcheck and racecheck over the kernels' tests, on a GPU
	@CMAKE_FLAGS="$(CMAKE_FLAGS)" JOBS=$(JOBS) scripts/sanitize_gpu.sh

bench: ## build and run the kernel benchmarks
	@scripts/install_packages.sh test
	@cmake --preset release -DNANOVLLM_TESTS=ON -DNANOVLLM_BENCH=ON $(CMAKE_FLAGS) >/dev/null
	@cmake --build build -j $(JOBS)
	@for b in build/bench/nanovllm_*_bench; do echo "== $$b"; $$b $(BENCH_FLAGS) || exit 1; done

format: ## format the sources in place
	@scripts/install_packages.sh check
	@git ls-files '*.h' '*.cc' '*.cu' '*.cuh' | xargs -r clang-format -i

lint: ## clang-format, layering, unused names and clang-tidy; changes nothing
	@scripts/install_packages.sh check
	@scripts/lint.sh

asan: ## the tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@scripts/sanitize.sh asan

tsan: ## the tests under ThreadSanitizer
	@scripts/sanitize.sh tsan

fuzz: ## fuzz what reads model files, texts, templates and requests, FUZZ_SECONDS=30 for each target
	@FUZZ_SECONDS=$(FUZZ_SECONDS) scripts/fuzz.sh

check: lint test asan tsan ## what CI runs, but for `make run` and the CUDA build

install: build ## install binary, library, headers and CMake package under PREFIX
	@cmake --install build --prefix "$(PREFIX)"

clean: ## remove all build folders
	@rm -rf build build-* .venv
