// Any bytes as a safetensors file: refused, or every tensor lies inside the file.
#include "io/safetensors.h"

#include "fuzzing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nanovllm;
  fuzzing::run_or_refuse([&] {
    const auto file = std::as_bytes(std::span(data, size));
    uint64_t end = 0;
    for (const SafetensorsEntry& entry : parse_safetensors_header(file, "model.safetensors")) {
      fuzzing::require(entry.begin >= end && entry.end <= size, "tensors lie in the file");
      if (entry.dtype) {
        uint64_t bytes = size_of(*entry.dtype);
        for (const int64_t n : entry.shape) bytes *= static_cast<uint64_t>(n);
        fuzzing::require(entry.end - entry.begin == bytes, "and are as large as their shape");
      }
      end = entry.end;
    }
  });
  return 0;
}
