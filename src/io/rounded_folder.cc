#include "io/rounded_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/parallel_jobs.h"
#include "io/file.h"
#include "io/json.h"
#include "io/output_file.h"
#include "io/safetensors.h"
#include "io/stdio_file.h"

namespace nanovllm {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxConfigBytes = 16 << 20;
constexpr int64_t kGroup = RoundedMatrix::kGroupColumns;
constexpr int64_t kInWord = 8;                     // codes of 4 bits
constexpr size_t kBytesAtOnce = size_t{64} << 20;  // of what is copied

std::string last_part(const std::string& name) { return name.substr(name.rfind('.') + 1); }

// Of a module, "model.layers.0.mlp.up_proj"; towers for images and sound have other beginnings.
bool is_matrix_of_layer(const std::string& module) {
  static const std::set<std::string> kParts = {"q_proj",       "k_proj",    "v_proj",  "o_proj",
                                               "qkv_proj",     "gate_proj", "up_proj", "down_proj",
                                               "gate_up_proj", "w1",        "w2",      "w3"};
  const bool is_of_text = std::ranges::any_of(
      std::initializer_list<std::string_view>{"model.layers.", "language_model.model.layers.",
                                              "model.language_model.layers."},
      [&](std::string_view prefix) { return module.starts_with(prefix); });
  return is_of_text && kParts.contains(last_part(module));
}

void write_file(const std::string& path, const std::string& text) {
  const Draft draft(path);
  const File file(std::fopen(draft.path().c_str(), "wbe"));
  if (file == nullptr || std::fwrite(text.data(), 1, text.size(), file.get()) != text.size() ||
      std::fflush(file.get()) != 0 || draft.take_place() != 0) {
    throw_error(ErrorCode::kIo, "{}: can't be written: {}", path, std::strerror(errno));
  }
}

// A tensor that is written.
struct Part {
  std::string name;
  std::string type;
  std::vector<int64_t> shape;
  size_t bytes = 0;
};

// A tensor of the model, and what becomes of it.
struct Source {
  std::string name;
  const SafetensorsEntry* entry = nullptr;
  const MappedFile* file = nullptr;
  std::optional<RoundedFormat> format;  // nothing = it is copied
  std::vector<Part> parts;

