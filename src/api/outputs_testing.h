// What tests of the whole engine share.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "nanovllm/outputs.h"

namespace nanovllm::test {

// Tokens, text, log-probabilities bit by bit, and why and where they end.
inline void expect_equal(const std::vector<RequestOutput>& outputs,
                         const std::vector<RequestOutput>& expected) {
  ASSERT_EQ(outputs.size(), expected.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    SCOPED_TRACE(::testing::Message() << "request " << i);
    ASSERT_EQ(outputs[i].outputs.size(), expected[i].outputs.size());
    EXPECT_EQ(outputs[i].prompt_token_ids, expected[i].prompt_token_ids);
    EXPECT_EQ(outputs[i].prompt_logprobs, expected[i].prompt_logprobs);
    for (size_t n = 0; n < outputs[i].outputs.size(); ++n) {
      const CompletionOutput& x = outputs[i].outputs[n];
      const CompletionOutput& y = expected[i].outputs[n];
      EXPECT_EQ(x.token_ids, y.token_ids);
      EXPECT_EQ(x.text, y.text);
      EXPECT_EQ(x.finish_reason, y.finish_reason);
      EXPECT_EQ(x.stop_reason, y.stop_reason);
      ASSERT_EQ(x.logprobs.size(), y.logprobs.size());
      for (size_t t = 0; t < x.logprobs.size(); ++t) {
        ASSERT_EQ(x.logprobs[t].size(), y.logprobs[t].size());
        for (size_t k = 0; k < x.logprobs[t].size(); ++k) {
          EXPECT_EQ(x.logprobs[t][k].token_id, y.logprobs[t][k].token_id);
          EXPECT_EQ(x.logprobs[t][k].logprob, y.logprobs[t][k].logprob) << "token " << t;
        }
      }
    }
  }
}

}  // namespace nanovllm::test
