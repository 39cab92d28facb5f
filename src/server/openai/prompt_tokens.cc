#include "server/openai/prompt_tokens.h"

#include <algorithm>
#include <utility>

#include "engine/parameter_error.h"
#include "nanovllm/tokenizer.h"
#include "server/openai/request_fields.h"

namespace nanovllm::server {
namespace {

template <typename... Args>
[[noreturn]] void refuse_length(const char* param, fmt::format_string<Args...> format,
                                Args&&... args) {
  throw ApiError(400, fmt::format(format, std::forward<Args>(args)...), param, kContextExceeded);
}

// 0 = that is not known.
size_t max_bytes_per_token(const ServedModel& model) {
  const Tokenizer* tokenizer = model.preparer.tokenizer;
  return tokenizer == nullptr ? 0 : tokenizer->max_bytes_per_token().value_or(0);
}

}  // namespace

size_t least_num_tokens(std::string_view text, const ServedModel& model) {
  const size_t max_bytes = max_bytes_per_token(model);
  return max_bytes == 0 ? 0 : (text.size() + max_bytes - 1) / max_bytes;
}

void check_fits(std::string_view text, const ServedModel& model) {
  const int most = model.preparer.info.max_model_len;
  if (std::cmp_less_equal(least_num_tokens(text, model), most)) return;
  refuse_length("input_text",
                "This model's maximum context length is {} tokens, which no text of more than {} "
                "bytes fits in. However, your prompt has {} bytes. Please reduce the length of the "
                "input prompt.",
                most, static_cast<size_t>(most) * max_bytes_per_token(model), text.size());
}

void check_length(size_t num_tokens, const ServedModel& model) {
  const int most = model.preparer.info.max_model_len;
  if (std::cmp_less_equal(num_tokens, most)) return;
  refuse_length("input_tokens",
                "This model's maximum context length is {} tokens. However, your prompt contains "
                "{} input tokens, which exceeds this limit even without any output tokens. Please "
                "reduce the length of the input prompt.",
                most, num_tokens);
}

std::vector<int32_t> encode_prompt(const std::string& text, bool add_special_tokens,
                                   const ServedModel& model) {
  const Tokenizer* tokenizer = model.preparer.tokenizer;
  if (tokenizer == nullptr) {
    refuse("", "{} has no tokenizer; give the prompt as token ids.", model.names.front());
  }
  check_fits(text, model);
  const int most = model.preparer.info.max_model_len;
  std::vector<int32_t> ids =
      tokenizer->encode(text, add_special_tokens, static_cast<size_t>(std::max(most, 0)));
  if (std::cmp_greater(ids.size(), most)) {
    refuse_length("input_tokens",
                  "This model's maximum context length is {} tokens. However, your prompt contains "
                  "at least {} input tokens, which exceeds this limit even without any output "
                  "tokens. Please reduce the length of the input prompt.",
                  most, int64_t{most} + 1);
  }
  return ids;
}

AddRequest prepare_request(const std::vector<int32_t>& token_ids, const SamplingParams& params,
                           const ServedModel& model, const char* constraint) {
  check_length(token_ids.size(), model);
  try {
    AddRequest request =
        model.preparer.check({.prompt_token_ids = token_ids, .params = params}).release();
    request.params.output_kind = RequestOutputKind::kDelta;
    return request;
  } catch (const ParameterError& error) {
    const bool is_constraint = error.parameter() == "structured_outputs";
    throw ApiError(status_of(error.code()), error.what(),
                   is_constraint ? constraint : error.parameter());
  } catch (const Error& error) {
    throw ApiError(status_of(error.code()), error.what());
  }
}

}  // namespace nanovllm::server
