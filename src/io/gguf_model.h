// What the metadata and the tensors of a GGUF file say of a model of any family.
// Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "io/config_rules.h"
#include "io/gguf.h"
#include "io/model_config.h"

namespace nanovllm {

// The keys of a file's architecture, "ARCHITECTURE.NAME", by their names. A key that is absent
// reads as nothing; a value of another type or out of range throws Error(kCorruptData) naming file
// and key.
class GgufFields {
 public:
  // Throws Error(kUnsupported) for a file that is of something beside a model. `file` must outlive
  // this.
  explicit GgufFields(const Gguf& file);

  const Gguf& file() const { return file_; }
  const std::string& architecture() const { return architecture_; }  // may be empty
  std::string key(std::string_view name) const;

  bool has(std::string_view name) const;
  std::optional<int> size(std::string_view name, int64_t max, int64_t min = 1) const;
  // Throws Error(kCorruptData) if it is missing.
  int required_size(std::string_view name, int64_t max = kMaxSize) const;
  std::optional<double> number(std::string_view name, double min, double max) const;
  std::optional<bool> boolean(std::string_view name) const;
  std::optional<std::string_view> string(std::string_view name) const;
  std::optional<std::vector<bool>> booleans(std::string_view name) const;
  // Null where there is none of this name.
  const GgufTensor* tensor(std::string_view name) const;

  // Throws Error(kUnsupported) if the file has a key that changes what a model computes, and that
  // nobody has asked for.
  void refuse_unread() const;

 private:
  std::string asked_for(std::string_view name) const;

  const Gguf& file_;
  const std::string architecture_;
  mutable std::set<std::string, std::less<>> read_;  // names
};

// Each fills in its part of a config that has the family's defaults, in this order. They throw
// Error: kCorruptData, kUnsupported.
void read_sizes(const GgufFields& fields, ModelConfig& config, const ConfigRules& rules);
// Of a family with mixtures of experts.
void read_experts(const GgufFields& fields, ModelConfig& config);
// What the tensors tell: vocabulary, biases and type.
void read_tensors(const GgufFields& fields, ModelConfig& config);
void read_rope(const GgufFields& fields, ModelConfig& config);
void read_sampling(const GgufFields& fields, ModelConfig& config);

}  // namespace nanovllm
