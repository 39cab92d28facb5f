#include "io/quantization_config.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "io/file.h"

namespace nanovllm {
namespace {

constexpr int64_t kMaxFileBytes = 16 << 20;
constexpr int64_t kMaxBlock = 1 << 28;
constexpr uint32_t kMatchLimit = 100'000;  // steps, far beyond what a module's name needs

[[noreturn]] void refuse(const JsonFields& fields, const std::string& what) {
  throw_error(ErrorCode::kUnsupported,
              "{}: {} can't be loaded; take the unquantised model, or one in compressed-tensors' "
              "INT4, INT8, FP8 or NVFP4, in AWQ (gemm) or in GPTQ",
              fields.where(), printable(what));
}

std::string lower(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

std::vector<std::string> strings(const JsonFields& fields, const char* key) {
  const Json* list = fields.find(key);
  if (list == nullptr) return {};
  const auto is_string = [](const Json& item) { return item.is_string(); };
  if (!list->is_array() || !std::ranges::all_of(*list, is_string)) {
    fields.fail(key, "a list of names");
  }
  return list->get<std::vector<std::string>>();
}

int bits(const JsonFields& fields, const char* key, int absent) {
  return static_cast<int>(fields.integer(key, 1, 64).value_or(absent));
}

// -1 stands for all columns.
int64_t group_size(const JsonFields& fields, int64_t absent) {
  return std::max<int64_t>(fields.integer("group_size", -1, kMaxBlock).value_or(absent), 0);
}

// [rows, columns], which old compressed-tensors write as "128x128".
void read_block(const JsonFields& fields, const char* key, WeightScheme& scheme) {
  const Json* block = fields.find(key);
  std::string text = block->is_string() ? "[" + block->get<std::string>() + "]" : block->dump();
  std::ranges::replace(text, 'x', ',');
  const Json sizes = Json::parse(text, nullptr, false);
  const auto fits = [](const Json& n) {
    return n.is_number_unsigned() && n.get<uint64_t>() - 1 < uint64_t{kMaxBlock};
  };
  if (!sizes.is_array() || sizes.size() != 2 || !std::ranges::all_of(sizes, fits)) {
    fields.fail(key, "the rows and columns of a block");
  }
  scheme.block_rows = sizes[0].get<int64_t>();
  scheme.block_cols = sizes[1].get<int64_t>();
}

void read_strategy(const JsonFields& weights, WeightScheme& scheme) {
  const int64_t size = group_size(weights, 0);
  const bool has_size = weights.find("group_size") != nullptr;
  const std::string by_size = !has_size ? "tensor" : size > 0 ? "group" : "channel";
  const std::string strategy = lower(weights.string("strategy").value_or(by_size));
  if (strategy == "tensor") {
    scheme.block_rows = 0;
  } else if (strategy == "block" && weights.find("block_structure") != nullptr) {
    read_block(weights, "block_structure", scheme);
  } else if ((strategy == "group" || strategy == "tensor_group") && size > 0) {
    scheme.block_cols = size;
  } else if (strategy != "channel") {
    weights.fail("strategy",
                 "tensor, channel, group with a group_size, or block with a block_structure");
  }
}

WeightScheme read_weights(const JsonFields& weights, const Json* input_activations) {
  WeightScheme scheme;
  scheme.num_bits = bits(weights, "num_bits", 8);
  const std::string type = lower(weights.string("type").value_or("int"));
  scheme.is_float = type == "float";
  scheme.symmetric = weights.boolean("symmetric").value_or(true);
  if ((scheme.num_bits != 4 && scheme.num_bits != 8) || (type != "int" && type != "float")) {
    refuse(weights, fmt::format("{} of {} bits", type, scheme.num_bits));
  }
  read_strategy(weights, scheme);
  if (scheme.num_bits == 8) return scheme;
  if (scheme.is_float && scheme.block_cols != 16) {
    refuse(weights, "FP4 in other groups than of 16 (MXFP4)");
  }
  if (!scheme.is_float && input_activations != nullptr &&
      bits(JsonFields(*input_activations, weights.where()), "num_bits", 8) == 8) {
    refuse(weights, "W4A8, 4 bits for activations of 8");
  }
  return scheme;
}

void check_format(const JsonFields& fields) {
  constexpr std::string_view kKnown[] = {
      "dense",           "pack-quantized",       "int-quantized",  "float-quantized",
      "naive-quantized", "nvfp4-pack-quantized", "mixed-precision"};
  const std::string format = fields.string("format").value_or("dense");
  if (std::ranges::find(kKnown, format) != std::end(kKnown)) return;
  const bool is_24 = format == "marlin-24" || format == "sparse-24-bitmask";
  refuse(fields, format + (is_24 ? ", 2:4 sparsity," : " of compressed-tensors"));
}

// compressed-tensors 0.17.0, quantization/quant_config.py and quant_args.py
void read_compressed_tensors(const JsonFields& fields, QuantizationConfig& config) {
  check_format(fields);
  if (const Json* sparsity = fields.find("sparsity_config")) {
    check_format(JsonFields(*sparsity, fields.where() + ", sparsity_config"));
  }
  // Rotations that are not part of the weights would be missing from the layers.
  const Json* transforms = fields.find("transform_config");
  if (transforms != nullptr && !transforms->empty()) refuse(fields, "a model with transforms");
  config.ignored = strings(fields, "ignore");
  const Json* groups = fields.find("config_groups");
  if (groups == nullptr) return;
  if (!groups->is_object()) fields.fail("config_groups", "an object");
  for (const auto& [name, value] : groups->items()) {
    const JsonFields group(value, fields.where() + ", " + printable(name));
    check_format(group);
    const Json* weights = group.find("weights");
    if (weights == nullptr) continue;
    const WeightScheme scheme =
        read_weights(JsonFields(*weights, group.where()), group.find("input_activations"));
    for (std::string& target : strings(group, "targets")) {
      config.targets.emplace_back(std::move(target), scheme);
    }
  }
  // As match_targets() does: names before expressions, both by the alphabet.
  std::ranges::stable_sort(config.targets, {}, [](const auto& target) {
    return std::pair<bool, std::string_view>(target.first.starts_with("re:"), target.first);
  });
}

void read_fp8(const JsonFields& fields, QuantizationConfig& config) {
  const std::string format = lower(fields.string("fmt").value_or("e4m3"));
  if (format.find("e4m3") == std::string::npos) refuse(fields, "FP8 " + format);
  config.scheme = {.is_float = true, .block_rows = 128, .block_cols = 128};
  if (fields.find("weight_block_size")) read_block(fields, "weight_block_size", *config.scheme);
}

void read_modelopt(const JsonFields& fields, QuantizationConfig& config) {
  const auto algorithm = fields.string("quant_algo");
  if (!algorithm) return;
  if (*algorithm != "FP8" && *algorithm != "NVFP4") refuse(fields, "ModelOpt's " + *algorithm);
  config.scheme = {.is_float = true, .block_rows = 0};
  if (*algorithm == "NVFP4") config.scheme = {.num_bits = 4, .is_float = true, .block_cols = 16};
}

void read_awq_or_gptq(const JsonFields& fields, QuantizationConfig& config) {
  const bool is_awq = config.method == QuantizationMethod::kAwq;
  std::string format = is_awq ? "gemm" : "gptq";
  for (const char* key : {"format", "checkpoint_format", "version"}) {
    format = lower(fields.string(key).value_or(format));
  }
  const Json* dynamic = fields.find("dynamic");
  if (dynamic != nullptr && !dynamic->empty()) format = "\"dynamic\"";
  if (fields.boolean("is_marlin_format").value_or(false)) format = "marlin";
  if (fields.string("backend") == "llm-awq") format = "llm-awq";
  const int num_bits = bits(fields, "bits", 4);
  const bool is_known = is_awq ? format == "gemm" : format == "gptq" || format == "gptq_v2";
  if (!is_known || (num_bits != 4 && (is_awq || num_bits != 8))) {
    refuse(fields,
           fmt::format("{}'s format {} of {} bits", is_awq ? "AWQ" : "GPTQ", format, num_bits));
  }
  config.zeros_are_less_by_one = format == "gptq";
  config.scheme = {.num_bits = num_bits, .symmetric = false, .block_cols = group_size(fields, 128)};
}

struct Reader {
  std::string_view name;
  QuantizationMethod method;
  void (*read)(const JsonFields&, QuantizationConfig&);
};
constexpr Reader kReaders[] = {
    {"compressed-tensors", QuantizationMethod::kCompressedTensors, read_compressed_tensors},
    {"fp8", QuantizationMethod::kFp8, read_fp8},
    {"modelopt", QuantizationMethod::kModelOpt, read_modelopt},
    {"awq", QuantizationMethod::kAwq, read_awq_or_gptq},
    {"gptq", QuantizationMethod::kGptq, read_awq_or_gptq},
    {"mxfp4", QuantizationMethod::kMxfp4, [](const JsonFields&, QuantizationConfig&) {}}};

QuantizationConfig read(const JsonFields& fields, const std::string& method) {
  for (const Reader& reader : kReaders) {
    if (method != reader.name) continue;
    QuantizationConfig config;
    config.where = fields.where();
    config.method = reader.method;
    config.name = reader.name;
    reader.read(fields, config);
    return config;
  }
  refuse(fields, "quant_method " + method);
}

// As compressed-tensors' match_name(): the whole name, or Python's re.match, which may end early.
bool matches_name(const std::string& pattern, std::string_view module, const std::string& where) {
  if (!pattern.starts_with("re:")) return module == pattern;
  int result = 0;
  PCRE2_SIZE offset = 0;
  const std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()) + 3, pattern.size() - 3,
                    PCRE2_ANCHORED, &result, &offset, nullptr),
      pcre2_code_free);
  if (code != nullptr) {
    pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
    pcre2_match_context* context = pcre2_match_context_create(nullptr);
    pcre2_set_match_limit(context, kMatchLimit);
    result = pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(module.data()), module.size(), 0,
                         0, data, context);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
    if (result >= 0 || result == PCRE2_ERROR_NOMATCH) return result >= 0;
  }
  throw_error(
      ErrorCode::kCorruptData,
      "{}: the regular expression {} does not compile or takes too long for module {}; write "
      "it in another way",
      where, printable(pattern), printable(module));
}

