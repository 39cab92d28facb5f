// `nanovllm info`: what a model is and what memory the engine takes for it.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/code_format.h"
#include "base/message.h"
#include "cli/commands.h"
#include "cli/model_option.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "io/ggml_formats.h"
#include "nanovllm/llm_engine.h"

namespace nanovllm::cli {
namespace {

struct InfoOptions {
  ModelOption model;
  bool json = false;
  bool plan = false;
  EngineConfig engine;
};

std::string mebibytes(int64_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / 0x1p20);
}

std::string millions(int64_t count) {
  return fmt::format("{:.2f} M", static_cast<double>(count) / 1e6);
}

double bits_a_weight(const EngineInfo& facts, int64_t bytes) {
  return static_cast<double>(bytes) * 8 /
         static_cast<double>(std::max<int64_t>(1, facts.num_parameters));
}

int64_t bytes_in_file(const EngineInfo& facts) {
  int64_t bytes = 0;
  for (const WeightFormat& format : facts.weight_formats) bytes += format.bytes;
  return bytes;
}

std::string bytes_in_memory(const EngineInfo& facts) {
  std::string in_memory = mebibytes(facts.weight_bytes - facts.mapped_weight_bytes);
  if (facts.mapped_weight_bytes == 0) return in_memory;
  return fmt::format("{}, and {} of embeddings mapped from the file", in_memory,
                     mebibytes(facts.mapped_weight_bytes));
}

void print_row(const char* name, const std::string& value) {
  fmt::print("{:<22} {}\n", name, value);
}

void print_rows(const char* name, const std::vector<std::string>& lines) {
  for (const std::string& line : lines) print_row(&line == lines.data() ? name : "", line);
}

// What a checkpoint holds, and what becomes of it.
void print_formats(const EngineInfo& facts) {
  int64_t bytes = 0;
  const std::string super = to_string(WeightLayout::kSuper);
  const bool has_super = std::ranges::find(facts.weight_layouts, super, &LayoutOfWeights::name) !=
                         facts.weight_layouts.end();
  for (const WeightFormat& format : facts.weight_formats) {
    bytes += format.bytes;
    const int bits = has_super ? wider_code_bits(format.name) : 0;
    print_row(format.bytes == bytes ? "weights in the file" : "",
              fmt::format("{}: {}, {}{}", format.name, counted(format.num_tensors, "tensor"),
                          mebibytes(format.bytes),
                          bits > 0 ? fmt::format(", in codes of {} bits in memory", bits) : ""));
  }
  print_row("bits a weight", fmt::format("{:.2f} in the file, {:.2f} in memory; activations are {}",
                                         bits_a_weight(facts, bytes_in_file(facts)),
                                         bits_a_weight(facts, facts.weight_bytes), facts.dtype));
  print_row("weights in memory", bytes_in_memory(facts));
  std::vector<std::string> layouts;
  for (const LayoutOfWeights& layout : facts.weight_layouts) {
    layouts.push_back(fmt::format("{}: {}, {}", layout.name, counted(layout.num_weights, "weight"),
                                  mebibytes(layout.bytes)));
  }
  print_rows("layouts", layouts);
}

void print_states(const EngineInfo& facts, bool are_kept) {
  print_row("states",
            fmt::format("{} at once, each with 2 slots of {} and a log of {}; {} in all",
                        counted(facts.num_states, "sequence"), mebibytes(facts.state_slot_bytes),
                        mebibytes(facts.state_log_bytes), mebibytes(facts.state_cache_bytes)));
  if (!are_kept) return;
  print_row("", fmt::format("{} kept for prompts while so many run, more while fewer do",
                            facts.num_kept_states));
}

int info(const InfoOptions& options) {
  const LLMEngine engine = load_engine(options.model.path, options.engine);
  const EngineInfo& facts = engine.info();
  const int64_t full_length_requests = facts.num_full_length_sequences();
  if (options.json) {
    nlohmann::ordered_json formats = nlohmann::ordered_json::object();
    for (const WeightFormat& format : facts.weight_formats) {
      formats[format.name] = {{"tensors", format.num_tensors}, {"bytes", format.bytes}};
    }
    nlohmann::ordered_json layouts = nlohmann::ordered_json::object();
    for (const LayoutOfWeights& layout : facts.weight_layouts) {
      layouts[layout.name] = {{"weights", layout.num_weights}, {"bytes", layout.bytes}};
    }
    const nlohmann::ordered_json line = {
        {"model", options.model.name},
        {"architecture", facts.architecture},
        {"device", facts.device},
        {"dtype", facts.dtype},
        {"num_parameters", facts.num_parameters},
        {"num_active_parameters", facts.num_active_parameters},
        {"layers", facts.layers},
        {"weight_formats", formats},
        {"bits_per_weight", bits_a_weight(facts, bytes_in_file(facts))},
        {"bits_per_weight_in_memory", bits_a_weight(facts, facts.weight_bytes)},
        {"weight_bytes", facts.weight_bytes},
        {"mapped_weight_bytes", facts.mapped_weight_bytes},
        {"weight_layouts", layouts},
        {"vocab_size", facts.vocab_size},
        {"max_model_len", facts.max_model_len},
        {"kv_bytes_per_token", facts.kv_bytes_per_token},
        {"kvcache_block_size", facts.kvcache_block_size},
        {"num_kvcache_blocks", facts.num_kvcache_blocks},
        {"kv_cache_bytes", facts.kv_cache_bytes},
        {"kv_groups", facts.kv_groups},
        {"num_states", facts.num_states},
        {"num_kept_states", facts.num_kept_states},
        {"state_cache_bytes", facts.state_cache_bytes},
        {"state_slot_bytes", facts.state_slot_bytes},
        {"state_log_bytes", facts.state_log_bytes},
        {"full_length_requests", full_length_requests},
        {"sizing", facts.sizing},
        {"plan", facts.plan},
        {"load_seconds", facts.load_seconds}};
    fmt::print("{}\n", line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    return kExitOk;
  }
  print_row("model", bold(stdout, options.model.name));
  print_row("architecture", facts.architecture);
  print_row("device", facts.device);
  print_row("dtype", facts.dtype);
  print_row("parameters", millions(facts.num_parameters));
  if (facts.num_active_parameters < facts.num_parameters) {
    print_row("active parameters", millions(facts.num_active_parameters));
  }
  print_rows("layers", facts.layers);
  print_formats(facts);
  print_row("vocabulary", counted(facts.vocab_size, "token"));
  print_row("max_model_len", counted(facts.max_model_len, "token"));
  print_row("KV cache per token", counted(facts.kv_bytes_per_token, "byte"));
  print_row("KV cache",
            fmt::format("{} of {} tokens = {} tokens, {}",
                        counted(facts.num_kvcache_blocks, "block"), facts.kvcache_block_size,
                        facts.num_kvcache_tokens(), mebibytes(facts.kv_cache_bytes)));
  // One group is what everybody expects.
  if (facts.kv_windows != std::vector<int>{0} || facts.kv_groups.size() > 1) {
    print_rows("KV cache groups", facts.kv_groups);
  }
  if (facts.num_states > 0) print_states(facts, options.engine.enable_prefix_caching);
  print_row("full-length requests", fmt::format("{} fit{} at once", full_length_requests,
                                                full_length_requests == 1 ? "s" : ""));
  print_row("chosen", facts.sizing);
  if (options.plan) print_rows("plan", facts.plan);
  print_row("loaded in", fmt::format("{:.3f} s", facts.load_seconds));
  return kExitOk;
}

}  // namespace

Command add_info(CLI::App& app) {
  auto options = std::make_shared<InfoOptions>();
  options->model.add_to(app);
  app.add_flag("--json", options->json, "one JSON object");
  app.add_flag("--plan", options->plan, "which kernels compute the layers, by rows of a step");
  add_engine_options(app, options->engine);
  return [options] {
    options->engine.validate();
    options->model.find();
    find_draft_model(options->engine);
    return info(*options);
  };
}

}  // namespace nanovllm::cli
