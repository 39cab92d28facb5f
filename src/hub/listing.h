// What a repository holds at a commit, and which of it the engine reads.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hub/name.h"

namespace nanovllm::hub {

struct HubFile {
  std::string path;  // in the repository
  int64_t size = 0;  // bytes; -1 = the hub did not say, nor its hash
  std::string hash =
      {};  // SHA-256 where Git LFS keeps it, git's SHA-1 else: its ETag, and its blob's name
};
using Listing = std::vector<HubFile>;

// What /api/models/NAME/revision/REV?blobs=true answers: the commit that REV is, and its files.
// `where` begins messages. Leaves out names that can't be kept. Throws Error(kCorruptData) for
// those that leave their folder, and for what is no size or hash.
std::pair<std::string, Listing> parse_listing(std::string_view answer, const std::string& where);
// False of what mirrors answer that drop ?blobs=true.
bool tells_sizes(const Listing& listing);
// Adds what a page of /api/models/NAME/tree/COMMIT answers. Throws the same.
void add_tree(Listing& listing, std::string_view answer, const std::string& where);
// What parse_listing() reads.
std::string listing_text(const std::string& commit, const Listing& listing);

constexpr const char* kIndex = "model.safetensors.index.json";

struct Choice {
  Listing files = {};
  std::string entry = {};  // "/" and the path of the (first) GGUF file; empty = the folder
  // The shards that kIndex, one of the files, names are still to be added.
  bool needs_index = false;
};

// The files of the model that `name` asks for. Throws Error(kNotFound) where there is none or more
// than one, naming them.
Choice choose_files(const Listing& listing, const HubName& name);
// Whether we read it; others' tokenizers alone read some of the texts that are chosen.
bool is_read(const HubFile& file);
// Whether no part of a GGUF file is missing, or nothing that every folder has. To be asked of what
// was chosen from files of which nobody said that they are all.
bool is_enough(const Choice& choice);
// Whether it is what `name` asks for, whatever other files there may be. To be asked of the same.
bool is_sure(const Choice& choice, const HubName& name);
// Adds the shards that the index names. Throws Error(kCorruptData, kNotFound).
void add_shards(Choice& choice, const Listing& listing, std::string_view index,
                const std::string& where);

// The type that the name of a GGUF file ends with, in capitals: "Q4_K_M", "UD-IQ2_XXS", "BF16";
// the name without its ending where that tells none. Parts of a split file have the same.
std::string type_of_gguf(const std::string& path);

}  // namespace nanovllm::hub
