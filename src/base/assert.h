// NANOVLLM_CHECK, for bugs of ours only: prints the condition and aborts. Bad input throws Error
// instead (base/check.h). Apart from that header so that device code can include it.
#pragma once

namespace nanovllm {

[[noreturn]] void check_failed(const char* condition, const char* file, int line);

}  // namespace nanovllm

#define NANOVLLM_CHECK(condition) \
  ((condition) ? static_cast<void>(0) : ::nanovllm::check_failed(#condition, __FILE__, __LINE__))
