#include "io/gguf.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "io/ggml_formats.h"
#include "io/gguf_cursor.h"
#include "io/json.h"

namespace nanovllm {
namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr uint32_t kMaxDimensions = 4;
constexpr size_t kMaxNameBytes = 256;  // llama.cpp has room for 64
constexpr int64_t kMinAlignment = 8, kMaxAlignment = 1 << 20, kDefaultAlignment = 32;
constexpr int64_t kMaxParts = 99'999;  // five digits

void check_magic(const MappedFile& file) {
  const auto bytes = file.bytes();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.starts_with(kMagic)) return;
  const bool is_part_of_folder =
      file.path().ends_with(".safetensors") || file.path().ends_with(".json");
  throw_error(ErrorCode::kCorruptData,
              "{}: not a GGUF file, for it does not begin with the letters GGUF; expected one, or "
              "{}",
              file.path(),
              is_part_of_folder ? "the folder that this file is in" : "a model folder");
}

void check_version(uint32_t version, const GgufCursor& cursor) {
  if (version == 2 || version == 3) return;
  const bool big_endian = version != 0 && (version & 0xffff) == 0;
  cursor.fail(ErrorCode::kUnsupported,
              big_endian ? "is big-endian" : fmt::format("has GGUF version {}", version),
              "use a little-endian file of version 2 or 3 of the same model");
}

int64_t alignment_of(const GgufMetadata& metadata) {
  constexpr const char* kKey = "general.alignment";
  const int64_t alignment =
      metadata.integer(kKey, kMinAlignment, kMaxAlignment).value_or(kDefaultAlignment);
  if (!std::has_single_bit(static_cast<uint64_t>(alignment))) {
    metadata.fail(kKey, "a power of two");
  }
  return alignment;
}

// One entry of the list of tensors; its offset in the file's data is still to be added.
GgufTensor read_tensor(GgufCursor& cursor) {
  GgufTensor tensor;
  cursor.enter("the list of tensors");
  tensor.name = cursor.read_string();
  cursor.enter("tensor", tensor.name);
  if (tensor.name.empty() || tensor.name.size() > kMaxNameBytes) {
    cursor.fail_damaged(
        fmt::format("has a name of {} bytes, expected 1 to {}", tensor.name.size(), kMaxNameBytes));
  }
  const auto rank = cursor.read<uint32_t>();
  if (rank == 0 || rank > kMaxDimensions) {
    cursor.fail_damaged(fmt::format("has {} dimensions, expected 1 to {}", rank, kMaxDimensions));
  }
  for (uint32_t i = 0; i < rank; ++i) {
    const auto size = cursor.read<uint64_t>();
    if (size == 0 || size > INT64_MAX) {
      cursor.fail_damaged(fmt::format("has a dimension of {}", size));
    }
    tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(size));
  }
  tensor.type = cursor.read<uint32_t>();
  const GgmlFormat* format = find_ggml_format(tensor.type);
  if (format == nullptr) {
    cursor.fail(ErrorCode::kUnsupported,
                fmt::format("has type {}, which can't be read", ggml_type_name(tensor.type)),
                "use a Q4_K_M file of the same model");
  }
  if (tensor.shape.back() % format->block_elements != 0) {
    cursor.fail_damaged(fmt::format("has rows of {} elements, not a multiple of {}'s {}",
                                    tensor.shape.back(), format->name, format->block_elements));
  }
  uint64_t bytes = tensor.shape.back() / format->block_elements;
  bool fits = !__builtin_mul_overflow(bytes, format->block_bytes, &bytes);
  for (size_t i = 0; i + 1 < tensor.shape.size(); ++i) {
    fits = fits && !__builtin_mul_overflow(bytes, tensor.shape[i], &bytes);
  }
  if (!fits) cursor.fail_damaged("is larger than any file");
  tensor.bytes = bytes;
  return tensor;
}

// Puts tensors where their offsets, which count from the end of the header, say that they lie.
void place_tensors(std::span<GgufTensor> tensors, std::span<const uint64_t> offsets,
                   uint64_t alignment, const MappedFile& file, GgufCursor& cursor) {
  const uint64_t begin = (cursor.position() + alignment - 1) / alignment * alignment;
  const uint64_t end = std::max<uint64_t>(file.bytes().size(), begin);
  std::vector<const GgufTensor*> in_order;
  for (size_t i = 0; i < tensors.size(); ++i) {
    cursor.enter("tensor", tensors[i].name);
    if (offsets[i] % alignment != 0) {
      cursor.fail_damaged(fmt::format("begins at byte {} of the data, which is no multiple of {}",
                                      offsets[i], alignment));
    }
    if (offsets[i] > end - begin || tensors[i].bytes > end - begin - offsets[i]) {
      cursor.fail_damaged(
          fmt::format("needs {} bytes from byte {} of the data, of which there are {}: the "
                      "file is damaged or truncated",
                      tensors[i].bytes, offsets[i], end - begin));
    }
    tensors[i].data = file.bytes().data() + begin + offsets[i];
    in_order.push_back(&tensors[i]);
  }
  std::ranges::sort(in_order, {}, &GgufTensor::data);
  for (size_t i = 1; i < in_order.size(); ++i) {
    if (in_order[i - 1]->data + in_order[i - 1]->bytes <= in_order[i]->data) continue;
    cursor.enter("tensor", in_order[i]->name);
    cursor.fail_damaged(fmt::format("overlaps tensor {}", printable(in_order[i - 1]->name)));
  }
}

// -00001-of-00003.gguf
std::string part_suffix(int64_t part, int64_t count) {
  return fmt::format("-{:05}-of-{:05}.gguf", part + 1, count);
}

