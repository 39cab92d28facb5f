#include "cli/output_check.h"

#include <fmt/format.h>
#include <unistd.h>

#include "base/check.h"
#include "io/output_file.h"

namespace nanovllm::cli {

std::string standard_input_path() { return fmt::format("/proc/self/fd/{}", STDIN_FILENO); }

void check_output(const char* flag, const std::string& path, const std::string& model,
                  const std::vector<UsedFile>& others) {
  if (path == "-") return;
  if (is_file_of_model(path, model)) {
    throw_error(ErrorCode::kInvalidArgument, "{} {} is a file of the model {}; name another one",
                flag, path, model);
  }
  for (const UsedFile& other : others) {
    if (other.path == "-" || !is_same_file(path, other.path)) continue;
    throw_error(ErrorCode::kInvalidArgument, "{} {} is the file that {}; name another one", flag,
                path, other.use);
  }
}

}  // namespace nanovllm::cli