  std::span<const std::byte> bytes() const {
    return file->bytes().subspan(entry->begin, entry->end - entry->begin);
  }
};

std::vector<Part> parts_of(const std::string& module, const SafetensorsEntry& entry,
                           RoundedFormat format) {
  const int64_t rows = entry.shape[0], cols = entry.shape[1];
  const auto part = [&](const char* what, const char* type, std::vector<int64_t> shape,
                        int64_t size) {
    int64_t count = size;
    for (const int64_t n : shape) count *= n;
    return Part{module + "." + what, type, std::move(shape), static_cast<size_t>(count)};
  };
  const char* scales = entry.dtype == DType::kFloat16 ? "F16" : "BF16";
  if (format == RoundedFormat::kFp8) {
    return {part("weight", "F8_E4M3", {rows, cols}, 1), part("weight_scale", scales, {rows, 1}, 2)};
  }
  const int64_t groups = cols / kGroup;
  if (format == RoundedFormat::kInt8) {
    return {part("weight", "I8", {rows, cols}, 1), part("weight_scale", scales, {rows, groups}, 2)};
  }
  const int64_t words = (rows + kInWord - 1) / kInWord;
  return {part("weight_packed", "I32", {rows, cols / kInWord}, 4),
          part("weight_scale", scales, {rows, groups}, 2),
          part("weight_zero_point", "I32", {words, groups}, 4),
          part("weight_shape", "I64", {2}, 8)};
}

// Of a scale that is a float16 or a bfloat16, and not negative.
uint16_t bits_of_scale(float scale, bool is_half) {
  if (!is_half) return to_bfloat16(scale).bits;
  if (scale < 0x1p-14f) return static_cast<uint16_t>(scale * 0x1p24f);
  return static_cast<uint16_t>((std::bit_cast<uint32_t>(scale) >> 13) - (112 << 10));
}

// Rows [begin, end) in all parts of a matrix; begin is a multiple of kInWord.
void round_rows(const RoundedMatrix& matrix, RoundedFormat format, int64_t cols, int64_t begin,
                int64_t end, std::vector<std::vector<char>>& parts) {
  const CodeFormat& layout = *matrix.code_format();
  const int64_t groups = (cols + layout.group_columns - 1) / layout.group_columns;
  const bool is_half = layout.scale_dtype == DType::kFloat16;
  std::vector<uint8_t> codes(static_cast<size_t>(cols));
  std::vector<GroupScale> scales(static_cast<size_t>(groups));
  std::vector<uint32_t> words(static_cast<size_t>(cols / kInWord));
  std::vector<uint32_t> zeros(static_cast<size_t>(groups));
  for (int64_t row = begin; row < end; ++row) {
    matrix.read_codes(row, 0, cols, codes.data());
    matrix.read_scales(row, 0, groups, scales.data());
    for (int64_t group = 0; group < groups; ++group) {
      const uint16_t bits = bits_of_scale(scales[static_cast<size_t>(group)].scale, is_half);
      std::memcpy(&parts[1][static_cast<size_t>((row * groups + group) * 2)], &bits, 2);
    }
    if (format != RoundedFormat::kInt4) {
      std::memcpy(&parts[0][static_cast<size_t>(row * cols)], codes.data(), codes.size());
      continue;
    }
    std::ranges::fill(words, 0);
    for (size_t col = 0; col < codes.size(); ++col) {
      words[col / kInWord] |= static_cast<uint32_t>(codes[col]) << (col % kInWord * 4);
    }
    std::memcpy(&parts[0][static_cast<size_t>(row) * words.size() * 4], words.data(),
                words.size() * 4);
    if (row % kInWord == 0) std::ranges::fill(zeros, 0);
    for (size_t group = 0; group < zeros.size(); ++group) {
      zeros[group] |= static_cast<uint32_t>(scales[group].offset) << (row % kInWord * 4);
    }
    std::memcpy(&parts[2][static_cast<size_t>(row / kInWord) * zeros.size() * 4], zeros.data(),
                zeros.size() * 4);
  }
}

std::vector<std::vector<char>> round_matrix(const Source& source, int num_threads) {
  const int64_t rows = source.entry->shape[0], cols = source.entry->shape[1];
  const RoundedMatrix matrix(source.name,
                             {source.bytes().data(), *source.entry->dtype, nullptr, rows, cols},
                             *source.format);
  std::vector<std::vector<char>> parts;
  for (const Part& part : source.parts) parts.emplace_back(part.bytes);
  constexpr int64_t kRowsOfJob = 8 * kInWord;
  std::vector<Job> jobs;
  for (int64_t row = 0; row < rows; row += kRowsOfJob) {
    const int64_t end = std::min(rows, row + kRowsOfJob);
    jobs.push_back(
        {end - row, [&, row, end] { round_rows(matrix, *source.format, cols, row, end, parts); }});
  }
  run_in_parallel(std::move(jobs), num_threads, [] {});
  if (source.format == RoundedFormat::kInt4) {
    const int64_t shape[] = {rows, cols};
    std::memcpy(parts[3].data(), shape, sizeof shape);
  }
  return parts;
}

class FolderRounder {
 public:
  FolderRounder(const std::string& model, std::string out, RoundedFormat format)
      : model_(model), out_(std::move(out)), format_(format) {
    check_folders();
    read_config();
    open_files();
    plan();
  }

  RoundedFolder write(int num_threads, const std::function<void(int64_t, int64_t)>& on_bytes) {
    std::error_code error;
    fs::create_directories(out_, error);
    if (error) throw_error(ErrorCode::kIo, "{}: can't be made: {}", out_, error.message());
    write_weights(num_threads, on_bytes);
    copy_others();
    config_["quantization_config"] = quantization_config();
    if (has_head_) {
      config_["tie_word_embeddings"] = false;
      if (config_.contains("text_config") &&
          config_["text_config"].contains("tie_word_embeddings")) {
        config_["text_config"]["tie_word_embeddings"] = false;
      }
    }
    write_file(out_ + "/config.json", config_.dump(2) + "\n");
    return report_;
  }

