#include "io/safetensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/message.h"
#include "io/file.h"
#include "io/json.h"

namespace nanovllm {
namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the reference implementation
constexpr int64_t kMaxIndexBytes = 100'000'000;
constexpr size_t kMaxRank = 8;

struct ElementType {
  const char* name;
  uint64_t bytes;
  std::optional<DType> dtype;
};
constexpr ElementType kElementTypes[] = {
    {"BF16", 2, DType::kBFloat16},
    {"F16", 2, DType::kFloat16},
    {"F32", 4, DType::kFloat32},
    {"F8_E4M3", 1, {}},
    {"F8_E5M2", 1, {}},
    {"F8_E8M0", 1, {}},
    {"I8", 1, {}},
    {"U8", 1, {}},
    {"BOOL", 1, {}},
    {"I16", 2, {}},
    {"U16", 2, {}},
    {"I32", 4, {}},
    {"U32", 4, {}},
    {"I64", 8, {}},
    {"U64", 8, {}},
    {"F64", 8, {}},
};

const ElementType* find_element_type(std::string_view name) {
  const auto* it = std::ranges::find(kElementTypes, name, &ElementType::name);
  return it == std::end(kElementTypes) ? nullptr : it;
}

// Receives the header token by token, so that a hostile one never becomes a document in memory.
//   {"__metadata__": {"any": "text"}, "name": {"dtype": "BF16", "shape": [2, 3],
//    "data_offsets": [0, 12]}, ...}
class HeaderReader : public Json::json_sax_t {
 public:
  explicit HeaderReader(const std::string& path) : path_(path) {}

  std::vector<SafetensorsEntry> take_entries() { return std::move(entries_); }

  bool start_object(size_t) override {
    if (place_ == Place::kStart) {
      place_ = Place::kTop;
    } else if (place_ == Place::kName) {
      place_ = is_metadata_ ? Place::kMetadata : Place::kTensor;
    } else {
      fail_here("an unexpected object");
    }
    return true;
  }

  bool key(string_t& key) override {
    if (place_ == Place::kTop) {
      begin_entry(key);
    } else if (place_ == Place::kTensor) {
      field_ = key == "dtype"          ? &dtype_
               : key == "shape"        ? &shape_
               : key == "data_offsets" ? &offsets_
                                       : nullptr;
      if (field_ == nullptr) fail_here(fmt::format("the unknown field \"{}\"", printable(key)));
      if (field_->seen) fail_here(fmt::format("the field \"{}\" twice", key));
      field_->seen = true;
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kTensor) finish_entry();
    place_ = place_ == Place::kTop ? Place::kEnd : Place::kTop;
    return true;
  }

  bool start_array(size_t) override {
    const bool wanted =
        place_ == Place::kTensor && (field_ == &shape_ || field_ == &offsets_) && !field_->filled;
    if (!wanted) fail_here("an unexpected array");
    field_->filled = true;
    place_ = Place::kNumbers;
    return true;
  }

  bool end_array() override {
    place_ = Place::kTensor;
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ != Place::kNumbers) fail_here("an unexpected number");
    const size_t limit = field_ == &shape_ ? kMaxRank : 2;
    if (field_->numbers.size() == limit) fail_here("too many numbers in an array");
    field_->numbers.push_back(value);
    return true;
  }

  bool string(string_t& value) override {
    if (place_ == Place::kMetadata) return true;
    if (place_ != Place::kTensor || field_ != &dtype_) fail_here("an unexpected string");
    field_->filled = true;
    const ElementType* type = find_element_type(value);
    if (type == nullptr) refuse_dtype(path_, entry_.name, value);
    entry_.type = type->name;
    entry_.dtype = type->dtype;
    return true;
  }

