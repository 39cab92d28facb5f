// What the cache holds, and taking it away.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace nanovllm::hub {

struct CachedModel {
  std::string name = {};  // as MODEL takes it: with @REVISION but for main, with :TYPE of GGUF
  int64_t num_bytes = 0;  // that came so far
  bool is_complete = true;
  std::string path = {};  // of the folder or file; empty where it is not complete
};
// What is there, by name. Throws Error(kIo) where the cache can't be read.
std::vector<CachedModel> list_models(const std::string& cache);

// Takes a model away: a file of its type, or a revision, or, where neither is named, all there is
// of the repository. Blobs that other revisions or repositories lead to stay. Returns the bytes
// that are free now. Throws Error: kInvalidArgument (as exact_name_of_address() does too),
// kNotFound, kUnavailable (it is being pulled), kIo.
int64_t remove_model(const std::string& cache, const std::string& name);

}  // namespace nanovllm::hub
