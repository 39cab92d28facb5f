#include "server/metrics.h"

#include <fmt/format.h>
#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

#include "engine/speculative_config.h"

namespace nanovllm::server {
namespace {

using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Histogram;
using Buckets = Histogram::BucketBoundaries;  // upper bounds, in the histogram's unit

// 1, 2, 5, 10, 20, ... up to `largest`.
Buckets token_buckets(int largest) {
  Buckets buckets;
  for (double power = 1; power <= largest; power *= 10) {
    for (const double digit : {1, 2, 5}) {
      if (digit * power <= largest) buckets.push_back(digit * power);
    }
  }
  return buckets;
}

// Registers metrics that share labels. Of a name that is there already, only the labels are new.
struct Source {
  prometheus::Registry& registry;
  prometheus::Labels labels;
  Buckets tokens;

  Gauge& gauge(const char* name, const char* help, const prometheus::Labels& more = {}) const {
    return prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add(with(more));
  }
  Counter& counter(const char* name, const char* help, const prometheus::Labels& more = {}) const {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry).Add(with(more));
  }
  Histogram& histogram(const char* name, const char* help, const Buckets& buckets) const {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add(labels,
                                                                                     buckets);
  }
  // Seconds.
  Histogram& latency(const char* name, const char* help) const {
    return histogram(name, help, {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                  30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680});
  }
  Histogram& token_latency(const char* name, const char* help) const {
    return histogram(name, help,
                     {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5,
                      10, 20, 40, 80});
  }

 private:
  prometheus::Labels with(prometheus::Labels more) const {
    more.insert(labels.begin(), labels.end());
    return more;
  }
};

// As Python writes a float.
std::string number(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_not_of("-0123456789") == std::string::npos) text += ".0";
  return text;
}

// What selects vLLM's buckets by their bound selects ours, for which Prometheus before 3.0 compares
// texts: 1.0 and 1e+06, which the serialiser writes as 1 and 1000000.
std::string as_vllm_writes_it(std::string_view bound) {
  double value = 0;
  const bool is_finite = std::from_chars(bound.begin(), bound.end(), value).ec == std::errc();
  if (!is_finite) return std::string(bound);  // +Inf
  return value < 1e6 ? number(value) : fmt::format("{:.0e}", value);
}

}  // namespace

// With speculative decoding alone, as in vLLM.
struct DraftMetrics {
  explicit DraftMetrics(const Source& source) : add(source) {}

  void on_step(const StepStats& stats) {
    drafts.Increment(stats.num_drafts);
    draft_tokens.Increment(stats.num_draft_tokens);
    accepted_tokens.Increment(stats.num_accepted_tokens());
    for (size_t i = 0; i < stats.num_accepted_per_pos.size(); ++i) {
      accepted_at(i).Increment(stats.num_accepted_per_pos[i]);
    }
  }
  Counter& accepted_at(size_t position) const {
    return add.counter("vllm:spec_decode_num_accepted_tokens_per_pos_total",
                       "Tokens of drafts that became tokens of outputs, by their place.",
                       {{"position", std::to_string(position)}});
  }

  const Source& add;
  Counter& drafts = add.counter("vllm:spec_decode_num_drafts_total",
                                "Steps of a completion in which it had a draft.");
  Counter& draft_tokens =
      add.counter("vllm:spec_decode_num_draft_tokens_total", "Tokens of drafts.");
  Counter& accepted_tokens = add.counter("vllm:spec_decode_num_accepted_tokens_total",
                                         "Tokens of drafts that became tokens of outputs.");
};

// With recurrent layers alone.
struct StateMetrics {
  explicit StateMetrics(const Source& add)
      : usage(add.gauge("nanovllm_state_usage_perc",
                        "Share of the sequences with room for their states that run, from 0 to 1; "
                        "at 1 others wait.")) {}

  void on_step(const StepStats& stats) {
    usage.Set(stats.num_total_states > 0
                  ? static_cast<double>(stats.num_used_states) / stats.num_total_states
                  : 0);
  }

  Gauge& usage;
};

struct Metrics::Engine {
  Engine(Source source, prometheus::Labels its_facts)
      : add(std::move(source)), facts(std::move(its_facts)) {}

