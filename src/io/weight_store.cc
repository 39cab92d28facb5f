#include "io/weight_store.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "base/check.h"
#include "io/file.h"
#include "io/ggml_formats.h"
#include "io/gguf.h"
#include "io/json.h"
#include "io/quantized_weights.h"
#include "io/safetensors.h"
#include "io/transposed_stack.h"

namespace nanovllm {
namespace {

// The name that a text model has for a tensor of a multimodal one's text part; empty for others.
std::string name_in_text_part(const std::string& name) {
  constexpr std::string_view kOuter = "language_model.", kInner = "model.language_model.";
  if (name.starts_with(kOuter)) return name.substr(kOuter.size());
  if (name.starts_with(kInner)) return "model." + name.substr(kInner.size());
  const bool is_of_text = name.starts_with("lm_head.") || name.starts_with("mtp.");
  return is_of_text ? name : "";
}

}  // namespace

class WeightStore::Impl {
 public:
  Impl(std::string model, const std::optional<QuantizationConfig>& quantization,
       const GgufLayout& layout)
      : model_dir_(std::move(model)), layout_(layout) {
    if (const auto path = find_gguf(model_dir_)) {
      gguf_.emplace(*path);
      add_gguf();
      return;
    }
    check_is_folder(model_dir_);
    const std::string single = model_dir_ + "/model.safetensors";
    const std::string index = single + ".index.json";
    if (file_exists(single)) {
      add_file(single);
    } else if (file_exists(index)) {
      add_shards(index);
    } else {
      const bool has_pickles = file_exists(model_dir_ + "/pytorch_model.bin") ||
                               file_exists(model_dir_ + "/pytorch_model.bin.index.json");
      throw_error(ErrorCode::kNotFound,
                  "{}: neither model.safetensors nor model.safetensors.index.json is there{}",
                  model_dir_,
                  has_pickles ? "; convert pytorch_model.bin with transformers' save_pretrained"
                  : !list_gguf(model_dir_).empty()
                      ? "; beside a config.json, a GGUF file opens by its own name only"
                      : "");
    }
    if (quantization) add_quantized(*quantization);
    add_transposed();
    keep_text_part();
    for (const auto& [name, item] : items_) {
      if (item.is_known || item.used) continue;
      refuse_dtype(file_of(item).path(), name, item.format,
                   quantization ? ""
                                : ", and others only with the quantization_config that the "
                                  "config.json of a quantised model has, and this one has not");
    }
  }

  bool contains(std::string_view name) const { return items_.contains(name_in_file(name)); }

  StoredTensor get(std::string_view name, const std::vector<int64_t>& expected_shape) {
    const std::string stored_name = name_in_file(name);
    const auto it = items_.find(stored_name);
    if (it == items_.end()) {
      throw_error(ErrorCode::kNotFound, "{}: tensor {} is missing from the checkpoint", location(),
                  stored_name);
    }
    Item& item = it->second;
    if (item.tensor.shape != expected_shape) {
      throw_error(ErrorCode::kCorruptData, "{}: tensor {} has shape [{}], but {} asks for [{}]",
                  file_of(item).path(), stored_name, fmt::join(item.tensor.shape, ", "),
                  gguf_ ? "the metadata" : "config.json", fmt::join(expected_shape, ", "));
    }
    item.used.store(true, std::memory_order_relaxed);
    item.check_size();
    StoredTensor tensor = item.tensor;
    tensor.source = &item;
    if (tensor.decoder == nullptr) tensor.data = aligned(item);
    return tensor;
  }

  std::vector<std::string> unused() const {
    std::vector<std::string> names;
    for (const auto& [name, item] : items_) {
      if (!item.used.load(std::memory_order_relaxed)) names.push_back(name);
    }
    return names;
  }

  std::vector<std::string> ignored_parts() const {
    return {ignored_parts_.begin(), ignored_parts_.end()};
  }

  int64_t total_bytes() const {
    int64_t bytes = 0;
    for (const auto& [name, item] : items_) bytes += item.tensor.bytes;
    return bytes;
  }