 private:
  void check_folders() const {
    std::error_code error;
    if (!fs::is_directory(model_, error)) {
      throw_error(ErrorCode::kInvalidArgument,
                  "{}: is no folder with config.json and *.safetensors, of which a quantised one "
                  "can be made{}",
                  model_, fs::exists(model_, error) ? "" : ": it is not there");
    }
    if (fs::exists(out_, error) && (!fs::is_directory(out_, error) || !fs::is_empty(out_, error))) {
      throw_error(ErrorCode::kInvalidArgument,
                  "{}: is there already and not an empty folder; remove it or name another", out_);
    }
  }

  void read_config() {
    const std::string path = model_ + "/config.json";
    config_ = parse_json(read_text_file(path, kMaxConfigBytes), path);
    const JsonFields fields(config_, path);
    const bool is_quantised = fields.find("quantization_config") != nullptr ||
                              fields.find("compression_config") != nullptr ||
                              file_exists(model_ + "/hf_quant_config.json");
    if (!is_quantised) return;
    throw_error(ErrorCode::kInvalidArgument,
                "{}: is quantised already; take the model as it was before", model_);
  }

  void open_files() {
    const std::string single = model_ + "/model.safetensors", index = single + ".index.json";
    std::set<std::string> names;
    if (file_exists(single)) {
      names.insert("model.safetensors");
    } else {
      for (const auto& [tensor, file] : read_safetensors_index(index)) names.insert(file);
    }
    files_.reserve(names.size());
    for (const std::string& name : names) {
      files_.emplace_back(model_ + "/" + name);
      entries_.push_back(parse_safetensors_header(files_.back().bytes(), files_.back().path()));
    }
  }

  void plan() {
    const SafetensorsEntry* table = nullptr;
    const MappedFile* file_of_table = nullptr;
    bool found_head = false;
    for (size_t i = 0; i < files_.size(); ++i) {
      for (const SafetensorsEntry& entry : entries_[i]) {
        add(entry, files_[i]);
        found_head = found_head || entry.name.ends_with("lm_head.weight");
        if (!entry.name.ends_with("embed_tokens.weight")) continue;
        table = &entry;
        file_of_table = &files_[i];
      }
    }
    if (found_head || table == nullptr) return;
    // What a tied head is rounded to, the table is not.
    const bool is_inside = table->name.starts_with("language_model.");
    add_rounded(is_inside ? "language_model.lm_head" : "lm_head", *table, *file_of_table,
                RoundedFormat::kInt8);
  }

  void add(const SafetensorsEntry& entry, const MappedFile& file) {
    const bool is_weight = entry.name.ends_with(".weight");
    const std::string module = is_weight ? entry.name.substr(0, entry.name.size() - 7) : entry.name;
    int64_t count = 1;
    for (const int64_t n : entry.shape) count *= n;
    report_.num_parameters += count;
    if (is_weight && entry.shape.size() == 2 && entry.dtype) {
      const bool is_head = last_part(module) == "lm_head";
      if (is_head || is_matrix_of_layer(module)) {
        if (add_rounded(module, entry, file, is_head ? RoundedFormat::kInt8 : format_)) return;
      }
      if (last_part(module) != "embed_tokens") {
        ignored_.push_back(module);
        ++report_.num_kept;
      }
    }
    if (entry.shape.size() == 3 && entry.name.find(".experts.") != std::string::npos) {
      ++report_.num_stacks;
    }
    const size_t bytes = entry.end - entry.begin;
    sources_.push_back(
        {entry.name, &entry, &file, {}, {{entry.name, entry.type, entry.shape, bytes}}});
  }

  bool add_rounded(const std::string& module, const SafetensorsEntry& entry, const MappedFile& file,
                   RoundedFormat format) {
    const bool can_round = entry.dtype && entry.shape.size() == 2 &&
                           std::ranges::min(entry.shape) > 0 &&
                           RoundedMatrix::can_round(format, entry.shape[1]);
    if (!can_round) return false;
    sources_.push_back({entry.name, &entry, &file, format, parts_of(module, entry, format)});
    ++report_.num_rounded;
    has_head_ = has_head_ || last_part(module) == "lm_head";
    return true;
  }

