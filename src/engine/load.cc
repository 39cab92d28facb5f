#include "engine/load.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <future>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/signals.h"
#include "engine/draft_model.h"
#include "engine/speculative_config.h"
#include "engine/trace.h"
#include "io/file.h"
#include "io/gguf.h"
#include "io/json.h"
#include "models/load_config.h"
#include "nanovllm/tokenizer.h"
#include "runner/parallel_runner.h"

namespace nanovllm {
namespace {

// The tokenizer's goes with config.json's and generation_config.json's: a finetune may have changed
// the one and left the others as they were.
void add_eos(const Tokenizer& tokenizer, std::vector<int32_t>& ids) {
  for (const int32_t id : tokenizer.eos_token_ids()) {
    if (std::ranges::find(ids, id) == ids.end()) ids.push_back(id);
  }
}

// Requests begin with these: what is wrong with them is the file's fault and no request's.
void check_defaults(const ModelConfig& model) {
  try {
    model.default_sampling_params.validate();
  } catch (const Error& error) {
    throw_error(ErrorCode::kCorruptData, "{}/generation_config.json: {}", model.model_dir,
                error.what());
  }
}

void check_drafts(const SpeculativeConfig& speculative, const EngineConfig& config,
                  const BenchmarkParts* benchmark) {
  if (is_on_gpus(config)) {
    throw_error(ErrorCode::kUnsupported,
                "speculative_config works on a CPU only; leave it out, or use --device cpu.");
  }
  if (speculative.synthetic_acceptance_length == 0) return;
  if (benchmark == nullptr) {
    throw_error(
        ErrorCode::kInvalidArgument,
        "speculative_config: rejection_sample_method synthetic makes nonsense of texts; it is "
        "for nanovllm bench latency and bench throughput alone.");
  }
  if (benchmark->dictated != nullptr) {
    throw_error(ErrorCode::kInvalidArgument,
                "speculative_config: rejection_sample_method synthetic invents what is accepted, "
                "and --replay finds it out from real texts; leave one of them out.");
  }
}

// Large vocabularies take as long to read as a device takes to wake up. Where the system gives no
// thread, the tokenizer is read when it is asked for.
std::future<std::unique_ptr<const Tokenizer>> begin_to_load_tokenizer(
    const std::string& model_dir) {
  const SignalsBlocked in_thread;
  return std::async(std::launch::async | std::launch::deferred,
                    [model_dir] { return load_tokenizer(model_dir); });
}

}  // namespace

std::unique_ptr<const Tokenizer> load_tokenizer(const std::string& model_dir) {
  const auto gguf = find_gguf(model_dir);
  const bool has_one =
      gguf ? Gguf(*gguf).has("tokenizer.ggml.model") : file_exists(model_dir + "/tokenizer.json");
  if (!has_one) return nullptr;
  return Tokenizer::load(model_dir);
}

std::unique_ptr<EngineCore> load_engine_core(const std::string& model_dir,
                                             const EngineConfig& config, Progress* progress,
                                             const BenchmarkParts* benchmark) {
  config.validate();
  const auto speculative = parse_speculative_config(config.speculative_config);
  if (speculative) check_drafts(*speculative, config, benchmark);
  const ModelConfig model = load_model_config(model_dir);
  check_defaults(model);
  check_trace_file(config.trace_file, model_dir);
  EngineParts parts;
  parts.config = config;
  parts.model_dir = model_dir;
  parts.eos_token_ids = model.eos_token_ids;
  parts.default_sampling_params = model.default_sampling_params;
  auto tokenizer = begin_to_load_tokenizer(model_dir);
  std::optional<DraftModel> draft;
  std::function<int64_t()> load_draft;
  if (speculative && !speculative->model.empty()) {
    parts.tokenizer = tokenizer.get();
    draft.emplace(*speculative, model, parts.tokenizer.get(), config, progress);
    load_draft = [&draft] { return draft->load(); };
  }
  parts.runner = make_runner(model, config, parts.info, progress, load_draft);
  if (tokenizer.valid()) parts.tokenizer = tokenizer.get();
  if (parts.tokenizer) add_eos(*parts.tokenizer, parts.eos_token_ids);
  if (benchmark != nullptr) parts.dictated = benchmark->dictated;
  if (speculative) {
    parts.drafting = make_drafting(*speculative, parts.tokenizer.get());
    if (draft) parts.drafting.drafter = draft->make_drafter(*parts.runner, parts.info);
  }
  // Not before: a model that can't be loaded leaves an older trace as it is.
  if (!config.trace_file.empty()) {
    parts.observers.push_back(std::make_unique<TraceWriter>(config.trace_file));
  }
  return std::make_unique<EngineCore>(std::move(parts));
}

std::string why_unsupported(const std::string& model_dir) {
  try {
    const ModelConfig model = load_model_config(model_dir);
    if (is_supported(model)) return "";
    return model.architecture.empty()
               ? model.config_path + " names no architecture"
               : fmt::format("architecture {} is not supported", printable(model.architecture));
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace nanovllm
