// Which files an output must not take the place of, and files that take a place only when they are
// whole.
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

// What is to take the place of a file, or of none, is written beside it first, under a name that
// nobody else has: whoever is killed meanwhile leaves the file as it was.
class Draft {
 public:
  explicit Draft(const std::string& place);
  ~Draft();  // what did not take the place goes
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;

  const std::string& path() const { return path_; }  // to be written there
  // 0, or errno: why it could not.
  int take_place() const;

 private:
  const std::string place_, path_;
};

}  // namespace nanovllm