  // What it takes: another one where it came back with less. The labels are what is told.
  void show(const EngineLimits& limits) {
    prometheus::Labels labels = facts;
    labels["block_size"] = std::to_string(limits.kvcache_block_size);
    labels["num_gpu_blocks"] = std::to_string(limits.num_kvcache_blocks);
    labels["kv_cache_size_tokens"] = std::to_string(limits.num_kvcache_tokens());
    Gauge& shown = cache_configs.Add(labels);  // the one that is there, where they are the same
    if (&shown == cache_config) return;
    shown.Set(1);
    if (cache_config != nullptr) cache_configs.Remove(cache_config);
    cache_config = &shown;
  }

  const Source add;
  const prometheus::Labels facts;  // that stay as they are
  prometheus::Family<Gauge>& cache_configs = prometheus::BuildGauge()
                                                 .Name("vllm:cache_config_info")
                                                 .Help("How the KV cache is set up; always 1.")
                                                 .Register(add.registry);
  Gauge* cache_config = nullptr;

  Gauge& running = add.gauge("vllm:num_requests_running", "Completions that steps compute.");
  Gauge& waiting = add.gauge("vllm:num_requests_waiting", "Completions that wait for their turn.");
  Gauge& waiting_for_capacity =
      add.gauge("vllm:num_requests_waiting_by_reason",
                "Completions that wait for their turn, by the reason.", {{"reason", "capacity"}});
  Gauge& cache_usage = add.gauge("vllm:kv_cache_usage_perc",
                                 "Share of the KV cache's blocks that are in use, from 0 to 1.");

  Counter& cache_queries = add.counter("vllm:prefix_cache_queries_total",
                                       "Prompt tokens that the prefix cache was asked for.");
  Counter& cache_hits =
      add.counter("vllm:prefix_cache_hits_total", "Prompt tokens that the prefix cache held.");
  Counter& preemptions =
      add.counter("vllm:num_preemptions_total", "Completions that gave their blocks back.");
  Counter& prompt_tokens = add.counter("vllm:prompt_tokens_total", "Prompt tokens processed.");
  Counter& computed_tokens = source("local_compute");
  Counter& cached_tokens = source("local_cache_hit");
  Counter& transferred_tokens = source("external_kv_transfer");
  Counter& prompt_tokens_cached =
      add.counter("vllm:prompt_tokens_cached_total", "Prompt tokens that were cached.");
  Counter& generation_tokens =
      add.counter("vllm:generation_tokens_total", "Output tokens generated.");
  Counter& stops = success("stop");
  Counter& lengths = success("length");
  Counter& aborts = success("abort");
  Counter& errors = success("error");

  Histogram& request_prompt_tokens =
      add.histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", add.tokens);
  Histogram& request_generation_tokens =
      add.histogram("vllm:request_generation_tokens", "Output tokens of a completion.", add.tokens);
  Histogram& iteration_tokens =
      add.histogram("vllm:iteration_tokens_total", "Tokens of a step.",
                    {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384});
  Histogram& max_generation_tokens =
      add.histogram("vllm:request_max_num_generation_tokens",
                    "Output tokens of a request's longest completion.", add.tokens);
  Histogram& params_n =
      add.histogram("vllm:request_params_n", "The n of a request.", {1, 2, 5, 10, 20});
  Histogram& params_max_tokens =
      add.histogram("vllm:request_params_max_tokens", "The max_tokens of a request.", add.tokens);
  Histogram& first_token = add.histogram(
      "vllm:time_to_first_token_seconds", "From a request's arrival to its first token.",
      {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
       1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560});
  Histogram& inter_token = add.token_latency("vllm:inter_token_latency_seconds",
                                             "From a completion's tokens to its next ones.");
  Histogram& per_output_token =
      add.token_latency("vllm:request_time_per_output_token_seconds",
                        "Mean time of a completion's output tokens but the first.");
  Histogram& end_to_end = add.latency("vllm:e2e_request_latency_seconds",
                                      "From a request's arrival to a completion's end.");
  Histogram& queue_time =
      add.latency("vllm:request_queue_time_seconds", "From a request's arrival to its first step.");
  Histogram& inference_time =
      add.latency("vllm:request_inference_time_seconds", "From the first step to the last token.");
  Histogram& prefill_time =
      add.latency("vllm:request_prefill_time_seconds", "From the first step to the first token.");
  Histogram& decode_time =
      add.latency("vllm:request_decode_time_seconds", "From the first token to the last one.");
  Histogram& request_preemptions =
      add.histogram("vllm:request_num_preemptions", "How often a request gave its blocks back.",
                    {1, 2, 3, 4, 5, 10, 20});
  Histogram& prefill_computed =
      add.histogram("vllm:request_prefill_kv_computed_tokens",
                    "Prompt tokens of a request that were not cached.", add.tokens);