  bool null() override { fail_here("an unexpected null"); }
  bool boolean(bool) override { fail_here("an unexpected boolean"); }
  bool number_integer(number_integer_t) override { fail_here("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    fail_here("a number that is no 64-bit integer");
  }
  bool binary(binary_t&) override { fail_here("binary data"); }
  bool parse_error(size_t position, const std::string&, const Json::exception&) override {
    throw_error(ErrorCode::kCorruptData, "{}: the header is not valid JSON at byte {}", path_,
                position);
  }

 private:
  enum class Place { kStart, kTop, kName, kMetadata, kTensor, kNumbers, kEnd };
  struct Field {
    bool seen = false;
    bool filled = false;
    std::vector<uint64_t> numbers;
  };

  [[noreturn]] void fail_here(const std::string& what) const {
    if (entry_.name.empty()) {
      throw_error(ErrorCode::kCorruptData, "{}: the header holds {}", path_, what);
    }
    throw_error(ErrorCode::kCorruptData, "{}: the header holds {} at {}", path_, what,
                printable(entry_.name));
  }

  void begin_entry(const std::string& name) {
    if (!names_.insert(name).second) {
      throw_error(ErrorCode::kCorruptData, "{}: tensor {} appears twice in the header", path_,
                  printable(name));
    }
    is_metadata_ = name == "__metadata__";
    entry_ = {};
    entry_.name = name;
    field_ = nullptr;
    dtype_ = shape_ = offsets_ = {};
    place_ = Place::kName;
  }

  void finish_entry() {
    if (!dtype_.filled || !shape_.filled || offsets_.numbers.size() != 2) {
      throw_error(ErrorCode::kCorruptData,
                  "{}: tensor {} needs a dtype, a shape and two data_offsets", path_,
                  printable(entry_.name));
    }
    for (uint64_t n : shape_.numbers) {
      if (n > static_cast<uint64_t>(INT64_MAX)) fail_here("a huge dimension");
      entry_.shape.push_back(static_cast<int64_t>(n));
    }
    entry_.begin = offsets_.numbers[0];
    entry_.end = offsets_.numbers[1];
    entries_.push_back(std::move(entry_));
    entry_ = {};
  }

  const std::string& path_;
  Place place_ = Place::kStart;
  bool is_metadata_ = false;
  SafetensorsEntry entry_;  // the one being read
  Field dtype_, shape_, offsets_;
  Field* field_ = nullptr;
  std::unordered_set<std::string> names_;
  std::vector<SafetensorsEntry> entries_;
};

// Bytes the dtype and shape need; false when they do not fit 64 bits.
bool needed_bytes(const SafetensorsEntry& entry, uint64_t* bytes) {
  *bytes = find_element_type(entry.type)->bytes;
  for (int64_t n : entry.shape) {
    if (n == 0) {
      *bytes = 0;
      return true;
    }
  }
  for (int64_t n : entry.shape) {
    if (__builtin_mul_overflow(*bytes, static_cast<uint64_t>(n), bytes)) return false;
  }
  return true;
}

// Offsets count from the end of the header; `data_bytes` lie behind it.
void check_offsets(const std::vector<SafetensorsEntry>& entries, uint64_t data_bytes,
                   const std::string& path) {
  uint64_t expected_begin = 0;
  for (const SafetensorsEntry& entry : entries) {
    uint64_t bytes = 0;
    if (entry.end < entry.begin || !needed_bytes(entry, &bytes) ||
        entry.end - entry.begin != bytes) {
      throw_error(ErrorCode::kCorruptData,
                  "{}: tensor {} lies at bytes {} to {}, which is not what its dtype {} and shape "
                  "[{}] need",
                  path, printable(entry.name), entry.begin, entry.end, entry.type,
                  fmt::join(entry.shape, ", "));
    }
    if (entry.end > data_bytes) {
      throw_error(ErrorCode::kCorruptData,
                  "{}: truncated: tensor {} ends at byte {} of the data, but there are only {}; "
                  "download the file again",
                  path, printable(entry.name), entry.end, data_bytes);
    }
    if (entry.begin != expected_begin) {
      throw_error(ErrorCode::kCorruptData, "{}: tensor {} begins at byte {} of the data, {} {}",
                  path, printable(entry.name), entry.begin,
                  entry.begin < expected_begin ? "inside the tensor before it, which ends at"
                                               : "leaving a gap after the tensor that ends at",
                  expected_begin);
    }
    expected_begin = entry.end;
  }
  if (expected_begin != data_bytes) {
    throw_error(ErrorCode::kCorruptData,
                "{}: the tensors end at byte {} of the data, but there are {}", path,
                expected_begin, data_bytes);
  }
}

}  // namespace

void refuse_dtype(const std::string& path, std::string_view tensor, std::string_view type,
                  std::string_view hint) {
  throw_error(ErrorCode::kUnsupported,
              "{}: tensor {} has dtype {}; only BF16, F16 and F32 can be loaded{}", path,
              printable(tensor), printable(type), hint);
}

std::vector<SafetensorsEntry> parse_safetensors_header(std::span<const std::byte> file,
                                                       const std::string& path) {
  if (file.size() < kLengthBytes) {
    throw_error(ErrorCode::kCorruptData,
                "{}: {} long, too short for a safetensors file; download it again", path,
                counted(static_cast<int64_t>(file.size()), "byte"));
  }
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), kLengthBytes);
  if (header_bytes > kMaxHeaderBytes || header_bytes > file.size() - kLengthBytes) {
    throw_error(ErrorCode::kCorruptData,
                "{}: not a safetensors file, or truncated: the header would be {} bytes long in a "
                "file of {}",
                path, header_bytes, file.size());
  }
  const uint64_t data_begin = kLengthBytes + header_bytes;
  const std::string_view header(reinterpret_cast<const char*>(file.data()) + kLengthBytes,
                                header_bytes);
  HeaderReader reader(path);
  Json::sax_parse(header.begin(), header.end(), &reader);
  std::vector<SafetensorsEntry> entries = reader.take_entries();

  std::sort(entries.begin(), entries.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
              return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
            });
  check_offsets(entries, file.size() - data_begin, path);
  for (SafetensorsEntry& entry : entries) {
    entry.begin += data_begin;
    entry.end += data_begin;
  }
  return entries;
}

std::map<std::string, std::string> read_safetensors_index(const std::string& path) {
  const Json document = parse_json(read_text_file(path, kMaxIndexBytes), path);
  const Json* weight_map = JsonFields(document, path).find("weight_map");
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

}  // namespace nanovllm
