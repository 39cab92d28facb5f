#include "cli/serve_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace nanovllm::cli {
namespace {

using nlohmann::ordered_json;

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> words;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    words.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

// What the requests that were answered took, in seconds.
struct Times {
  std::vector<double> ttft = {}, tpot = {}, itl = {}, e2el = {};

  explicit Times(const std::vector<Outcome>& outcomes) {
    for (const Outcome& outcome : outcomes) {
      if (!outcome.ok()) continue;
      ttft.push_back(outcome.ttft);
      e2el.push_back(outcome.latency);
      if (outcome.num_output_tokens > 1) tpot.push_back(tpot_of(outcome));
      itl.insert(itl.end(), outcome.inter_token_times.begin(), outcome.inter_token_times.end());
    }
  }
  static double tpot_of(const Outcome& outcome) {
    const int rest = outcome.num_output_tokens - 1;
    return rest > 0 ? (outcome.latency - outcome.ttft) / rest : 0;
  }
};

struct Metric {
  const char* name;
  const char* title;
  const char* label;
  std::vector<double> Times::*values;
};
constexpr std::array<Metric, 4> kMetrics = {
    {{"ttft", "Time to First Token", "TTFT", &Times::ttft},
     {"tpot", "Time per Output Token (excl. 1st token)", "TPOT", &Times::tpot},
     {"itl", "Inter-token Latency", "ITL", &Times::itl},
     {"e2el", "End-to-end Latency", "E2EL", &Times::e2el}}};

// NumPy's, linear between two values. `sorted` is; p from 0 to 100.
double percentile_of(const std::vector<double>& sorted, double p) {
  if (sorted.empty()) return 0;
  const double at = p / 100 * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (sorted[high] - sorted[low]) * (at - static_cast<double>(low));
}

// The most output tokens and requests of one second. Where a chunk of a stream brings several
// tokens, its request's tokens are shared out among its chunks.
std::pair<double, int> peaks(const std::vector<Outcome>& outcomes) {
  std::map<int64_t, std::pair<double, int>> seconds;  // tokens and requests
  double begin = HUGE_VAL;
  for (const Outcome& outcome : outcomes) {
    if (outcome.ok()) begin = std::min(begin, outcome.start);
  }
  for (const Outcome& outcome : outcomes) {
    if (!outcome.ok()) continue;
    double time = outcome.start - begin;
    const auto last = static_cast<int64_t>(time + outcome.latency);
    for (auto second = static_cast<int64_t>(time); second <= last; ++second) {
      ++seconds[second].second;
    }
    const auto num_chunks = static_cast<double>(outcome.inter_token_times.size() + 1);
    const double tokens = outcome.num_output_tokens / num_chunks;
    seconds[static_cast<int64_t>(time += outcome.ttft)].first += tokens;
    for (const double one : outcome.inter_token_times) {
      seconds[static_cast<int64_t>(time += one)].first += tokens;
    }
  }
  std::pair<double, int> most = {0, 0};
  for (const auto& [second, counts] : seconds) {
    most.first = std::max(most.first, counts.first);
    most.second = std::max(most.second, counts.second);
  }
  return most;
}

void add_details(ordered_json& result, const std::vector<Outcome>& outcomes) {
  for (const char* key :
       {"input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "errors"}) {
    result[key] = ordered_json::array();
  }
  for (const Outcome& outcome : outcomes) {
    result["input_lens"].push_back(outcome.num_prompt_tokens);
    result["output_lens"].push_back(outcome.ok() ? outcome.num_output_tokens : 0);
    result["ttfts"].push_back(outcome.ttft);
    result["itls"].push_back(outcome.inter_token_times);
    result["latencies"].push_back(outcome.latency);
    result["start_times"].push_back(outcome.start);
    result["errors"].push_back(outcome.error);
  }
}

}  // namespace

double checked_number(const std::string& flag, const std::string& text, double least, double most) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(value >= least && value <= most)) {
    throw_error(ErrorCode::kInvalidArgument, "{} takes numbers from {} to {}, got \"{}\"", flag,
                least, most, text);
  }
  return value;
}

ServeReport::ServeReport(const std::string& percentile_metrics,
                         const std::string& metric_percentiles,
                         const std::vector<std::string>& goodput)
    : metrics_(split(percentile_metrics)), percentiles_(split(metric_percentiles)) {
  for (const std::string& name : metrics_) {
    if (std::ranges::any_of(kMetrics, [&](const Metric& one) { return name == one.name; })) {
      continue;
    }
    throw_error(ErrorCode::kInvalidArgument,
                "--percentile-metrics knows ttft, tpot, itl and e2el, got \"{}\"", name);
  }
  for (const std::string& p : percentiles_) checked_number("--metric-percentiles", p, 0, 100);
  for (const std::string& bound : goodput) {
    const size_t colon = std::min(bound.find(':'), bound.size());
    const std::string name = bound.substr(0, colon);
    if (name != "ttft" && name != "tpot" && name != "e2el") {
      throw_error(ErrorCode::kInvalidArgument,
                  "--goodput takes ttft:MS, tpot:MS and e2el:MS, got \"{}\"", bound);
    }
    const std::string value = bound.substr(std::min(colon + 1, bound.size()));
    goodput_[name] = checked_number("--goodput " + name, value, 0, HUGE_VAL) / 1e3;
  }
}