  std::vector<WeightFormat> formats(bool only_used) const {
    std::map<std::string, WeightFormat> by_name;
    for (const auto& [name, item] : items_) {
      if (only_used && !item.used.load(std::memory_order_relaxed)) continue;
      WeightFormat& format = by_name[item.format];
      format.name = item.format;
      ++format.num_tensors;
      format.bytes += item.tensor.bytes;
    }
    std::vector<WeightFormat> formats;
    formats.reserve(by_name.size());
    for (auto& [name, format] : by_name) formats.push_back(std::move(format));
    std::ranges::stable_sort(formats, std::greater(), &WeightFormat::bytes);
    return formats;
  }

  std::string quantised_format() const {
    for (const WeightFormat& format : formats(false)) {
      const bool is_quantised = std::ranges::any_of(items_, [&](const auto& item) {
        return item.second.is_quantised && item.second.format == format.name;
      });
      if (is_quantised) return format.name;
    }
    return "";
  }

  std::vector<MatricesWithoutLayout> without_layout() const {
    std::map<std::string, int64_t> counts;
    for (const auto& [name, item] : items_) {
      if (!item.no_layout_because.empty()) {
        counts[item.no_layout_because] += item.tensor.shape.size() == 3 ? item.tensor.shape[0] : 1;
      }
    }
    std::vector<MatricesWithoutLayout> matrices;
    matrices.reserve(counts.size());
    for (const auto& [because, count] : counts) matrices.push_back({because, count});
    return matrices;
  }

 private:
  struct Piece {
    const void* data = nullptr;
    int64_t bytes = 0;
    size_t file = 0;
  };
  struct Item final : MatrixSource {
    explicit Item(const Impl& impl) : store(impl) {}
    void check_size() const override {
      store.file_of(*this).check_size();
      for (const Piece& piece : pieces) store.files_[piece.file].check_size();
    }
    void release() const override {
      if (tensor.data) store.file_of(*this).release(tensor.data, tensor.bytes);
      for (const Piece& piece : pieces) store.files_[piece.file].release(piece.data, piece.bytes);
    }

    const Impl& store;
    StoredTensor tensor;
    size_t file = 0;            // index in files()
    std::vector<Piece> pieces;  // of a matrix that is several tensors there
    std::string format;
    bool is_known = true;  // plain numbers, or such as have a decoder
    std::unique_ptr<MatrixDecoder> decoder;
    bool is_quantised = false;
    std::string no_layout_because;
    std::atomic<bool> used = false;
    std::vector<std::byte> copy;  // of a tensor that lies at an odd address
  };

  std::span<const MappedFile> files() const { return gguf_ ? gguf_->parts() : files_; }
  const MappedFile& file_of(const Item& item) const { return files()[item.file]; }
  std::string location() const { return files().size() == 1 ? files()[0].path() : model_dir_; }
  std::string name_in_file(std::string_view name) const {
    if (!gguf_) return std::string(name);
    std::string found = gguf_tensor_name(name, layout_.has_post_norms);
    // Some families have the norm before the feed-forward block under the name of its place.
    const size_t norm = found.find("ffn_norm.");
    if (norm == found.npos || items_.contains(found)) return found;
    std::string by_place = found.substr(0, norm) + "post_attention_norm.weight";
    return items_.contains(by_place) ? by_place : found;
  }

  void add_gguf() {
    for (const MappedFile& part : gguf_->parts()) part.prefetch();
    for (const GgufTensor& tensor : gguf_->tensors()) {
      const GgmlFormat& format = *find_ggml_format(tensor.type);
      Item& item = items_.try_emplace(std::string(tensor.name), *this).first->second;
      item.tensor = {
          .data = tensor.data,
          .dtype = format.plain.value_or(DType::kFloat32),
          .shape = tensor.shape,
          .bytes = static_cast<int64_t>(tensor.bytes),
          .interleaved_head = is_interleaved(tensor.name) ? layout_.interleaved_head : 0};
      item.file = tensor.part;
      item.format = format.name;
      if (is_rotary_table(tensor.name)) item.used = true;
      if (tensor.shape.size() == 1 && is_matrix_of_one_row(tensor.name)) {
        item.tensor.shape.insert(item.tensor.shape.begin(), 1);
      }
      if (format.plain) continue;
      item.is_quantised = true;
      const std::vector<int64_t>& shape = item.tensor.shape;
      if (shape.size() != 2 && shape.size() != 3) {
        throw_error(ErrorCode::kUnsupported,
                    "{}: tensor {} of {} dimensions is {}; only matrices and stacks of them can be "
                    "quantised",
                    file_of(item).path(), printable(tensor.name), tensor.shape.size(), format.name);
      }
      const int64_t rows = shape.size() == 3 ? shape[0] * shape[1] : shape[0];
      item.decoder = make_ggml_decoder(
          format, tensor.data, rows, shape.back(),
          fmt::format("{}: tensor {}", file_of(item).path(), printable(tensor.name)));
      item.tensor.decoder = item.decoder.get();
    }
  }

