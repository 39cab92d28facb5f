#include "runner/model_runner.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <utility>

#include "backend/registry.h"
#include "base/check.h"
#include "base/message.h"
#include "io/gguf.h"

namespace nanovllm {
namespace {

DType resolve_dtype(const std::string& name, DType of_checkpoint) {
  if (name == "float32") return DType::kFloat32;
  if (name == "bfloat16") return DType::kBFloat16;
  NANOVLLM_CHECK(name == "auto");
  return of_checkpoint == DType::kFloat32 ? DType::kFloat32 : DType::kBFloat16;
}

// In elements. Block tables grow with the product of three flags, far beyond what their defaults
// let anyone expect.
size_t checked_staging_size(int max_num_tokens, const EngineConfig& config, int max_model_len,
                            int num_groups) {
  const size_t size = StepBatch::staging_size(max_num_tokens, config.max_num_seqs, max_model_len,
                                              config.kvcache_block_size, num_groups);
  if (size > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    throw_error(ErrorCode::kInvalidArgument,
                "the block tables of max_num_seqs {} sequences of max_model_len {} tokens in "
                "blocks of kvcache_block_size {} need {} bytes; lower the first two or raise the "
                "last",
                config.max_num_seqs, max_model_len, config.kvcache_block_size,
                size * sizeof(int32_t));
  }
  return size;
}

}  // namespace

ModelRunner::ModelRunner(const ModelConfig& model, const EngineConfig& config,
                         std::vector<CacheGroup> groups, std::unique_ptr<Backend> backend,
                         Progress* progress)
    : model_config_(model),
      config_(config),
      dtype_(resolve_dtype(config.dtype, model.dtype)),
      most_context_(context_of(config, model)),
      cache_groups_(std::move(groups)),
      kv_windows_(windows_of(cache_groups_)),
      max_model_len_(
          config.num_kvcache_blocks > 0
              ? context_in(config, most_context_, kv_windows_, config.num_kvcache_blocks).num_tokens
              : most_context_.num_tokens),
      max_num_tokens_(static_cast<int>(
          std::min<int64_t>(config.max_num_batched_tokens,
                            static_cast<int64_t>(config.max_num_seqs) * max_model_len_))),
      staging_size_(checked_staging_size(max_num_tokens_, config, max_model_len_,
                                         static_cast<int>(cache_groups_.size()))),
      progress_(progress),
      backend_(std::move(backend)),
      traits_(backend_->traits()),
      free_at_start_(backend_->memory().free_bytes) {
  load_model();
  allocate_slots();
  if (traits_.is_asynchronous) warm_up();
}

ModelRunner::~ModelRunner() { abandon(); }

void ModelRunner::load_model() {
  max_num_logits_ = traits_.max_logits_rows > 0 ? traits_.max_logits_rows : config_.max_num_seqs;
  max_num_logits_ = std::min(max_num_logits_, max_num_tokens_);
  weights_ = std::make_unique<WeightStore>(model_config_.model_dir, model_config_.quantization,
                                           model_config_.gguf);
  const std::optional<RoundedFormat> rounded_to = rounding();
  if (backend_->rank() == 0) tell_of_quantised_weights(rounded_to.has_value());
  if (const auto parts = weights_->ignored_parts(); !parts.empty() && backend_->rank() == 0) {
    print_message("nanovllm: {}: only the text part is loaded, without {}\n",
                  model_config_.model_dir, fmt::join(parts, ", "));
  }
  model_ = make_model({.config = model_config_,
                       .weights = *weights_,
                       .backend = *backend_,
                       .dtype = dtype_,
                       .max_num_tokens = max_num_tokens_,
                       .max_num_logits = max_num_logits_,
                       .max_model_len = max_model_len_,
                       .num_loading_threads = threads_of_rank(config_.num_threads, backend_->rank(),
                                                              backend_->world_size()),
                       .expert_parallel = config_.enable_expert_parallel,
                       .keeps_codes = keeps_codes(),
                       .rounding = rounded_to});
  kv_spec_ = model_->kv_cache_spec(config_.kvcache_block_size);
  state_groups_ = model_->state_groups();
}

void ModelRunner::allocate_slots() {
  DecodeBuckets buckets;
  if (traits_.is_asynchronous && !config_.enforce_eager) {
    buckets = DecodeBuckets(max_num_logits_, max_model_len_, config_.kvcache_block_size);
  }
  staging_ = backend_->allocate(staging_size_ * sizeof(int32_t));
  for (Slot& slot : slots_) {
    slot.staging = backend_->allocate_staging(staging_size_ * sizeof(int32_t));
    slot.batch = std::make_unique<StepBatch>(
        config_.kvcache_block_size, buckets,
        std::span(static_cast<int32_t*>(slot.staging->data()), staging_size_),
        static_cast<int>(cache_groups_.size()));
    slot.sampled_ids = backend_->allocate(static_cast<size_t>(max_num_tokens_) * sizeof(int32_t));
  }
}

// Runs the largest prefill and the largest decode step on a KV cache of one block, so that whatever
// they allocate is there before the KV cache takes what is left, and no request waits for it. What
// log-probabilities, penalties and biases need besides comes with the first request that has them.
void ModelRunner::warm_up() {
  const auto block = backend_->allocate(block_bytes());
  kv_caches_ = split_kv_memory(*backend_, kv_spec_, cache_groups_, block->data(), 1);
  state_caches_ = split_state_memory(*backend_, state_groups_, nullptr, 0, 0);
  std::vector<int32_t> zeros;
  StepInput input = largest_step(zeros);
  const std::vector<SamplingRow> rows(input.sequences.size(), {.top_p = 0.9f});
  submit(input);
  draw(rows);
  collect();
  input.sequences.resize(std::min<size_t>(input.sequences.size(), max_num_logits_));
  for (SequenceInput& sequence : input.sequences) sequence.num_new_tokens = 1;
  submit(input);
  draw(std::span(rows).first(input.sequences.size()));
  collect();
  backend_->synchronize();
}

// As many sequences as may be, of equally many tokens as far as they divide. They store nothing,
// and are padding to recurrent layers.
StepInput ModelRunner::largest_step(std::vector<int32_t>& zeros) const {
  const int num_seqs = std::min(config_.max_num_seqs, max_num_tokens_);
  const int longest = (max_num_tokens_ + num_seqs - 1) / num_seqs;
  zeros.assign(static_cast<size_t>(longest) * cache_groups_.size(), 0);
  StepInput input;
  for (int s = 0; s < num_seqs; ++s) {
    const bool is_longer = s >= num_seqs - max_num_tokens_ % num_seqs;
    input.sequences.push_back({.token_ids = zeros,
                               .num_new_tokens = max_num_tokens_ / num_seqs + (is_longer ? 1 : 0),
                               .kv_write_begin = longest,
                               .block_table = zeros,
                               .sample = true});
  }
  return input;
}

// A draft model of ranks that share their memory is there once.
KvCachePlan ModelRunner::plan_kv_cache(int64_t draft_block_bytes) const {
  const MemoryInfo memory = backend_->memory();
  const int num_sharing = traits_.shares_host_memory ? backend_->world_size() : 1;
  const int64_t of_longest = kv_blocks_for(max_model_len_, kv_windows_, config_.kvcache_block_size);
  const int64_t of_draft =
      num_draft_blocks(of_longest, kv_windows_, config_.kvcache_block_size, max_model_len_);
  const int64_t shared = of_longest * num_sharing;
  return nanovllm::plan_kv_cache(
      config_,
      {.block_bytes = block_bytes() + (draft_block_bytes * of_draft + shared - 1) / shared,
       .state_bytes = state_bytes(*backend_, state_groups_, kSlotsOfSequence, 1),
       .slot_bytes = state_bytes(*backend_, state_groups_, 1, 0),
       .block_size = config_.kvcache_block_size,
       .context = max_model_len_,
       .weight_bytes = model_->weight_bytes(),
       .windows = kv_windows_},
      {.is_of_host = traits_.shares_host_memory,
       .num_ranks = num_sharing,
       .free_at_start = free_at_start_,
       .free_now = memory.free_bytes,
       .limit = memory.limit});
}

void ModelRunner::allocate_kv_cache(int num_blocks, int num_state_slots, int num_state_logs) {
  state_memory_ = backend_->allocate(
      static_cast<size_t>(state_bytes(*backend_, state_groups_, num_state_slots, num_state_logs)));
  state_caches_ = split_state_memory(*backend_, state_groups_, state_memory_->data(),
                                     num_state_slots, num_state_logs);
  state_pool_ = {.num_slots = num_state_slots, .num_logs = num_state_logs, .chunk = kStateChunk};
  kv_cache_memory_ = backend_->allocate(static_cast<size_t>(block_bytes()) * num_blocks);
  kv_caches_ =
      split_kv_memory(*backend_, kv_spec_, cache_groups_, kv_cache_memory_->data(), num_blocks);
  num_kvcache_blocks_ = num_blocks;
  graphs_.emplace(*backend_);  // they hold the addresses of the cache
}

std::optional<RoundedFormat> ModelRunner::rounding() const {
  const std::string& name = config_.quantization;
  const auto asked = parse_rounded_format(name);
  if (!asked && is_quantization_method(name)) {
    const bool is_own = model_config_.quantization
                            ? name == model_config_.quantization->name
                            : name == "gguf" && find_gguf(model_config_.model_dir).has_value();
    if (is_own) return std::nullopt;
    throw_error(ErrorCode::kInvalidArgument,
                "{}: is not quantised by {}; leave quantization out, or take int8, int4 or fp8 to "
                "round a model that is not quantised",
                model_config_.model_dir, name);
  }
  const std::string format = weights_->quantised_format();
  if (!asked || format.empty()) return asked;
  if (format == "FP8" && *asked == RoundedFormat::kFp8) return std::nullopt;
  throw_error(
      ErrorCode::kInvalidArgument,
      "{}: is quantised already, to {}: leave quantization out, or take the model as it was "
      "before",
      model_config_.model_dir, format);
}

void ModelRunner::tell_of_quantised_weights(bool are_rounded) const {
  const char* dtype = to_string(dtype_);
  const std::string& model = model_config_.model_dir;
  if (are_rounded) {
    print_message(
        "nanovllm: {}: weights are rounded to {} while they are loaded; activations are {}\n",
        model, config_.quantization, dtype);
  } else if (is_quantization_method(config_.quantization)) {
    print_message("nanovllm: {}: quantization {} is the checkpoint's own and changes nothing\n",
                  model, config_.quantization);
  }
  if (!keeps_codes()) {
    if (!model_config_.quantization) return;
    print_message("nanovllm: {}: quantised weights are decoded to {}; activations are {} as well\n",
                  model, dtype, dtype);
    return;
  }
  if (model_config_.quantization) {
    print_message(
        "nanovllm: {}: weights stay quantised where kernels take them; activations are {}\n", model,
        dtype);
  }
  for (const auto& [because, count] : weights_->without_layout()) {
    print_message("nanovllm: {}: {} quantised {} decoded to {} while loading, because {}\n", model,
                  count, count == 1 ? "matrix is" : "matrices are", dtype, because);
  }
}

ContextLimit ModelRunner::context() const {
  return context_in(config_, most_context_, kv_windows_, num_kvcache_blocks_);
}

void ModelRunner::describe(EngineInfo& info) const {
  info.architecture = model_config_.architecture;
  info.device = backend_->description();
  info.device_type = backend_->device_type();
  info.dtype = to_string(dtype_);
  info.num_parameters = model_->num_parameters();
  info.num_active_parameters = model_->num_active_parameters();
  info.weight_bytes = model_->weight_bytes();
  info.mapped_weight_bytes = model_->mapped_weight_bytes();
  info.weight_formats = weights_->formats_in_use();
  info.weight_layouts = {};
  for (const LayoutUse& use : model_->weight_layouts()) {
    info.weight_layouts.push_back(
        {to_string(use.layout), use.num_weights, use.bytes, use.num_decoded});
  }
  std::ranges::stable_sort(info.weight_layouts, std::greater(), &LayoutOfWeights::bytes);
  info.layers = model_->describe_layers();
  for (const PathChoice& choice : model_->plan()) info.plan.push_back(to_string(choice));
  if (traits_.is_asynchronous && !config_.enforce_eager) {
    info.plan.emplace_back("decode steps: graphs, one for each shape");
  }
  info.kv_cache_bytes = static_cast<int64_t>(kv_cache_memory_->bytes());
  info.kv_bytes_per_token = static_cast<int64_t>(backend_->kv_block_bytes(kv_spec_)) *
                            num_layers_of(cache_groups_) / config_.kvcache_block_size;
  info.kv_groups = describe_groups(cache_groups_);
  info.kv_windows = kv_windows_;
  info.num_states = state_pool_.num_logs;
  info.num_kept_states = state_pool_.num_slots - kSlotsOfSequence * state_pool_.num_logs;
  info.state_cache_bytes = static_cast<int64_t>(state_memory_->bytes());
  info.state_slot_bytes = state_bytes(*backend_, state_groups_, 1, 0);
  info.state_log_bytes = state_bytes(*backend_, state_groups_, 0, 1);
  info.num_kvcache_blocks = num_kvcache_blocks_;
  info.kvcache_block_size = config_.kvcache_block_size;
  info.max_model_len = context().num_tokens;
  info.vocab_size = model_config_.vocab_size;
  info.default_temperature_source = model_config_.default_temperature_source;
  if (const SupportedModel* row = find_supported_model(model_config_.architecture)) {
    info.reasoning_parser = row->reasoning_parser;
    info.tool_parser = row->tool_parser;
  }
}

StepCost ModelRunner::step_cost() const {
  if (traits_.shares_host_memory) return guessed_step_cost(model_->work());
  return nanovllm::step_cost(model_->work(), backend_->speed(kv_spec_));
}

void ModelRunner::submit(const StepInput& input) {
  NANOVLLM_CHECK(num_submitted_ - num_collected_ < 2 && num_drawn_ == num_submitted_);
  try {
    backend_->enter_thread();
    run_forward(input, slot_of(num_submitted_), slot_before(num_submitted_));
  } catch (...) {
    abandon();
    throw;
  }
  ++num_submitted_;
}

void ModelRunner::run_forward(const StepInput& input, Slot& slot, const Slot& previous) {
  slot.batch->build(input);
  const std::span<const int32_t> staging = slot.batch->staging();
  auto* const on_device = static_cast<int32_t*>(staging_->data());
  const ForwardBatch batch = slot.batch->forward_batch(on_device);
  NANOVLLM_CHECK(batch.num_tokens <= max_num_tokens_ && batch.max_seq_len <= max_model_len_);
  backend_->stage_batch(on_device, staging.data(), std::ssize(staging), batch.num_tokens,
                        static_cast<const int32_t*>(previous.sampled_ids->data()));
  if (graphs_ && slot.batch->decode_shape()) {
    logits_ = graphs_->run(*slot.batch->decode_shape(), [&] {
      model_->forward(batch, caches());
      return model_->logits(0, batch.num_logits);
    });
    return;
  }
  model_->forward(batch, caches());
  const int num_rows = static_cast<int>(slot.batch->sampling_rows().size());
  if (num_rows > 0) logits_ = model_->logits(0, std::min(num_rows, max_num_logits_));
}

void ModelRunner::draw(std::span<const SamplingRow> rows) {
  NANOVLLM_CHECK(num_drawn_ < num_submitted_);
  Slot& slot = slot_of(num_drawn_);
  const Slot& previous = slot_before(num_drawn_);
  try {
    backend_->enter_thread();
    slot.batch->set_draws(rows);
    const int num_rows = static_cast<int>(slot.batch->sampling_rows().size());
    for (int begin = 0; begin < num_rows; begin += max_num_logits_) {
      const int end = std::min(begin + max_num_logits_, num_rows);
      if (begin > 0) logits_ = model_->logits(begin, end);
      sample(slot, previous, begin, logits_.first_rows(end - begin));
    }
  } catch (...) {
    abandon();
    throw;
  }
  ++num_drawn_;
}

// Rows begin, begin + 1, ...: as many as there are logits.
void ModelRunner::sample(Slot& slot, const Slot& previous, int begin, const Tensor& logits) {
  const auto count = static_cast<size_t>(logits.rows());
  slot.tickets.push_back(
      backend_->sample(slot.batch->sampling_rows().subspan(begin, count), logits,
                       static_cast<int32_t*>(slot.sampled_ids->data()) + begin,
                       static_cast<const int32_t*>(previous.sampled_ids->data())));
  slot.ticket_rows.push_back(static_cast<int>(count));
}

StepOutput ModelRunner::collect() {
  NANOVLLM_CHECK(num_collected_ < num_drawn_);
  Slot& slot = slot_of(num_collected_);
  StepOutput output;
  try {
    backend_->enter_thread();
    output.results.resize(slot.batch->sampling_rows().size());
    std::span<SamplingResult> rest = output.results;
    for (size_t i = 0; i < slot.tickets.size(); ++i) {
      slot.tickets[i]->collect(rest.first(slot.ticket_rows[i]));
      rest = rest.subspan(slot.ticket_rows[i]);
    }
    // Without anything to sample there is nothing that tells when the staging memory was read.
    if (slot.tickets.empty()) backend_->synchronize();
    slot.batch->split_results(output);
  } catch (...) {
    abandon();
    throw;
  }
  slot.tickets.clear();
  slot.ticket_rows.clear();
  ++num_collected_;
  if (progress_ != nullptr) progress_->advance();
  return output;
}

void ModelRunner::abandon() noexcept {
  for (Slot& slot : slots_) {
    slot.tickets.clear();
    slot.ticket_rows.clear();
  }
  num_submitted_ = num_drawn_ = num_collected_ = 0;
  try {
    backend_->enter_thread();
    backend_->synchronize();
  } catch (const Error&) {
    // The device failed: whoever asks it for anything next will hear of it.
  }
}

std::string engine_name(const ModelConfig& model) {
  return fmt::format("the engine of {}", model.model_dir);
}

std::unique_ptr<Runner> make_model_runner(const ModelConfig& model, const EngineConfig& config,
                                          EngineInfo& info, CommunicatorGroup* group, int rank,
                                          Progress* progress,
                                          const std::function<int64_t()>& load_draft) {
  const auto start = std::chrono::steady_clock::now();
  auto backend = make_backend({.device = config.device,
                               .first_gpu = config.first_gpu,
                               .num_threads = config.num_threads,
                               .num_ranks = group != nullptr ? group->world_size() : 1,
                               .rank = rank,
                               .deterministic = config.deterministic,
                               .progress = progress,
                               .engine = engine_name(model)});
  if (group != nullptr) group->join(rank, *backend);
  auto groups = group_layers(layer_windows(model), context_of(config, model).num_tokens);
  auto runner =
      std::make_unique<ModelRunner>(model, config, std::move(groups), std::move(backend), progress);
  int64_t draft_block_bytes = load_draft && rank == 0 ? load_draft() : 0;
  if (group != nullptr) draft_block_bytes = -group->min_over_ranks(rank, -draft_block_bytes);
  KvCachePlan plan = runner->plan_kv_cache(draft_block_bytes);
  if (group != nullptr) {
    const int64_t least_blocks = group->min_over_ranks(rank, plan.num_blocks);
    const int64_t least_states = group->min_over_ranks(rank, plan.num_states);
    plan = shared_plan(plan, least_blocks, least_states,
                       group->min_over_ranks(rank, plan.num_state_slots));
  }
  runner->allocate_kv_cache(plan.num_blocks, plan.num_state_slots, plan.num_states);
  runner->describe(info);
  const ContextLimit context = runner->context();
  info.sizing =
      fmt::format("max_model_len is {} ({}), and the KV cache has {} tokens ({})",
                  context.num_tokens, context.reason, info.num_kvcache_tokens(), plan.reason);
  if (info.num_states > 0) {
    info.sizing +=
        fmt::format("; there is room for the states of {}, and for {} that are kept meanwhile",
                    counted(info.num_states, "sequence"), info.num_kept_states);
  }
  info.load_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return runner;
}

}  // namespace nanovllm
