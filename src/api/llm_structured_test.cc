// Outputs of the demo model that follow a grammar, on every device: each is complete and right, and
// the same whoever shares its batch.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <vector>

#include "base/testing.h"
#include "nanovllm/llm.h"
#ifdef NANOVLLM_WITH_CUDA
#  include "backend/cuda/backend/cuda_backend.h"
#endif

namespace nanovllm {
namespace {

struct StructuredPlace {
  std::string name;
  std::string device;
  int num_ranks = 1;
};

LLM load(const StructuredPlace& place) {
  EngineConfig config;
  config.device = place.device;
  config.dtype = "float32";
  config.num_threads = 2;
  config.tensor_parallel_size = place.num_ranks;
  config.num_kvcache_blocks = 128;
  config.kvcache_block_size = 16;
  config.max_model_len = 256;
  config.max_num_batched_tokens = 24;  // prompts in chunks, mixed with decodes
  return LLM(test::source_path("models/demo"), config);
}

constexpr const char* kRegexes[] = {
    "(The|A) (cat|dog|bird)( [a-z]{1,8}){2,5}\\.",
    "[0-9]{3}-[0-9]{4}",
    "(yes|no)",
    "\"[A-Za-z ,.]{1,20}\"",
    "é(à|ü){1,3}",
};

// What a person is, and what a list of them.
constexpr const char* kPerson = R"({"type": "object", "properties": {
    "name": {"type": "string", "minLength": 1, "maxLength": 12},
    "age": {"type": "integer", "minimum": 1, "maximum": 120},
    "likes": {"type": "array", "items": {"enum": ["cats", "dogs", "cake"]}, "minItems": 1, "maxItems": 3},
    "is_happy": {"type": "boolean"}},
  "required": ["name", "age", "likes"], "additionalProperties": false})";

void expect_person(const std::string& text) {
  const auto person = nlohmann::json::parse(text, nullptr, false);
  ASSERT_TRUE(person.is_object()) << text;
  EXPECT_TRUE(person.at("name").is_string()) << text;
  const int age = person.at("age").get<int>();
  EXPECT_TRUE(age >= 1 && age <= 120) << text;
  EXPECT_TRUE(!person.at("likes").empty() && person.at("likes").size() <= 3) << text;
  for (const std::string liked : person.at("likes")) {
    EXPECT_TRUE(liked == "cats" || liked == "dogs" || liked == "cake") << text;
  }
  EXPECT_EQ(person.size(), person.contains("is_happy") ? 4U : 3U) << text;
}

SamplingParams params_of_text(uint64_t seed, int max_tokens = 120) {
  SamplingParams params;
  params.temperature = seed % 3 == 0 ? 0 : 1;
  params.seed = seed;
  params.max_tokens = max_tokens;
  return params;
}

class LlmStructured : public ::testing::TestWithParam<StructuredPlace> {
 protected:
  void SetUp() override {
#ifdef NANOVLLM_WITH_CUDA
    if (GetParam().device == "cuda" && CudaBackend::device_count() < GetParam().num_ranks) {
      GTEST_SKIP() << "this machine has fewer GPUs";
    }
#endif
  }
};

TEST_P(LlmStructured, EveryTextIsCompleteAndRightAndTheSameAloneAndInABatch) {
  LLM llm = load(GetParam());
  std::vector<Prompt> prompts;
  std::vector<SamplingParams> params;
  constexpr int kRounds = 8;
  for (uint64_t seed = 0; seed < kRounds; ++seed) {
    for (const char* regex : kRegexes) {
      prompts.emplace_back("Once upon a time there was a dog.");
      params.push_back(params_of_text(seed));
      params.back().structured_outputs.emplace().regex = regex;
    }
    prompts.emplace_back("Lily is a girl.");
    params.push_back(params_of_text(seed));
    params.back().structured_outputs.emplace().json = kPerson;
    params.back().structured_outputs->disable_any_whitespace = true;
    prompts.emplace_back("Once upon a time");  // one without
    params.push_back(params_of_text(seed, 20));
  }
  const auto outputs = llm.generate(prompts, params);
  ASSERT_EQ(outputs.size(), prompts.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    const CompletionOutput& output = outputs[i].outputs[0];
    const auto& asked = params[i].structured_outputs;
    if (asked) {
      EXPECT_EQ(output.finish_reason, FinishReason::kStop) << output.text;
    }
    if (asked && asked->regex) {
      EXPECT_TRUE(std::regex_match(output.text, std::regex(*asked->regex))) << output.text;
    } else if (asked) {
      expect_person(output.text);
    }
    // On a GPU, batches of other sizes may round otherwise.
    if (GetParam().device != "cpu" || i % 5 != 0) continue;
    const auto alone = llm.generate({prompts[i]}, params[i]);
    EXPECT_EQ(alone[0].outputs[0].token_ids, output.token_ids) << output.text;
  }
}

std::vector<StructuredPlace> structured_places() {
  std::vector<StructuredPlace> all = {{"cpu", "cpu"}, {"cpu_2", "cpu", 2}};
#ifdef NANOVLLM_WITH_CUDA
  all.push_back({"cuda", "cuda"});
  all.push_back({"cuda_2", "cuda", 2});
#endif
  return all;
}

INSTANTIATE_TEST_SUITE_P(Places, LlmStructured, ::testing::ValuesIn(structured_places()),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace nanovllm
