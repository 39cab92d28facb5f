// Any bytes as a GGUF file, and from a second "GGUF" on as the second part of a split one: refused,
// or every value can be read or is refused, and every tensor lies inside its part.
#include "io/gguf.h"

#include <limits>

#include "fuzzing.h"
#include "io/ggml_formats.h"
#include "io/temp_dir_testing.h"

namespace nanovllm {
namespace {

void check_values(const Gguf& file) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const std::string_view key : file.keys()) {
    fuzzing::require(file.has(key), "keys are found");
    fuzzing::run_or_refuse([&] { file.integer(key, INT64_MIN, INT64_MAX); });
    fuzzing::run_or_refuse([&] { file.number(key, -kInfinity, kInfinity); });
    fuzzing::run_or_refuse([&] { file.boolean(key); });
    fuzzing::run_or_refuse([&] { file.string(key); });
    fuzzing::run_or_refuse([&] { file.strings(key); });
    fuzzing::run_or_refuse([&] { file.integers(key); });
    fuzzing::run_or_refuse([&] { file.floats(key); });
  }
}

void check_tensors(const Gguf& file) {
  for (const GgufTensor& tensor : file.tensors()) {
    const auto part = file.parts()[tensor.part].bytes();
    fuzzing::require(tensor.data >= part.data() && tensor.bytes <= part.size() &&
                         tensor.data <= part.data() + part.size() - tensor.bytes,
                     "tensors lie in the file");
    const GgmlFormat* format = find_ggml_format(tensor.type);
    fuzzing::require(format != nullptr, "types are known");
    int64_t elements = 1;
    for (const int64_t n : tensor.shape) elements *= n;
    fuzzing::require(static_cast<size_t>(elements / format->block_elements * format->block_bytes) ==
                         tensor.bytes,
                     "and tensors are as large as their shape");
  }
}

}  // namespace
}  // namespace nanovllm

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nanovllm;
  static const testing::TempDir kFolder;
  const std::string_view input = fuzzing::as_text(data, size);
  const size_t second = input.find("GGUF", 1);
  const std::string path = kFolder.write("m-00001-of-00002.gguf", input.substr(0, second));
  if (second != input.npos) kFolder.write("m-00002-of-00002.gguf", input.substr(second));
  fuzzing::run_or_refuse([&] {
    const Gguf file(path);
    check_values(file);
    check_tensors(file);
  });
  return 0;
}
