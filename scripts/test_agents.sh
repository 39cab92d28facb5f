#!/usr/bin/env bash
# The APIs that agents speak against the agents themselves: Codex and Claude Code (as Python packages carry them), and the
# packages that programs use, on a server whose model says what a script tells it; and both command lines on a small real
# model. Prints the versions that it tried. Usage: scripts/test_agents.sh [PATTERN], which picks among the tests by name
set -uo pipefail
cd "$(dirname "$0")/.."
pattern="${1:-}"
# Two environments, as openai-agents and instructor want other versions than the rest.
clients=(openai-codex-cli-bin claude-agent-sdk openai==3.* anthropic litellm langchain-openai langchain-anthropic
  "pydantic-ai-slim[openai,anthropic]")
frameworks=(openai-agents instructor)

install() {  # FOLDER PACKAGE...
  local venv=$1
  shift
  cmp -s <(printf '%s\n' "$@") "$venv/packages" && return 0
  echo "nanovllm: installing $* into $venv"
  rm -rf "$venv"
  python3 -m venv "$venv" && "$venv/bin/python" -m pip --disable-pip-version-check install -q --retries 1 --timeout 10 "$@" &&
    printf '%s\n' "$@" >"$venv/packages"
}

if ! install build/agents-venv "${clients[@]}" || ! install build/frameworks-venv "${frameworks[@]}"; then
  echo "nanovllm: SKIPPED: the tests with real agents: their packages can't be installed (is there a network?)" >&2
  exit 0
fi
for venv in build/agents-venv build/frameworks-venv; do
  echo "== $venv: $("$venv/bin/python" -m pip list --format=freeze 2>/dev/null |
    grep -E '^(openai|openai-codex-cli-bin|claude-agent-sdk|anthropic|litellm|langchain-openai|langchain-anthropic|pydantic-ai-slim|openai-agents|instructor)==' | tr '\n' ' ')"
done
bin=$(dirname "$(find build/agents-venv/lib -path '*/claude_agent_sdk/_bundled/claude')")
echo "== the command lines: $(build/agents-venv/lib/python3*/site-packages/codex_cli_bin/bin/codex --version), $("$bin/claude" --version)"

export NANOVLLM="$PWD/build/nanovllm" NANOVLLM_MODEL="$PWD/models/demo" NANOVLLM_BIN="$PWD/build/tests"
export PYTHONPATH="$PWD/tests" PYTHONDONTWRITEBYTECODE=1 LITELLM_LOCAL_MODEL_COST_MAP=True
export NANOVLLM_SMALL_MODEL="$PWD/models/SmolLM2-135M-Instruct.Q4_1.gguf"
scripts/fetch_smollm2.sh "$NANOVLLM_SMALL_MODEL"
failed=()
for test in tests/agents/*_test.py; do
  [[ $test == *"$pattern"* ]] || continue
  venv=build/agents-venv
  [[ $test == *frameworks_test.py ]] && venv=build/frameworks-venv
  echo "== $test"
  "$venv/bin/python" "$test"
  status=$?
  [ $status -eq 0 ] || [ $status -eq 77 ] || failed+=("$test")
done
[ ${#failed[@]} -eq 0 ] && exit 0
echo "nanovllm: failed: ${failed[*]}" >&2
exit 1