  std::string header() {
    nlohmann::ordered_json header = {{"__metadata__", {{"format", "pt"}}}};
    size_t end = 0;
    for (const Source& source : sources_) {
      for (const Part& part : source.parts) {
        header[part.name] = {
            {"dtype", part.type}, {"shape", part.shape}, {"data_offsets", {end, end + part.bytes}}};
        end += part.bytes;
      }
    }
    report_.bytes = static_cast<int64_t>(end);
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    uint64_t size = text.size();
    std::string all(sizeof size, '\0');
    std::memcpy(all.data(), &size, sizeof size);
    return all + text;
  }

  void write_weights(int num_threads, const std::function<void(int64_t, int64_t)>& on_bytes) {
    const std::string path = out_ + "/model.safetensors";
    const Draft draft(path);
    const File file(std::fopen(draft.path().c_str(), "wbe"));
    const auto check = [&](bool is_written) {
      if (is_written) return;
      throw_error(ErrorCode::kIo, "{}: can't be written: {}", path, std::strerror(errno));
    };
    check(file != nullptr);
    const auto write = [&](const void* data, size_t size) {
      check(std::fwrite(data, 1, size, file.get()) == size);
    };
    const std::string head = header();
    write(head.data(), head.size());
    int64_t done = 0, total = 0;
    for (const Source& source : sources_) total += static_cast<int64_t>(source.bytes().size());
    for (const Source& source : sources_) {
      const std::span<const std::byte> bytes = source.bytes();
      source.file->check_size();
      if (source.format) {
        for (const std::vector<char>& part : round_matrix(source, num_threads)) {
          write(part.data(), part.size());
        }
      }
      for (size_t i = 0; !source.format && i < bytes.size(); i += kBytesAtOnce) {
        write(bytes.data() + i, std::min(kBytesAtOnce, bytes.size() - i));
      }
      source.file->release(bytes.data(), bytes.size());
      done += static_cast<int64_t>(bytes.size());
      on_bytes(done, total);
    }
    check(std::fflush(file.get()) == 0 && draft.take_place() == 0);
  }

  // Tokenizer, templates, defaults; not the weights, in whatever form.
  void copy_others() const {
    static const std::set<std::string> kWeights = {".safetensors", ".bin",     ".pt", ".pth",
                                                   ".gguf",        ".msgpack", ".h5", ".onnx"};
    for (const fs::directory_entry& entry : fs::directory_iterator(model_)) {
      const std::string name = entry.path().filename();
      if (!entry.is_regular_file() || name == "config.json" || name.ends_with(".index.json") ||
          kWeights.contains(entry.path().extension())) {
        continue;
      }
      std::error_code error;
      fs::copy_file(entry.path(), fs::path(out_) / name, error);
      if (error) {
        throw_error(ErrorCode::kIo, "{}: can't be copied to {}: {}", entry.path().string(), out_,
                    error.message());
      }
    }
  }

  static Json group(RoundedFormat format, const char* target) {
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

  static const char* format_name(RoundedFormat format) {
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

  Json quantization_config() const {
    const bool is_mixed = has_head_ && format_ != RoundedFormat::kInt8;
    Json groups = {{"group_0", group(format_, "Linear")}};
    if (is_mixed) groups["group_1"] = group(RoundedFormat::kInt8, "re:.*lm_head");
    return {{"quant_method", "compressed-tensors"},
            {"format", is_mixed ? "mixed-precision" : format_name(format_)},
            {"quantization_status", "compressed"},
            {"config_groups", std::move(groups)},
            {"ignore", ignored_},
            {"kv_cache_scheme", nullptr}};
  }

  const std::string& model_;
  const std::string out_;
  const RoundedFormat format_;
  Json config_;
  std::vector<MappedFile> files_;
  std::vector<std::vector<SafetensorsEntry>> entries_;  // of each
  std::vector<Source> sources_;
  std::vector<std::string> ignored_;
  bool has_head_ = false;
  RoundedFolder report_;
};

}  // namespace

RoundedFolder write_rounded_folder(const std::string& model, const std::string& out,
                                   RoundedFormat format, int num_threads,
                                   const std::function<void(int64_t, int64_t)>& on_bytes) {
  return FolderRounder(model, out, format).write(num_threads, on_bytes);
}

}  // namespace nanovllm