  std::optional<DraftMetrics> drafts = {};
  std::optional<StateMetrics> states = {};

  Counter& source(const char* name) const {
    return add.counter("vllm:prompt_tokens_by_source_total",
                       "Prompt tokens by where their KV came from.", {{"source", name}});
  }
  Counter& success(const char* reason) const {
    return add.counter("vllm:request_success_total", "Completions that ended, by the reason.",
                       {{"finished_reason", reason}});
  }
};

struct Metrics::Front {
  explicit Front(Source source) : add(std::move(source)) {}

  const Source add;
  Counter& queue_full = add.counter("vllm:admission_rejections_total",
                                    "Requests that found a bound reached, by the bound.",
                                    {{"reason", "max_num_queued_reqs"}});
};

Metrics::Metrics(std::string model_name, int num_engines)
    : model_name_(std::move(model_name)),
      limits_(static_cast<size_t>(num_engines)),
      registry_(std::make_unique<prometheus::Registry>()),
      engines_(static_cast<size_t>(num_engines)) {
  for (int i = 0; i < num_engines; ++i) {
    const Source source = {
        *registry_, {{"model_name", model_name_}, {"engine", std::to_string(i)}}, {}};
    restarts_.push_back(&source.counter("nanovllm_worker_restarts_total",
                                        "How often the worker died and was started again."));
  }
}

Metrics::~Metrics() = default;

void Metrics::begin(const EngineInfo& info, const EngineConfig& config) {
  const std::string cache_bytes =
      config.kv_cache_memory ? std::to_string(*config.kv_cache_memory) : "None";
  const std::lock_guard lock(limits_mutex_);
  for (size_t i = 0; i < engines_.size(); ++i) {
    const std::string engine = std::to_string(i);
    const prometheus::Labels labels = {{"model_name", model_name_}, {"engine", engine}};
    const prometheus::Labels facts = {
        {"engine", engine},
        {"cache_dtype", info.dtype},
        {"enable_prefix_caching", config.enable_prefix_caching ? "True" : "False"},
        {"gpu_memory_utilization", number(config.gpu_memory_utilization)},
        {"kv_cache_memory_bytes", cache_bytes}};
    engines_[i] = std::make_unique<Engine>(
        Source{*registry_, labels, token_buckets(info.max_model_len)}, facts);
    if (parse_speculative_config(config.speculative_config)) {
      engines_[i]->drafts.emplace(engines_[i]->add);
    }
    if (info.num_states > 0) engines_[i]->states.emplace(engines_[i]->add);
    if (!limits_[i]) limits_[i] = static_cast<const EngineLimits&>(info);
    engines_[i]->show(*limits_[i]);
  }
  front_ = std::make_unique<Front>(Source{*registry_, {{"model_name", model_name_}}, {}});
  begun_ = true;
}

void Metrics::on_ready(int engine, const EngineLimits& limits) {
  const auto i = static_cast<size_t>(engine);
  const std::lock_guard lock(limits_mutex_);
  limits_[i] = limits;
  if (begun_) engines_[i]->show(limits);
}

void Metrics::on_restart(int engine) { restarts_[static_cast<size_t>(engine)]->Increment(); }

FleetObserver Metrics::observer() {
  return {
      .on_ready = [this](int engine, const EngineLimits& limits) { on_ready(engine, limits); },
      .on_restart = [this](int engine) { on_restart(engine); },
      .on_step = [this](int engine, const StepStats& stats) { on_step(engine, stats); },
      .on_idle = [this](int engine) { on_idle(engine); },
      .on_tokens = [this](int engine, bool first,
                          double seconds) { on_tokens(engine, first, seconds); },
      .on_end = [this](int engine, const AddRequest& request, const RequestEnd& end,
                       bool failed) { on_end(engine, request, end, failed); },
  };
}

