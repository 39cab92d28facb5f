#include "io/rounded_plan.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "base/check.h"
#include "io/config_readers.h"
#include "io/gguf.h"
#include "io/weight_store.h"

namespace nanovllm {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kGroup = RoundedMatrix::kGroupColumns;

std::string last_part(const std::string& name) { return name.substr(name.rfind('.') + 1); }

// Of a module, "model.layers.0.mlp.up_proj"; towers for images and sound have other beginnings.
bool is_matrix_of_layer(const std::string& module) {
  static const std::set<std::string> kParts = {
      "q_proj",       "k_proj",   "v_proj",    "o_proj",       "qkv_proj",    "gate_proj",
      "up_proj",      "g_proj",   "down_proj", "gate_up_proj", "in_proj_qkv", "in_proj_z",
      "in_proj_qkvz", "out_proj", "w1",        "w2",           "w3"};
  const bool is_of_text = std::ranges::any_of(
      std::initializer_list<std::string_view>{"model.layers.", "language_model.model.layers.",
                                              "model.language_model.layers."},
      [&](std::string_view prefix) { return module.starts_with(prefix); });
  return is_of_text && kParts.contains(last_part(module));
}

// By the names that loading knows.
bool is_head(const std::string& name) {
  return name == "lm_head.weight" || name == "language_model.lm_head.weight";
}
bool is_table(const std::string& name) {
  return name == "model.embed_tokens.weight" ||
         name == "language_model.model.embed_tokens.weight" ||
         name == "model.language_model.embed_tokens.weight";
}

// A header was checked: what is not empty fits into its file.
int64_t count_of(const std::vector<int64_t>& shape) {
  if (std::ranges::find(shape, 0) != shape.end()) return 0;
  int64_t count = 1;
  for (const int64_t n : shape) count *= n;
  return count;
}

std::vector<RoundedPart> parts_of(const std::string& module, const SafetensorsEntry& entry,
                                  RoundedFormat format) {
  const int64_t rows = entry.shape[0], cols = entry.shape[1];
  const auto part = [&](const char* what, const char* type, std::vector<int64_t> shape,
                        int64_t size) {
    int64_t count = size;
    for (const int64_t n : shape) count *= n;
    return RoundedPart{module + "." + what, type, std::move(shape), static_cast<size_t>(count)};
  };
  const char* scales = entry.dtype == DType::kFloat16 ? "F16" : "BF16";
  if (format == RoundedFormat::kFp8) {
    return {part("weight", "F8_E4M3", {rows, cols}, 1), part("weight_scale", scales, {rows, 1}, 2)};
  }
  const int64_t groups = cols / kGroup;
  if (format == RoundedFormat::kInt8) {
    return {part("weight", "I8", {rows, cols}, 1), part("weight_scale", scales, {rows, groups}, 2)};
  }
  const int64_t words = (rows + kCodesInWord - 1) / kCodesInWord;
  return {part("weight_packed", "I32", {rows, cols / kCodesInWord}, 4),
          part("weight_scale", scales, {rows, groups}, 2),
          part("weight_zero_point", "I32", {words, groups}, 4),
          part("weight_shape", "I64", {2}, 8)};
}

const char* format_name(RoundedFormat format) {
  switch (format) {
    case RoundedFormat::kInt8:
      return "int-quantized";
    case RoundedFormat::kInt4:
      return "pack-quantized";
    case RoundedFormat::kFp8:
      return "float-quantized";
  }
  return "";
}

Json group(RoundedFormat format, const char* target) {
  const bool is_fp8 = format == RoundedFormat::kFp8, is_int4 = format == RoundedFormat::kInt4;
  Json weights = {{"num_bits", is_int4 ? 4 : 8},
                  {"type", is_fp8 ? "float" : "int"},
                  {"symmetric", !is_int4},
                  {"strategy", is_fp8 ? "channel" : "group"},
                  {"dynamic", false}};
  if (!is_fp8) weights["group_size"] = kGroup;
  return {{"targets", {target}},
          {"format", format_name(format)},
          {"weights", std::move(weights)},
          {"input_activations", nullptr},
          {"output_activations", nullptr}};
}

class Planner {
 public:
  Planner(const std::string& model, RoundedFormat format) : model_(model), format_(format) {}

  RoundedPlan plan() {
    check_folder();
    read_config();
    open_files();
    add_all();
    for (const RoundedSource& source : plan_.sources) {
      plan_.report.num_parameters += count_of(source.entry->shape);
    }
    refuse_equal_names();
    complete_config();
    return std::move(plan_);
  }

 private:
  void check_folder() const {
    std::error_code error;
    const bool is_folder = fs::is_directory(model_, error);
    const bool is_gguf = is_folder
                             ? !file_exists(model_ + "/config.json") && !list_gguf(model_).empty()
                             : model_.ends_with(".gguf") && fs::exists(model_, error);
    if (is_gguf) refuse_gguf();
    if (is_folder) return;
    throw_error(ErrorCode::kInvalidArgument,
                "{}: is no folder with config.json and *.safetensors, of which a quantised one "
                "can be made{}",
                model_, fs::exists(model_, error) ? "" : ": it is not there");
  }

  [[noreturn]] void refuse_gguf() const {
    const std::string format = WeightStore(model_).quantised_format();
    if (!format.empty()) {
      throw_error(ErrorCode::kInvalidArgument,
                  "{}: is a GGUF file that is quantised already, to {}: it can be used as it is",
                  model_, format);
    }
    throw_error(ErrorCode::kInvalidArgument,
                "{}: is a GGUF file, and only of folders quantised ones are made: round it while "
                "it is loaded, with --quantization",
                model_);
  }

