// The hash by which a hub and its cache know a file: SHA-256 of what Git LFS keeps, git's own SHA-1
// of all others.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

struct evp_md_ctx_st;

namespace nanovllm::hub {

class Digest {
 public:
  // Of a file of `size` bytes, whose hash is told by so many hexadecimal digits: 40 or 64.
  Digest(size_t num_digits, int64_t size);
  void update(std::string_view bytes);
  std::string hex();  // of all that there was; call it once

 private:
  std::unique_ptr<evp_md_ctx_st, void (*)(evp_md_ctx_st*)> context_;
};

}  // namespace nanovllm::hub
