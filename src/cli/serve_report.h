// What a load of a server took, as `vllm bench serve` reports it.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/load_client.h"

namespace nanovllm::cli {

// The number that is the whole of what a flag was given. Throws Error(kInvalidArgument).
double checked_number(const std::string& flag, const std::string& text, double least, double most);

class ServeReport {
 public:
  // Lists with commas, and NAME:MILLISECONDS of what a good request takes at most. Throws
  // Error(kInvalidArgument) with the flag of the one that is wrong.
  ServeReport(const std::string& percentile_metrics, const std::string& metric_percentiles,
              const std::vector<std::string>& goodput);

  // Adds vLLM's keys for `outcomes`, which took `duration` seconds, and those of each request where
  // `detailed`.
  void add_to(nlohmann::ordered_json& result, const std::vector<Outcome>& outcomes, double duration,
              bool detailed) const;
  // vLLM's table of it, on standard output.
  void print(const nlohmann::ordered_json& result) const;

 private:
  bool shows(const char* metric) const;
  bool is_good(const Outcome& outcome) const;
  void add_times(nlohmann::ordered_json& result, const std::vector<Outcome>& outcomes) const;

  std::vector<std::string> metrics_;
  std::vector<std::string> percentiles_;   // as they were given
  std::map<std::string, double> goodput_;  // seconds, by metric
};

}  // namespace nanovllm::cli
