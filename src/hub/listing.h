// What a repository holds at a commit, and which of it the engine reads.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "hub/name.h"

namespace nanovllm::hub {

struct HubFile {
  std::string path;          // in the repository
  int64_t size = 0;          // bytes
  std::string blob_id = {};  // git's SHA-1: of the file, or of the pointer to it that Git LFS keeps
  std::string sha256 = {};   // of the file; empty = Git LFS does not keep it

  // Its name in the cache, and its ETag.
  const std::string& hash() const { return sha256.empty() ? blob_id : sha256; }
  bool operator==(const HubFile&) const = default;
};
using Listing = std::vector<HubFile>;

// "siblings" as /api/models/NAME/revision/REV?blobs=true gives them. `where` begins messages.
// Throws Error(kCorruptData) for names that leave their folder, and for what is no size or hash.
Listing parse_siblings(const nlohmann::json& answer, const std::string& where);

// The text of trees/COMMIT.json, in which huggingface_hub too keeps a listing, and back. Throws
// Error(kCorruptData).
std::string tree_of(const Listing& listing);
Listing parse_tree(std::string_view text, const std::string& where);

constexpr const char* kIndex = "model.safetensors.index.json";

struct Choice {
  Listing files = {};
  std::string entry = {};  // path of the (first) GGUF file; empty = the model is the folder
  // The shards that kIndex, one of the files, names are still to be added.
  bool needs_index = false;
};

// The files of the model that `name` asks for. Throws Error(kNotFound) where there is none or more
// than one, naming them.
Choice choose_files(const Listing& listing, const HubName& name);
// Adds the shards that the index names. Throws Error(kCorruptData, kNotFound).
void add_shards(Choice& choice, const Listing& listing, std::string_view index,
                const std::string& where);

// The type that the name of a GGUF file ends with, in capitals: "Q4_K_M", "UD-IQ2_XXS", "BF16";
// the name without its ending where that tells none. Parts of a split file have the same.
std::string type_of_gguf(std::string_view path);

}  // namespace nanovllm::hub