bool ServeReport::shows(const char* metric) const {
  return std::ranges::find(metrics_, metric) != metrics_.end();
}

bool ServeReport::is_good(const Outcome& outcome) const {
  const auto holds = [&](const char* name, double seconds) {
    const auto bound = goodput_.find(name);
    return bound == goodput_.end() || seconds <= bound->second;
  };
  return outcome.ok() && holds("ttft", outcome.ttft) && holds("tpot", Times::tpot_of(outcome)) &&
         holds("e2el", outcome.latency);
}

void ServeReport::add_to(ordered_json& result, const std::vector<Outcome>& outcomes,
                         double duration, bool detailed) const {
  int64_t completed = 0, good = 0, input = 0, output = 0;
  for (const Outcome& outcome : outcomes) {
    if (!outcome.ok()) continue;
    ++completed;
    good += is_good(outcome) ? 1 : 0;
    input += outcome.num_prompt_tokens;
    output += outcome.num_output_tokens;
  }
  const auto rate = [&](int64_t count) { return static_cast<double>(count) / duration; };
  const auto [peak_tokens, peak_requests] = peaks(outcomes);
  result["duration"] = duration;
  result["completed"] = completed;
  result["failed"] = static_cast<int64_t>(outcomes.size()) - completed;
  result["total_input_tokens"] = input;
  result["total_output_tokens"] = output;
  result["request_throughput"] = rate(completed);
  result["request_goodput"] = goodput_.empty() ? ordered_json() : ordered_json(rate(good));
  result["output_throughput"] = rate(output);
  result["total_token_throughput"] = rate(input + output);
  result["max_output_tokens_per_s"] = peak_tokens;
  result["max_concurrent_requests"] = peak_requests;
  add_times(result, outcomes);
  if (detailed) add_details(result, outcomes);
}

void ServeReport::add_times(ordered_json& result, const std::vector<Outcome>& outcomes) const {
  const Times times(outcomes);
  for (const Metric& metric : kMetrics) {
    if (!shows(metric.name)) continue;
    std::vector<double> values = times.*metric.values;
    std::ranges::sort(values);
    const auto count = static_cast<double>(std::max<size_t>(values.size(), 1));
    const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
    double squares = 0;
    for (const double value : values) squares += (value - mean) * (value - mean);
    const auto add = [&](const std::string& statistic, double seconds) {
      result[fmt::format("{}_{}_ms", statistic, metric.name)] = 1e3 * seconds;
    };
    add("mean", mean);
    add("median", percentile_of(values, 50));
    add("std", std::sqrt(squares / count));
    for (const std::string& p : percentiles_) {
      add("p" + p, percentile_of(values, checked_number("", p, 0, 100)));
    }
  }
}

void ServeReport::print(const ordered_json& result) const {
  const auto row = [&](const std::string& label, const std::string& key) {
    const ordered_json& value = result.at(key);
    if (value.is_null() || value == "inf") return;
    fmt::print("{:<40} {:<10}\n", label + ":",
               value.is_number_float() ? fmt::format("{:.2f}", value.get<double>()) : value.dump());
  };
  fmt::print("{:=^50}\n", " Serving Benchmark Result ");
  row("Successful requests", "completed");
  row("Failed requests", "failed");
  row("Maximum request concurrency", "max_concurrency");
  row("Request rate configured (RPS)", "request_rate");
  row("Benchmark duration (s)", "duration");
  row("Total input tokens", "total_input_tokens");
  row("Total generated tokens", "total_output_tokens");
  row("Request throughput (req/s)", "request_throughput");
  row("Request goodput (req/s)", "request_goodput");
  row("Output token throughput (tok/s)", "output_throughput");
  row("Peak output token throughput (tok/s)", "max_output_tokens_per_s");
  row("Peak concurrent requests", "max_concurrent_requests");
  row("Total token throughput (tok/s)", "total_token_throughput");
  for (const Metric& metric : kMetrics) {
    if (!shows(metric.name)) continue;
    fmt::print("{:-^50}\n", metric.title);
    const auto statistic = [&](const std::string& label, const std::string& name) {
      row(fmt::format("{} {} (ms)", label, metric.label),
          fmt::format("{}_{}_ms", name, metric.name));
    };
    statistic("Mean", "mean");
    statistic("Median", "median");
    for (const std::string& p : percentiles_) statistic("P" + p, "p" + p);
  }
  fmt::print("{:=^50}\n", "");
}

}  // namespace nanovllm::cli
