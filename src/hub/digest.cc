#include "hub/digest.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include "base/check.h"
#include "hub/name.h"

namespace nanovllm::hub {

Digest::Digest(size_t num_digits, int64_t size) : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
  const bool is_git = num_digits == kSha1Digits;
  NANOVLLM_CHECK(EVP_DigestInit_ex(context_.get(), is_git ? EVP_sha1() : EVP_sha256(), nullptr) ==
                 1);
  // What git hashes begins with the object's kind and size, and a zero.
  if (is_git) update(fmt::format("blob {}{}", size, '\0'));
}

void Digest::update(std::string_view bytes) {
  NANOVLLM_CHECK(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1);
}

std::string Digest::hex() {
  unsigned char hash[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  NANOVLLM_CHECK(EVP_DigestFinal_ex(context_.get(), hash, &size) == 1);
  std::string digits;
  for (unsigned int i = 0; i < size; ++i) digits += fmt::format("{:02x}", hash[i]);
  return digits;
}

}  // namespace nanovllm::hub
