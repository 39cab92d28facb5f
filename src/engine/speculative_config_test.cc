#include "engine/speculative_config.h"

#include <gtest/gtest.h>

#include "nanovllm/config.h"
#include "nanovllm/error.h"

namespace nanovllm {
namespace {

std::string refusal(const std::string& json) {
  try {
    EngineConfig config;
    config.speculative_config = json;
    config.validate();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(SpeculativeConfig, DefaultsAreThoseOfVllm) {
  const SpeculativeConfig suffix = *parse_speculative_config(R"({"method": "suffix"})");
  EXPECT_EQ(suffix.suffix.min_length, 1);
  EXPECT_EQ(suffix.suffix.max_length, 24);
  EXPECT_EQ(suffix.suffix.max_texts, 10'000);
  EXPECT_EQ(suffix.suffix.most_per_match, 1);
  EXPECT_EQ(suffix.min_token_prob, 0.1);
  EXPECT_EQ(suffix.num_speculative_tokens, 16);
  const auto ngram = *parse_speculative_config(
      R"({"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3})");
  EXPECT_EQ(ngram.suffix.min_length, 3);
  EXPECT_EQ(ngram.suffix.max_length, 3);
  EXPECT_EQ(ngram.suffix.max_texts, 0);
  EXPECT_EQ(ngram.num_speculative_tokens, 4);
  EXPECT_FALSE(parse_speculative_config(""));
  EXPECT_FALSE(parse_speculative_config("null"));
}

TEST(SpeculativeConfig, ABatchSizeMayHaveItsNumberOfTokens) {
  const auto config = *parse_speculative_config(
      R"({"method": "suffix", "num_speculative_tokens": 8,
          "num_speculative_tokens_per_batch_size": [[1, 4, 12], [5, 16, 3], [32, 64, 0]]})");
  EXPECT_EQ(config.most_tokens(1), 8);
  EXPECT_EQ(config.most_tokens(4), 8);
  EXPECT_EQ(config.most_tokens(5), 3);
  EXPECT_EQ(config.most_tokens(20), 3);
  EXPECT_EQ(config.most_tokens(100), 0);
}

TEST(SpeculativeConfig, ADraftModelMayBeElsewhere) {
  const auto find = [](const std::string& name) { return "/found/" + name; };
  const auto found = *parse_speculative_config(with_draft_model(
      R"({"method": "draft_model", "model": "Own/Demo", "num_speculative_tokens": 2})", find));
  EXPECT_EQ(found.model, "/found/Own/Demo");
  EXPECT_EQ(found.num_speculative_tokens, 2);
  for (const std::string other : {"", "null", R"({"method": "suffix"})"}) {
    EXPECT_EQ(with_draft_model(other, find), other);
  }
  EXPECT_THROW(with_draft_model("{}", find), Error);
}

TEST(SpeculativeConfig, WhatIsWrongIsNamed) {
  EXPECT_EQ(refusal(R"({"method": "suffix"})"), "");
  EXPECT_EQ(refusal("{}"),
            "speculative_config: method is missing; it must be suffix, ngram or draft_model.");
  EXPECT_EQ(refusal(R"({"method": "eagle3"})"),
            "speculative_config: method must be suffix, ngram or draft_model, got \"eagle3\".");
  EXPECT_EQ(refusal(R"({"method": "draft_model", "model": "m", "num_speculative_tokens": 2,
                        "draft_tensor_parallel_size": 2})"),
            "speculative_config: draft_tensor_parallel_size is 2, but must be 1: ranks do not "
            "share a draft model out.");
  EXPECT_EQ(refusal(R"({"method": "mtp"})"),
            "speculative_config: the method mtp is not supported yet; suffix, ngram and "
            "draft_model are.");
  EXPECT_EQ(refusal(R"({"method": "qwen3_5_mtp", "num_speculative_tokens": 2})"),
            "speculative_config: the method qwen3_5_mtp is not supported yet; suffix, ngram and "
            "draft_model are.");
  EXPECT_EQ(
      refusal(R"({"method": "ngram"})"),
      "speculative_config: num_speculative_tokens is missing; with ngram it must be 1 to 32.");
  for (const char* count : {"0", "33", "2.5", "\"2\""}) {
    EXPECT_NE(
        refusal(std::string(R"({"method": "suffix", "num_speculative_tokens": )") + count + "}")
            .find("\"num_speculative_tokens\" is "),
        std::string::npos)
        << count;
  }
  EXPECT_EQ(refusal(R"({"method": "suffix", "prompt_lookup_max": 3})"),
            "speculative_config: prompt_lookup_max is no key of the method suffix.");
  EXPECT_EQ(refusal(R"({"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 4,
                        "prompt_lookup_max": 3})"),
            "speculative_config: prompt_lookup_min is 4, more than prompt_lookup_max, which is 3.");
  EXPECT_NE(refusal(R"({"method": "suffix", "num_speculative_tokens_per_batch_size": [[4, 1, 2]]})")
                .find("expected a list of [first batch size"),
            std::string::npos);
  const auto synthetic = [](const char* rest) {
    return refusal(std::string(R"({"method": "ngram", "num_speculative_tokens": 4, )") + rest +
                   "}");
  };
  EXPECT_NE(synthetic(R"("rejection_sample_method": "strict")").find("must be synthetic"),
            std::string::npos);
  EXPECT_NE(synthetic(R"("rejection_sample_method": "synthetic")").find("one of them is missing"),
            std::string::npos);
  EXPECT_NE(synthetic(R"("synthetic_acceptance_length": 2)").find("one of them is missing"),
            std::string::npos);
  EXPECT_EQ(synthetic(R"("rejection_sample_method": "synthetic",
                         "synthetic_acceptance_length": 6)"),
            "speculative_config: synthetic_acceptance_length is 6, but 4 drafts and one more are 5 "
            "tokens at most.");
  EXPECT_EQ(synthetic(R"("rejection_sample_method": "synthetic",
                         "synthetic_acceptance_length": 5)"),
            "");
  EXPECT_NE(refusal("{"), "");
  EXPECT_NE(refusal("[]"), "");
}

}  // namespace
}  // namespace nanovllm
