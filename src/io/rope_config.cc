#include "io/rope_config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "io/config_keys.h"

namespace nanovllm {
namespace {

// The factor that YaRN's paper gives for a stretch of `scale`.
double yarn_magnitude(double scale, double mscale) {
  return scale <= 1 ? 1 : 0.1 * mscale * std::log(scale) + 1;
}

[[noreturn]] void fail_without_effect(const JsonFields& rope) {
  throw_error(ErrorCode::kCorruptData,
              "{}: would have no effect; expected both a rope_type and a factor", rope.where());
}

std::vector<double> read_divisors(const JsonFields& fields, const char* key, int count) {
  const Json& value = fields.required(key);
  const bool fits = value.is_array() && std::ssize(value) == count &&
                    std::ranges::all_of(value, [](const Json& v) {
                      return v.is_number() && v >= kAboveZero && v <= 1e18;
                    });
  if (!fits) fields.fail(key, fmt::format("a list of {} numbers above 0", count));
  return value;
}

// LongRoPE (arXiv 2402.13753): divisors for short and for long contexts.
void read_longrope(const JsonFields& fields, ModelConfig& config) {
  RopeScaling& scaling = config.rope_scaling;
  scaling.divisors = read_divisors(fields, "short_factor", config.rotated() / 2);
  scaling.long_divisors = read_divisors(fields, "long_factor", config.rotated() / 2);
  const double original = scaling.original_max_position_embeddings;
  const double stretch =
      fields.number("factor", 1, 1e6).value_or(config.max_position_embeddings / original);
  if (scaling.attention_factor == 0 && stretch > 1 && original > 1) {
    scaling.attention_factor = std::sqrt(1 + std::log(stretch) / std::log(original));
  }
  scaling.factor = 1;
  scaling.kind = "default";  // its divisors tell all
}

void read_rope_scaling(const JsonFields& fields, int original_positions, ModelConfig& config,
                       const ConfigRules& rules) {
  RopeScaling& scaling = config.rope_scaling = RopeScaling();
  assign_if(scaling.kind, fields.string("type"));
  assign_if(scaling.kind, fields.string("rope_type"));
  if (rules.yarn_is_longrope && (scaling.kind == "su" || scaling.kind == "yarn")) {
    scaling.kind = "longrope";  // its names until 2024
  }
  scaling.original_max_position_embeddings = original_positions;
  assign_if(scaling.original_max_position_embeddings,
            fields.integer("original_max_position_embeddings", 1, INT32_MAX));
  if (scaling.kind == "yarn" && scaling.original_max_position_embeddings > 0) {
    scaling.factor = static_cast<double>(config.max_position_embeddings) /
                     scaling.original_max_position_embeddings;
  }
  assign_if(scaling.factor, fields.number("factor", 1, 1e6));
  assign_if(scaling.low_freq_factor, fields.number("low_freq_factor", kAboveZero, 1e6));
  assign_if(scaling.high_freq_factor, fields.number("high_freq_factor", kAboveZero, 1e6));
  assign_if(scaling.beta_fast, fields.number("beta_fast", kAboveZero, 1e6));
  assign_if(scaling.beta_slow, fields.number("beta_slow", kAboveZero, 1e6));
  assign_if(scaling.truncate, fields.boolean("truncate"));
  const auto mscale = fields.number("mscale", 0, 1e6);
  const auto mscale_all_dim = fields.number("mscale_all_dim", 0, 1e6);
  if (mscale.value_or(0) > 0 && mscale_all_dim.value_or(0) > 0) {
    scaling.attention_factor =
        yarn_magnitude(scaling.factor, *mscale) / yarn_magnitude(scaling.factor, *mscale_all_dim);
  }
  assign_if(scaling.attention_factor, fields.number("attention_factor", kAboveZero, 1e6));
  if (scaling.kind == "llama3" && scaling.high_freq_factor <= scaling.low_freq_factor) {
    throw_error(ErrorCode::kCorruptData,
                "{}: high_freq_factor is {}, expected more than low_freq_factor, which is {}",
                fields.where(), scaling.high_freq_factor, scaling.low_freq_factor);
  }
  if (scaling.kind == "longrope") read_longrope(fields, config);
  const bool needs_factor =
      scaling.kind == "linear" || scaling.kind == "llama3" || scaling.kind == "yarn";
  const bool no_effect = needs_factor ? scaling.factor == 1 && fields.find("factor") == nullptr
                                      : scaling.kind == "default" && scaling.factor != 1;
  if (no_effect) fail_without_effect(fields);
  const double partial = fields.number("partial_rotary_factor", 0, 1).value_or(1);
  if (partial != 1 && !rules.turns_parts) scaling.kind = "partial_rotary_factor";
}

// Of rope_parameters with an entry for each kind of layers, that of layers that see everything;
// what it says of those with a window is only a base.
const Json* read_window_rope(const JsonFields& kinds, ModelConfig& config) {
  if (const Json* local = kinds.find("sliding_attention")) {
    const JsonFields fields(*local, kinds.where() + ", sliding_attention");
    assign_if(config.window_rope_theta, fields.number("rope_theta", 1, 1e18));
    const std::string kind = fields.string("rope_type").value_or("default");
    if (kind != "default" || fields.number("partial_rotary_factor", 0, 1).value_or(1) != 1) {
      throw_error(ErrorCode::kUnsupported,
                  "{}: only rope_type \"default\" of whole heads is supported, found \"{}\"",
                  fields.where(), printable(kind));
    }
  }
  return kinds.find("full_attention");
}

void read_rotary_dim(const JsonFields& fields, ModelConfig& config, const ConfigRules& rules) {
  const auto share = fields.number("partial_rotary_factor", 0, 1);
  if (!share || !rules.turns_parts) return;
  config.rotary_dim = static_cast<int>(config.head_dim * *share);
  if (config.rotary_dim == 0 || config.rotary_dim % 2 != 0) {
    fields.fail("partial_rotary_factor", fmt::format("a share of the {} elements of a head that is "
                                                     "an even number of them",
                                                     config.head_dim));
  }
}

}  // namespace

// Where both are there, rope_scaling counts, as in transformers: people add it. What transformers
// then forgets is the rope_theta of rope_parameters, with which no model gives sense.
void read_rope(const JsonFields& fields, ModelConfig& config, const ConfigRules& rules) {
  const auto theta = fields.number("rope_theta", 1, 1e18);
  assign_if(config.rope_theta, theta);
  read_rotary_dim(fields, config, rules);
  const bool turn_apart = rules.windows_turn_apart || config.window_rope_theta > 0;
  int original = config.rope_scaling.original_max_position_embeddings;
  if (original == 0) original = config.max_position_embeddings;
  assign_if(original, fields.integer("original_max_position_embeddings", 1, INT32_MAX));
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const Json* value = fields.find(key);
    if (value != nullptr && turn_apart &&
        (value->contains("full_attention") || value->contains("sliding_attention"))) {
      value = read_window_rope(JsonFields(*value, fields.where() + ", " + key), config);
    }
    if (value == nullptr || *value == Json::object()) continue;
    const JsonFields rope(*value, fields.where() + ", " + key);
    assign_if(config.rope_theta, theta);
    assign_if(config.rope_theta, rope.number("rope_theta", 1, 1e18));
    read_rotary_dim(rope, config, rules);
    read_rope_scaling(rope, original, config, rules);
    const bool is_named = rope.find("rope_type") != nullptr || rope.find("type") != nullptr;
    for (const auto& [name, field] : value->items()) {
      const bool acts_alone = name == "rope_theta" || name == "partial_rotary_factor" ||
                              name == "factor" || field.is_null();  // only factor 1 comes here
      if (field.is_object()) {                                      // one for each kind of layers
        config.rope_scaling.kind = name;
      } else if (!is_named && !acts_alone) {
        fail_without_effect(rope);
      }
    }
    add_unknown_keys(rope, std::string(key) + ".", config);
  }
  const double partial = fields.number("partial_rotary_factor", 0, 1).value_or(1);
  if (partial != 1 && !rules.turns_parts) config.rope_scaling.kind = "partial_rotary_factor";
  if (rules.windows_turn_apart && config.window_rope_theta == 0) {
    config.window_rope_theta = config.rope_theta;
  }
  // YaRN divides by its logarithm.
  if (config.rope_scaling.kind == "yarn" && config.rope_theta <= 1) {
    throw_error(ErrorCode::kCorruptData, "{}: rope_theta is {}, but yarn needs more than 1",
                fields.where(), config.rope_theta);
  }
}

}  // namespace nanovllm
