// Grammars and allowed ids beside each other and beside requests without, again and again: GPUs
// draw what the CPU does.
#include <gtest/gtest.h>

#include <numeric>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "api/outputs_testing.h"
#include "base/testing.h"
#include "nanovllm/llm.h"
#ifdef NANOVLLM_WITH_CUDA
#  include "backend/cuda/backend/cuda_backend.h"
#endif

namespace nanovllm {
namespace {

using test::expect_equal;

constexpr const char* kMaskedNumber = "-?[1-9][0-9]{0,5}(\\.[0-9]{1,3})?";
constexpr const char* kMaskedObject =
    R"({"type": "object", "required": ["name", "age"], "additionalProperties": false,
        "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"enum": [3, 4, 50]}}})";

// One request of each kind, then all of them once more: their masks come again.
std::vector<SamplingParams> masked_params() {
  std::vector<SamplingParams> all(10);
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].temperature = i % 2 == 0 ? 0 : 0.9;
    all[i].seed = i;
    all[i].max_tokens = 40;
  }
  all[1].structured_outputs.emplace().regex = kMaskedNumber;
  all[2].structured_outputs.emplace().json = kMaskedObject;
  all[2].structured_outputs->disable_any_whitespace = true;
  all[3].structured_outputs = all[2].structured_outputs;
  all[3].n = 3;
  all[3].repetition_penalty = 1.2;
  all[4].structured_outputs.emplace().choice = std::vector<std::string>{"red", "blue", "red ball"};
  all[5].structured_outputs.emplace().grammar = R"(root ::= ("dog" | "cat") (" " root)?)";
  all[5].frequency_penalty = 0.3;
  all[6].allowed_token_ids.emplace(3000);
  std::iota(all[6].allowed_token_ids->begin(), all[6].allowed_token_ids->end(), 500);
  all[7].allowed_token_ids = all[6].allowed_token_ids;
  all[7].top_p = 0.9;
  all[8].structured_outputs.emplace().json_object = true;
  all[9].structured_outputs = all[1].structured_outputs;
  all[9].min_tokens = 3;
  all[9].top_k = 30;
  const std::vector<SamplingParams> once = all;
  all.insert(all.end(), once.begin(), once.end());
  return all;
}

// In float32 what devices round differently is far below the margins by which tokens are chosen.
std::vector<RequestOutput> generate_masked(const std::string& device, int max_num_seqs) {
  EngineConfig config;
  config.device = device;
  config.dtype = "float32";
  config.num_threads = 2;
  config.num_kvcache_blocks = 256;
  config.kvcache_block_size = 16;
  config.max_model_len = 256;
  config.max_num_batched_tokens = 48;
  config.max_num_seqs = max_num_seqs;
  LLM llm(test::source_path("models/demo"), config);
  const std::vector<SamplingParams> params = masked_params();
  return llm.generate(
      std::vector<Prompt>(params.size(), "Once upon a time there was a little girl named"), params);
}

void expect_texts_follow(const std::vector<RequestOutput>& outputs) {
  const auto ended = [](const CompletionOutput& output) {
    return output.finish_reason == FinishReason::kStop;
  };
  const std::regex number(kMaskedNumber);
  const std::regex object(R"re(\{"name": ?"([^"\\]|\\.){0,8}", ?"age": ?(3|4|50)\})re");
  const std::regex color("red|blue|red ball");
  const std::regex animals("(dog|cat)( (dog|cat))*");
  const std::pair<size_t, const std::regex*> expected[] = {
      {1, &number}, {2, &object}, {3, &object}, {4, &color}, {5, &animals}, {9, &number}};
  for (const auto& [request, regex] : expected) {
    for (const CompletionOutput& output : outputs[request].outputs) {
      if (!ended(output)) continue;
      EXPECT_TRUE(std::regex_match(output.text, *regex)) << request << ": " << output.text;
    }
  }
  for (const size_t request : {1, 2, 4}) EXPECT_TRUE(ended(outputs[request].outputs[0])) << request;
  for (const size_t request : {6, 7}) {
    for (const int32_t id : outputs[request].outputs[0].token_ids) {
      EXPECT_GE(id, 500);
      EXPECT_LT(id, 3500);
    }
  }
}

TEST(LlmMasks, TextsFollowAndDoNotDependOnTheirMates) {
  const std::vector<RequestOutput> together = generate_masked("cpu", 64);
  expect_texts_follow(together);
  expect_equal(generate_masked("cpu", 1), together);
  const std::vector<RequestOutput> first(together.begin(), together.begin() + 10);
  expect_equal({together.begin() + 10, together.end()}, first);
}

#ifdef NANOVLLM_WITH_CUDA
TEST(LlmMasks, GpusDrawWhatTheCpuDoes) {
  if (CudaBackend::device_count() == 0) GTEST_SKIP() << "no CUDA device on this machine";
  const std::vector<RequestOutput> expected = generate_masked("cpu", 64);
  for (const int max_num_seqs : {64, 3, 1})
    expect_equal(generate_masked("cuda", max_num_seqs), expected);
}
#endif

}  // namespace
}  // namespace nanovllm
