// What becomes of the tensors of a folder whose weights are rounded, before anything is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/file.h"
#include "io/json.h"
#include "io/rounded_folder.h"
#include "io/safetensors.h"

namespace nanovllm {

inline constexpr int64_t kCodesInWord = 8;  // of 4 bits in what is written

// A tensor that is written.
struct RoundedPart {
  std::string name;
  std::string type;
  std::vector<int64_t> shape;
  size_t bytes = 0;
};

// A tensor of the model, and what becomes of it.
struct RoundedSource {
  std::string name;
  const SafetensorsEntry* entry = nullptr;
  const MappedFile* file = nullptr;
  std::optional<RoundedFormat> format;  // nothing = it is copied
  std::vector<RoundedPart> parts;

  std::span<const std::byte> bytes() const {
    return file->bytes().subspan(entry->begin, entry->end - entry->begin);
  }
};

struct RoundedPlan {
  // Of the model; `sources` point into both.
  std::vector<MappedFile> files;
  std::vector<std::vector<SafetensorsEntry>> entries;  // of each
  std::vector<RoundedSource> sources;
  Json config;  // what the folder's config.json will be
  RoundedFolder report;
};

// Throws Error: kInvalidArgument (`model` is no folder of plain weights), kCorruptData (two tensors
// would have one name), and what reading the model throws.
RoundedPlan plan_rounded_folder(const std::string& model, RoundedFormat format);

}  // namespace nanovllm
