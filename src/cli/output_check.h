// What files that a command writes must not be.
#pragma once

#include <string>
#include <vector>

namespace nanovllm::cli {

struct UsedFile {
  std::string path;  // empty or "-": none
  const char* use;   // "--input reads"
};

// The file behind standard input, where that is one.
std::string standard_input_path();

// Throws Error(kInvalidArgument) where `path`, which `flag` names, is a file of the model that is
// there already, or one of the others: opening it to write would empty it before it is read.
void check_output(const char* flag, const std::string& path, const std::string& model,
                  const std::vector<UsedFile>& others);

}  // namespace nanovllm::cli