  void add_file(const std::string& path) {
    files_.emplace_back(path);
    const MappedFile& file = files_.back();
    file.prefetch();
    for (SafetensorsEntry& entry : parse_safetensors_header(file.bytes(), path)) {
      const auto [it, inserted] = items_.try_emplace(std::move(entry.name), *this);
      if (!inserted) {
        throw_error(ErrorCode::kCorruptData, "{}: tensor {} is also in {}", path,
                    printable(it->first), files_[it->second.file].path());
      }
      Item& item = it->second;
      item.tensor.data = file.bytes().data() + entry.begin;
      item.tensor.dtype = entry.dtype.value_or(DType::kFloat32);
      item.is_known = entry.dtype.has_value();
      item.tensor.shape = std::move(entry.shape);
      item.tensor.bytes = static_cast<int64_t>(entry.end - entry.begin);
      item.file = files_.size() - 1;
      item.format = std::move(entry.type);
    }
  }

  void add_shards(const std::string& index) {
    const std::map<std::string, std::string> shard_of = read_safetensors_index(index);
    std::set<std::string> shards;
    for (const auto& [name, shard] : shard_of) shards.insert(shard);
    for (const std::string& shard : shards) {
      const std::string path = model_dir_ + "/" + shard;
      if (!file_exists(path)) {
        throw_error(ErrorCode::kNotFound, "{}: this shard is missing; {} names it", path, index);
      }
      add_file(path);
    }
    for (const auto& [name, shard] : shard_of) {
      const auto it = items_.find(name);
      if (it == items_.end() || files_[it->second.file].path() != model_dir_ + "/" + shard) {
        throw_error(ErrorCode::kCorruptData, "{}: tensor {} is not in {}, where the index puts it",
                    index, printable(name), printable(shard));
      }
    }
  }

  // Puts matrices in the place of the tensors that they are made of.
  void add_quantized(const QuantizationConfig& config) {
    RawTensors tensors;
    for (auto& [name, item] : items_) {
      const std::span bytes(static_cast<const std::byte*>(item.tensor.data),
                            static_cast<size_t>(item.tensor.bytes));
      const RawTensor& raw =
          tensors[name] = {file_of(item).path(), item.format, item.tensor.shape, bytes};
      item.used = may_be_unread(name, raw, config);
    }
    for (QuantizedMatrix& matrix : find_quantized_matrices(tensors, config)) {
      std::vector<Piece> pieces;
      int64_t bytes = 0;
      for (const std::string& part : matrix.parts) {
        const Item& item = items_.at(part);
        pieces.push_back({item.tensor.data, item.tensor.bytes, item.file});
        bytes += item.tensor.bytes;
        items_.erase(part);
      }
      Item& item = items_.try_emplace(matrix.name, *this).first->second;
      item.file = pieces.front().file;
      item.pieces = std::move(pieces);
      item.format = std::move(matrix.format);
      item.decoder = std::move(matrix.decoder);
      item.is_quantised = true;
      item.no_layout_because = std::move(matrix.no_layout_because);
      item.tensor = {
          .shape = {matrix.rows, matrix.cols}, .bytes = bytes, .decoder = item.decoder.get()};
      if (matrix.stack_size > 0) {
        item.tensor.shape.insert(item.tensor.shape.begin(), matrix.stack_size);
      }
    }
  }

