// Which files an output must not take the place of.
#pragma once

#include <string>

namespace nanovllm {

// Whether both name one file, there already or not yet, by whatever paths and links. Devices and
// pipes may be named twice.
bool is_same_file(const std::string& a, const std::string& b);

// Whether `path` is a file that is there already and the model's: in its folder or one of those in
// it, or, where the model is a file, that file or one beside it with the same ending, as the parts
// of a checkpoint have. By whatever paths, symbolic and hard links.
bool is_file_of_model(const std::string& path, const std::string& model);

}  // namespace nanovllm