// Of NAME-00002-of-00003.gguf the name of the first part; any other name as it is.
std::string first_part(const std::string& path) {
  constexpr std::string_view kForm = "-00000-of-00000.gguf";
  if (path.size() < kForm.size()) return path;
  const size_t stem = path.size() - kForm.size();
  std::string form = path.substr(stem);
  std::ranges::replace_if(
      form, [](char c) { return c >= '0' && c <= '9'; }, '0');
  if (form != kForm) return path;
  return path.substr(0, stem) + "-00001" + path.substr(stem + 6);
}

}  // namespace

Gguf::Gguf(const std::string& path) {
  static_cast<GgufMetadata&>(*this) = read_part(path);
  // What was put together again keeps the keys, with a count of 0.
  const int64_t count = integer("split.count", 0, kMaxParts).value_or(0);
  if (count > 1) read_other_parts(count);
  check_names();
}

GgufMetadata Gguf::read_part(const std::string& path) {
  const MappedFile& file = parts_.emplace_back(path);
  GgufCursor cursor(file);
  check_magic(file);
  cursor.enter("the header");
  cursor.take(kMagic.size(), 1);
  check_version(cursor.read<uint32_t>(), cursor);
  const auto num_tensors = cursor.read<uint64_t>();
  const auto num_keys = cursor.read<uint64_t>();
  GgufMetadata metadata(cursor, num_keys);
  const int64_t alignment = alignment_of(metadata);
  const size_t begin = tensors_.size();
  std::vector<uint64_t> offsets;
  for (uint64_t i = 0; i < num_tensors; ++i) {
    tensors_.push_back(read_tensor(cursor));
    tensors_.back().part = parts_.size() - 1;
    offsets.push_back(cursor.read<uint64_t>());
  }
  place_tensors(std::span(tensors_).subspan(begin), offsets, alignment, file, cursor);
  return metadata;
}

void Gguf::read_other_parts(int64_t count) {
  const int64_t part = integer("split.no", 0, count - 1).value_or(0);
  const std::string suffix = part_suffix(part, count);
  if (!path().ends_with(suffix)) {
    throw_error(ErrorCode::kCorruptData,
                "{}: part {} of a model in {} parts, but its name does not end in {}; give all "
                "parts the names under which they were published",
                path(), part + 1, count, suffix);
  }
  if (part != 0) {
    throw_error(ErrorCode::kCorruptData, "{}: part {} of a model in {} parts; open {}, the first",
                path(), part + 1, count, first_part(path()));
  }
  const std::string stem = path().substr(0, path().size() - suffix.size());
  for (int64_t i = 1; i < count; ++i) {
    const std::string other_path = stem + part_suffix(i, count);
    if (!file_exists(other_path)) {
      throw_error(ErrorCode::kNotFound,
                  "{}: no such file; the model is in {} parts, so download all into one folder",
                  other_path, count);
    }
    const GgufMetadata other = read_part(other_path);
    // Later parts need not repeat what the model is.
    const bool fits = other.integer("split.no", 0, kMaxParts) == i &&
                      other.integer("split.count", 0, kMaxParts) == count &&
                      other.integer("split.tensors.count", 0, INT64_MAX) ==
                          integer("split.tensors.count", 0, INT64_MAX) &&
                      (!other.has("general.architecture") ||
                       other.string("general.architecture") == string("general.architecture"));
    if (!fits) {
      throw_error(ErrorCode::kCorruptData,
                  "{}: not part {} of the model that begins in {}; download both again", other_path,
                  i + 1, path());
    }
  }
  const auto expected =
      integer("split.tensors.count", 0, INT64_MAX).value_or(static_cast<int64_t>(tensors_.size()));
  if (expected != static_cast<int64_t>(tensors_.size())) {
    throw_error(ErrorCode::kCorruptData,
                "{}: the {} parts hold {} tensors, expected {}; download them again", path(), count,
                tensors_.size(), expected);
  }
}

void Gguf::check_names() const {
  std::map<std::string_view, size_t> part_of;
  for (const GgufTensor& tensor : tensors_) {
    const auto [other, is_new] = part_of.emplace(tensor.name, tensor.part);
    if (is_new) continue;
    throw_error(ErrorCode::kCorruptData, "{}: tensor {} {}", parts_[tensor.part].path(),
                printable(tensor.name),
                other->second == tensor.part ? "appears twice"
                                             : "is also in " + parts_[other->second].path());
  }
}

std::optional<std::string> find_gguf(const std::string& model) {
  std::error_code error;
  if (!std::filesystem::is_directory(model, error)) {
    // What is not there at all may have been meant as either; folders are the rule.
    if (!file_exists(model) && !model.ends_with(".gguf")) return std::nullopt;
    check_magic(MappedFile(model));
    return model;
  }
  if (file_exists(model + "/config.json")) return std::nullopt;
  const std::set<std::string> found = list_gguf(model);
  if (found.empty()) return std::nullopt;
  if (found.size() == 1) return (std::filesystem::path(model) / *found.begin()).string();
  std::string names;
  for (const std::string& name : found) names += (names.empty() ? "" : ", ") + printable(name);
  throw_error(ErrorCode::kCorruptData, "{}: holds {} GGUF files; name one of them: {}", model,
              found.size(), names);
}

std::set<std::string> list_gguf(const std::string& folder) {
  std::set<std::string> found;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    // What macOS leaves on foreign disks is called ._NAME.gguf.
    if (name.ends_with(".gguf") && name[0] != '.') found.insert(first_part(name));
  }
  if (error) throw_error(ErrorCode::kIo, "{}: can't be listed: {}", folder, error.message());
  return found;
}

}  // namespace nanovllm
