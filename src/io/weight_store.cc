#include "io/weight_store.h"

#include <fmt/ranges.h>

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/check.h"
#include "io/file.h"
#include "io/json.h"
#include "io/safetensors.h"

namespace nanovllm {
namespace {

constexpr int64_t kMaxIndexBytes = 100'000'000;

// What model.safetensors.index.json says: tensor name -> shard file name.
std::map<std::string, std::string> read_index(const std::string& path) {
  const nlohmann::json document = parse_json(read_text_file(path, kMaxIndexBytes), path);
  const nlohmann::json* weight_map = JsonFields(document, path).find("weight_map");
  if (weight_map == nullptr || !weight_map->is_object() || weight_map->empty()) {
    throw_error(ErrorCode::kCorruptData, "{}: has no weight_map of tensor names and files", path);
  }
  std::map<std::string, std::string> shard_of;
  for (const auto& [name, value] : weight_map->items()) {
    const std::string shard = value.is_string() ? value.get<std::string>() : "";
    // Shards lie beside the index: a path could lead anywhere on the machine.
    if (shard.empty() || shard == "." || shard == ".." ||
        shard.find_first_of(std::string("/\\\0", 3)) != std::string::npos) {
      throw_error(ErrorCode::kCorruptData,
                  "{}: tensor {} is said to be in \"{}\", expected the name of a file in the same "
                  "folder",
                  path, printable(name), printable(shard));
    }
    shard_of[name] = shard;
  }
  return shard_of;
}

}  // namespace

class WeightStore::Impl {
 public:
  explicit Impl(std::string model_dir) : model_dir_(std::move(model_dir)) {
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
      throw_error(
          ErrorCode::kNotFound,
          "{}: neither model.safetensors nor model.safetensors.index.json is there{}", model_dir_,
          has_pickles ? "; convert pytorch_model.bin with transformers' save_pretrained" : "");
    }
  }

  bool contains(std::string_view name) const { return items_.find(name) != items_.end(); }

  StoredTensor get(std::string_view name, const std::vector<int64_t>& expected_shape) {
    const auto it = items_.find(name);
    if (it == items_.end()) {
      throw_error(ErrorCode::kNotFound, "{}: tensor {} is missing from the checkpoint", location(),
                  name);
    }
    Item& item = it->second;
    if (item.tensor.shape != expected_shape) {
      throw_error(ErrorCode::kCorruptData,
                  "{}: tensor {} has shape [{}], but config.json asks for [{}]",
                  files_[item.file].path(), name, fmt::join(item.tensor.shape, ", "),
                  fmt::join(expected_shape, ", "));
    }
    item.used.store(true, std::memory_order_relaxed);
    files_[item.file].check_size();
    StoredTensor tensor = item.tensor;
    tensor.data = aligned(item);
    return tensor;
  }

  void check_size(std::string_view name) const {
    const auto it = items_.find(name);
    if (it != items_.end()) files_[it->second.file].check_size();
  }

  void release(std::string_view name) const {
    const auto it = items_.find(name);
    if (it == items_.end()) return;
    files_[it->second.file].release(it->second.tensor.data, it->second.bytes);
  }

  std::vector<std::string> unused() const {
    std::vector<std::string> names;
    for (const auto& [name, item] : items_) {
      if (!item.used.load(std::memory_order_relaxed)) names.push_back(name);
    }
    return names;
  }

  int64_t total_bytes() const { return total_bytes_; }

 private:
  struct Item {
    StoredTensor tensor;
    size_t bytes = 0;
    size_t file = 0;  // index in files_
    std::atomic<bool> used = false;
    std::vector<std::byte> copy;  // of a tensor that lies at an odd address
  };

  std::string location() const { return files_.size() == 1 ? files_[0].path() : model_dir_; }

  void add_file(const std::string& path) {
    files_.emplace_back(path);
    const MappedFile& file = files_.back();
    file.prefetch();
    for (SafetensorsEntry& entry : parse_safetensors_header(file.bytes(), path)) {
      const auto [it, inserted] = items_.try_emplace(std::move(entry.name));
      if (!inserted) {
        throw_error(ErrorCode::kCorruptData, "{}: tensor {} is also in {}", path,
                    printable(it->first), files_[it->second.file].path());
      }
      Item& item = it->second;
      item.tensor.data = file.bytes().data() + entry.begin;
      item.tensor.dtype = entry.dtype;
      item.tensor.shape = std::move(entry.shape);
      item.bytes = entry.end - entry.begin;
      item.file = files_.size() - 1;
      total_bytes_ += static_cast<int64_t>(item.bytes);
    }
  }

  void add_shards(const std::string& index) {
    const std::map<std::string, std::string> shard_of = read_index(index);
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

  // The format lets tensors begin anywhere; code that reads them as numbers can't.
  const void* aligned(Item& item) {
    const void* data = item.tensor.data;
    if (reinterpret_cast<uintptr_t>(data) % size_of(item.tensor.dtype) == 0) return data;
    const std::lock_guard lock(mutex_);
    if (item.copy.empty()) {
      item.copy.resize(item.bytes);
      if (item.bytes > 0) std::memcpy(item.copy.data(), data, item.bytes);
    }
    return item.copy.data();
  }

  std::string model_dir_;
  std::vector<MappedFile> files_;
  std::map<std::string, Item, std::less<>> items_;
  std::mutex mutex_;  // of the copies
  int64_t total_bytes_ = 0;
};

WeightStore::WeightStore(const std::string& model_dir) : impl_(std::make_unique<Impl>(model_dir)) {}
WeightStore::~WeightStore() = default;

bool WeightStore::contains(std::string_view name) const { return impl_->contains(name); }
StoredTensor WeightStore::get(std::string_view name,
                              const std::vector<int64_t>& expected_shape) const {
  return impl_->get(name, expected_shape);
}
void WeightStore::check_size(std::string_view name) const { impl_->check_size(name); }
void WeightStore::release(std::string_view name) const { impl_->release(name); }
std::vector<std::string> WeightStore::unused() const { return impl_->unused(); }
int64_t WeightStore::total_bytes() const { return impl_->total_bytes(); }

}  // namespace nanovllm
