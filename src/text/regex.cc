#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/check.h"
#include "io/json.h"
#include "text/regex_syntax.h"

namespace nanovllm::text {

namespace {

// Steps of one match. A pattern that scans a megabyte of white space and gives it back needs one or
// two a byte; one that needs more than this backtracks exponentially.
constexpr uint32_t kMatchLimit = 100'000'000;
constexpr uint32_t kHeapLimit = 256 * 1024;     // KiB, for the interpreter
constexpr size_t kMaxPattern = 16 * 1024;       // bytes; translating takes the square of them
constexpr size_t kJitStack = 64 * 1024 * 1024;  // bytes, reserved but not touched unless needed

std::string message_of(int error) {
  PCRE2_UCHAR buffer[256] = {};
  pcre2_get_error_message(error, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

struct Regex::Code {
  std::string pattern;  // as the file has it
  std::string origin;
  pcre2_code* code = nullptr;
  pcre2_match_context* context = nullptr;
  ~Code() {
    pcre2_match_context_free(context);
    pcre2_code_free(code);
  }
};

namespace {

// What one thread needs for matching; made on first use, freed with the thread.
struct MatchBuffers {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(32 * 1024, kJitStack, nullptr);
  MatchBuffers() = default;
  MatchBuffers(const MatchBuffers&) = delete;
  MatchBuffers& operator=(const MatchBuffers&) = delete;
  ~MatchBuffers() {
    pcre2_match_data_free(data);
    pcre2_jit_stack_free(stack);
  }
};

MatchBuffers& match_buffers() {
  thread_local MatchBuffers buffers;
  return buffers;
}

pcre2_jit_stack* jit_stack_of_thread(void*) { return match_buffers().stack; }

}  // namespace

Regex::Regex(std::string_view pattern, const std::string& origin)
    : code_(std::make_shared<Code>()) {
  if (pattern.size() > kMaxPattern) {
    throw_error(ErrorCode::kUnsupported,
                "{}: a regular expression has {} bytes, more than the {} supported", origin,
                pattern.size(), kMaxPattern);
  }
  code_->pattern = pattern;
  code_->origin = origin;
  const std::string translated = to_pcre2_syntax(pattern, origin);
  pcre2_compile_context* compile = pcre2_compile_context_create(nullptr);
  pcre2_set_newline(compile, PCRE2_NEWLINE_LF);
  pcre2_set_bsr(compile, PCRE2_BSR_UNICODE);
  int error = 0;
  PCRE2_SIZE offset = 0;
  // Oniguruma's ^ and $ always match at line ends.
  code_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                              PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                              &error, &offset, compile);
  pcre2_compile_context_free(compile);
  if (code_->code == nullptr) {
    throw_error(ErrorCode::kCorruptData, "{}: the regular expression '{}' does not compile: {}",
                origin, printable(pattern), message_of(error));
  }
  pcre2_jit_compile(code_->code,
                    PCRE2_JIT_COMPLETE);  // where there is no JIT, the interpreter runs
  code_->context = pcre2_match_context_create(nullptr);
  pcre2_set_match_limit(code_->context, kMatchLimit);
  pcre2_set_heap_limit(code_->context, kHeapLimit);
  pcre2_jit_stack_assign(code_->context, jit_stack_of_thread, nullptr);
}

std::optional<Span> Regex::find(std::string_view text, size_t from) const {
  pcre2_match_data* data = match_buffers().data;
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  int result = pcre2_match(code_->code, subject, text.size(), from, PCRE2_NO_UTF_CHECK, data,
                           code_->context);
  if (result == PCRE2_ERROR_JIT_STACKLIMIT) {
    result = pcre2_match(code_->code, subject, text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                         data, code_->context);
  }
  if (result == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (result < 0) {
    throw_error(ErrorCode::kInvalidArgument,
                "the regular expression '{}' of {} gave up on a text of {} bytes: {}",
                printable(code_->pattern), code_->origin, text.size(), message_of(result));
  }
  const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(data);
  return Span{offsets[0], offsets[1]};
}

}  // namespace nanovllm::text