void Metrics::on_step(int engine, const StepStats& stats) {
  Engine& e = *engines_[static_cast<size_t>(engine)];
  e.running.Set(stats.num_running);
  e.waiting.Set(stats.num_waiting);
  e.waiting_for_capacity.Set(stats.num_waiting);
  e.cache_usage.Set(stats.num_total_blocks > 0
                        ? static_cast<double>(stats.num_used_blocks) / stats.num_total_blocks
                        : 0);
  const auto hits = static_cast<double>(stats.num_prefix_cache_hits);
  const auto generated = static_cast<double>(stats.num_generation_tokens);
  e.cache_queries.Increment(static_cast<double>(stats.num_prefix_cache_queries));
  e.cache_hits.Increment(hits);
  e.preemptions.Increment(stats.num_preemptions);
  e.prompt_tokens.Increment(static_cast<double>(stats.num_prompt_tokens));
  e.cached_tokens.Increment(hits);
  e.prompt_tokens_cached.Increment(hits);
  // A prompt counts when its last token was computed, its hits when its first one is: what would
  // take the counter back is not taken.
  e.computed_tokens.Increment(e.prompt_tokens.Value() - e.cached_tokens.Value() -
                              e.computed_tokens.Value());
  e.generation_tokens.Increment(generated);
  e.iteration_tokens.Observe(stats.num_prefill_tokens + generated);
  if (e.drafts) e.drafts->on_step(stats);
  if (e.states) e.states->on_step(stats);
}

void Metrics::on_idle(int engine) {
  if (!begun_) return;  // the engine came to nothing
  Engine& e = *engines_[static_cast<size_t>(engine)];
  for (Gauge* gauge : {&e.running, &e.waiting, &e.waiting_for_capacity, &e.cache_usage}) {
    gauge->Set(0);
  }
  if (e.states) e.states->usage.Set(0);
}

void Metrics::on_tokens(int engine, bool first, double seconds) {
  Engine& e = *engines_[static_cast<size_t>(engine)];
  (first ? e.first_token : e.inter_token).Observe(seconds);
}

void Metrics::on_end(int engine, const AddRequest& request, const RequestEnd& end, bool failed) {
  const auto place = static_cast<size_t>(std::max(engine, 0));
  Engine& e = *engines_[place];
  const auto num_prompt_tokens = static_cast<int>(request.prompt_token_ids.size());
  const auto num_tokens_of = [&](size_t index) {
    return index < request.previous_output_ids.size()
               ? std::ssize(request.previous_output_ids[index])
               : 0;
  };
  const auto num_tokens = static_cast<double>(num_tokens_of(static_cast<size_t>(end.index)));
  (failed                                       ? e.errors
   : end.finish_reason == FinishReason::kStop   ? e.stops
   : end.finish_reason == FinishReason::kLength ? e.lengths
                                                : e.aborts)
      .Increment();
  const double decode_time = end.metrics.decode_time();
  e.end_to_end.Observe(end.metrics.time_to_finish);
  e.queue_time.Observe(end.metrics.queue_time());
  e.prefill_time.Observe(end.metrics.prefill_time());
  e.inference_time.Observe(end.metrics.inference_time());
  e.decode_time.Observe(decode_time);
  e.per_output_token.Observe(num_tokens > 1 ? decode_time / (num_tokens - 1) : 0);
  e.request_preemptions.Observe(end.num_preemptions);
  e.prefill_computed.Observe(num_prompt_tokens - end.num_cached_tokens);
  e.request_prompt_tokens.Observe(num_prompt_tokens);
  e.request_generation_tokens.Observe(num_tokens);
  // An engine that came back with less may have no room for the prompt.
  const int room = std::max(0, limits_[place]->max_model_len - num_prompt_tokens);
  e.params_max_tokens.Observe(std::min(request.params.max_tokens, room));
  if (!end.last) return;
  std::ptrdiff_t most = 0;
  for (size_t i = 0; i < request.previous_output_ids.size(); ++i) {
    most = std::max(most, num_tokens_of(i));
  }
  e.params_n.Observe(request.params.n);
  e.max_generation_tokens.Observe(static_cast<double>(most));
}

void Metrics::on_queue_full() { front_->queue_full.Increment(); }

std::string Metrics::text() const {
  if (!begun_) return {};
  constexpr std::string_view kBound = ",le=\"";  // not in a value, where quotes are escaped
  const std::string written = prometheus::TextSerializer().Serialize(registry_->Collect());
  std::string text;
  size_t end = 0;  // of what is in `text`
  for (size_t at = 0; (at = written.find(kBound, end)) != written.npos;) {
    at += kBound.size();
    text.append(written, end, at - end);
    end = written.find('"', at);
    text += as_vllm_writes_it(std::string_view(written).substr(at, end - at));
  }
  return text.append(written, end);
}

}  // namespace nanovllm::server