  void read_config() {
    const std::string path = model_ + "/config.json";
    plan_.config = parse_json(read_text_file(path, kMaxConfigBytes), path);
    const JsonFields fields(plan_.config, path);
    const bool is_quantised = fields.find("quantization_config") != nullptr ||
                              fields.find("compression_config") != nullptr ||
                              file_exists(model_ + "/hf_quant_config.json");
    if (is_quantised) {
      throw_error(ErrorCode::kInvalidArgument,
                  "{}: is quantised already; take the model as it was before", model_);
    }
    Json text = plan_.config;
    keep_text_part(text);
    is_tied_ = JsonFields(text, path).boolean("tie_word_embeddings");
  }

  void open_files() {
    const std::string single = model_ + "/model.safetensors", index = single + ".index.json";
    std::set<std::string> names;
    if (file_exists(single)) {
      names.insert("model.safetensors");
    } else {
      for (const auto& [tensor, file] : read_safetensors_index(index)) names.insert(file);
    }
    plan_.files.reserve(names.size());
    for (const std::string& name : names) {
      const MappedFile& file = plan_.files.emplace_back(model_ + "/" + name);
      plan_.entries.push_back(parse_safetensors_header(file.bytes(), file.path()));
    }
  }

  void add_all() {
    const SafetensorsEntry* table = nullptr;
    const MappedFile* file_of_table = nullptr;
    bool found_head = false;
    for (size_t i = 0; i < plan_.files.size(); ++i) {
      for (const SafetensorsEntry& entry : plan_.entries[i]) {
        found_head = found_head || is_head(entry.name);
        // Loading takes the table for it.
        if (is_head(entry.name) && is_tied_.value_or(false)) continue;
        add(entry, plan_.files[i]);
        if (!is_table(entry.name)) continue;
        table = &entry;
        file_of_table = &plan_.files[i];
      }
    }
    if (table == nullptr || !is_tied_.value_or(!found_head)) return;
    // What a tied head is rounded to, the table is not.
    const bool is_inside = table->name.starts_with("language_model.");
    add_rounded(is_inside ? "language_model.lm_head" : "lm_head", *table, *file_of_table,
                RoundedFormat::kInt8);
  }

  void add(const SafetensorsEntry& entry, const MappedFile& file) {
    const bool is_weight = entry.name.ends_with(".weight");
    const std::string module = is_weight ? entry.name.substr(0, entry.name.size() - 7) : entry.name;
    if (is_weight && entry.shape.size() == 2 && entry.dtype) {
      if (is_head(entry.name) || is_matrix_of_layer(module)) {
        const RoundedFormat format = is_head(entry.name) ? RoundedFormat::kInt8 : format_;
        if (add_rounded(module, entry, file, format)) return;
        if (!RoundedMatrix::can_round(format, entry.shape[1])) ++plan_.report.num_ungrouped;
      }
      if (last_part(module) != "embed_tokens") ignored_.push_back(module);
    }
    if (entry.shape.size() == 3 && entry.name.find(".experts.") != std::string::npos) {
      ++plan_.report.num_stacks;
    }
    const size_t bytes = entry.end - entry.begin;
    plan_.sources.push_back(
        {entry.name, &entry, &file, {}, {{entry.name, entry.type, entry.shape, bytes}}});
  }

  bool add_rounded(const std::string& module, const SafetensorsEntry& entry, const MappedFile& file,
                   RoundedFormat format) {
    const bool can_round = entry.dtype && entry.shape.size() == 2 &&
                           std::ranges::min(entry.shape) > 0 &&
                           RoundedMatrix::can_round(format, entry.shape[1]);
    if (!can_round) return false;
    plan_.sources.push_back({entry.name, &entry, &file, format, parts_of(module, entry, format)});
    ++plan_.report.num_rounded;
    has_head_ = has_head_ || last_part(module) == "lm_head";
    return true;
  }

  void refuse_equal_names() const {
    std::set<std::string> names;
    for (const RoundedSource& source : plan_.sources) {
      for (const RoundedPart& part : source.parts) {
        if (names.insert(part.name).second) continue;
        throw_error(ErrorCode::kCorruptData,
                    "{}: {} would be written twice: two files have it, or it stands beside the "
                    "matrix that gets a tensor of this name; remove one",
                    model_, printable(part.name));
      }
    }
  }

  void complete_config() {
    Json& config = plan_.config;
    const bool is_mixed = has_head_ && format_ != RoundedFormat::kInt8;
    Json groups = {{"group_0", group(format_, "Linear")}};
    if (is_mixed) groups["group_1"] = group(RoundedFormat::kInt8, "re:.*lm_head");
    config["quantization_config"] = {
        {"quant_method", "compressed-tensors"},
        {"format", is_mixed ? "mixed-precision" : format_name(format_)},
        {"quantization_status", "compressed"},
        {"config_groups", std::move(groups)},
        {"ignore", ignored_},
        {"kv_cache_scheme", nullptr}};
    if (!has_head_) return;
    config["tie_word_embeddings"] = false;
    // Where it does not say so, transformers ties the text part as is usual for the architecture.
    const auto text = config.find("text_config");
    if (text != config.end() && text->is_object()) (*text)["tie_word_embeddings"] = false;
  }

  const std::string& model_;
  const RoundedFormat format_;
  RoundedPlan plan_;
  std::optional<bool> is_tied_;  // as the config says
  std::vector<std::string> ignored_;
  bool has_head_ = false;
};

}  // namespace

RoundedPlan plan_rounded_folder(const std::string& model, RoundedFormat format) {
  return Planner(model, format).plan();
}

}  // namespace nanovllm
