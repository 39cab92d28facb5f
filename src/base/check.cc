#include "base/check.h"

#include <cstdio>
#include <cstdlib>

#include "base/message.h"

namespace nanovllm {

void check_failed(const char* condition, const char* file, int line) {
  print_message("nanovllm: internal error: {} does not hold ({}:{})\n", condition, file, line);
  if (MessageSink* sink = message_sink) sink->flush();
  std::abort();
}

}  // namespace nanovllm