bool matches_class(const std::string& pattern, std::string_view module, const std::string&) {
  return pattern == (module.ends_with("embed_tokens") ? "Embedding" : "Linear");
}

}  // namespace

std::optional<WeightScheme> QuantizationConfig::scheme_of(std::string_view module) const {
  if (method != QuantizationMethod::kCompressedTensors) return scheme;
  for (const std::string& pattern : ignored) {
    for (const auto matches : {matches_name, matches_class}) {
      if (matches(pattern, module, where)) return std::nullopt;
    }
  }
  for (const auto matches : {matches_name, matches_class}) {
    for (const auto& [pattern, of_target] : targets) {
      if (matches(pattern, module, where)) return of_target;
    }
  }
  return std::nullopt;
}

bool is_quantization_method(std::string_view name) {
  return name == "gguf" || std::ranges::find(kReaders, name, &Reader::name) != std::end(kReaders);
}

std::optional<QuantizationConfig> load_quantization_config(const JsonFields& config,
                                                           const std::string& model_dir) {
  // The second name is that of compressed-tensors before 0.6.
  for (const char* key : {"quantization_config", "compression_config"}) {
    const Json* value = config.find(key);
    if (value == nullptr) continue;
    const JsonFields fields(*value, config.where() + ", " + key);
    return read(fields, fields.string("quant_method").value_or("(none)"));
  }
  const std::string path = model_dir + "/hf_quant_config.json";
  if (!file_exists(path)) return std::nullopt;
  const Json document = parse_json(read_text_file(path, kMaxFileBytes), path);
  const Json* value = JsonFields(document, path).find("quantization");
  return read(JsonFields(value ? *value : document, path), "modelopt");
}

}  // namespace nanovllm