  // Experts that are parameters of their module, [experts, in, out] as a rule, not weights of
  // layers, whose names end in ".weight".
  void add_transposed() {
    std::vector<std::string> names;
    for (const auto& [name, item] : items_) {
      const bool is_of_experts =
          name.ends_with(".experts.gate_up_proj") || name.ends_with(".experts.down_proj");
      if (is_of_experts && item.is_known && item.tensor.shape.size() == 3) names.push_back(name);
    }
    for (const std::string& name : names) {
      auto node = items_.extract(name);
      node.key() += ".weight";
      Item& item = node.mapped();
      if (!layout_.has_experts_in_order) {
        std::swap(item.tensor.shape[1], item.tensor.shape[2]);
        item.decoder = std::make_unique<TransposedStack>(
            item.tensor.data, item.tensor.dtype, item.tensor.shape[1], item.tensor.shape[2]);
        item.tensor.decoder = item.decoder.get();
      }
      if (!items_.insert(std::move(node)).inserted) {
        throw_error(ErrorCode::kCorruptData, "{}: tensor {} is there, and {}.weight as well",
                    location(), printable(name), printable(name));
      }
    }
  }

  // Of a multimodal checkpoint only the text part stays.
  void keep_text_part() {
    const bool has_parts = std::ranges::any_of(items_, [](const auto& item) {
      return item.first.starts_with("language_model.") ||
             item.first.starts_with("model.language_model.");
    });
    if (!has_parts) return;
    auto all = std::exchange(items_, {});
    while (!all.empty()) {
      auto node = all.extract(all.begin());
      const std::string name = name_in_text_part(node.key());
      if (name.empty()) {
        std::string_view rest = node.key();
        if (rest.starts_with("model.")) rest.remove_prefix(rest.find('.') + 1);
        ignored_parts_.emplace(rest.substr(0, rest.find('.')));
      } else {
        const std::string in_file = std::exchange(node.key(), name);
        const auto [place, is_new, other] = items_.insert(std::move(node));
        if (!is_new) {
          throw_error(ErrorCode::kCorruptData, "{}: two tensors are the text part's {}, one is {}",
                      location(), printable(name), printable(in_file));
        }
      }
    }
  }

  // The format lets tensors begin anywhere; code that reads them as numbers can't.
  const void* aligned(Item& item) {
    const void* data = item.tensor.data;
    if (reinterpret_cast<uintptr_t>(data) % size_of(item.tensor.dtype) == 0) return data;
    const std::lock_guard lock(mutex_);
    if (item.copy.empty()) {
      item.copy.resize(static_cast<size_t>(item.tensor.bytes));
      if (!item.copy.empty()) std::memcpy(item.copy.data(), data, item.copy.size());
    }
    return item.copy.data();
  }

  std::string model_dir_;
  GgufLayout layout_;
  std::optional<Gguf> gguf_;
  std::vector<MappedFile> files_;  // where it is no GGUF
  std::map<std::string, Item, std::less<>> items_;
  std::set<std::string> ignored_parts_;  // towers of a multimodal checkpoint
  std::mutex mutex_;                     // of the copies
};

WeightStore::WeightStore(const std::string& model,
                         const std::optional<QuantizationConfig>& quantization,
                         const GgufLayout& layout)
    : impl_(std::make_unique<Impl>(model, quantization, layout)) {}
WeightStore::~WeightStore() = default;

bool WeightStore::contains(std::string_view name) const { return impl_->contains(name); }
StoredTensor WeightStore::get(std::string_view name,
                              const std::vector<int64_t>& expected_shape) const {
  return impl_->get(name, expected_shape);
}
std::vector<std::string> WeightStore::unused() const { return impl_->unused(); }
std::vector<std::string> WeightStore::ignored_parts() const { return impl_->ignored_parts(); }
int64_t WeightStore::total_bytes() const { return impl_->total_bytes(); }
std::vector<WeightFormat> WeightStore::formats() const { return impl_->formats(false); }
std::vector<WeightFormat> WeightStore::formats_in_use() const { return impl_->formats(true); }
std::string WeightStore::quantised_format() const { return impl_->quantised_format(); }
std::vector<MatricesWithoutLayout> WeightStore::without_layout() const {
  return impl_->without_layout();
}

}  // namespace nanovllm
