// What the tests of the engine share: requests, and what the fake model gives for them.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/fake_runner.h"
#include "nanovllm/tokenizer.h"

namespace nanovllm {

using Ids = std::vector<int32_t>;

inline Ids prompt_of(int length, int32_t first = 1) {
  Ids ids(length);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

// `vocab`: the members of a JSON object, token to id. Id 0 is "<eos>".
inline std::unique_ptr<const Tokenizer> byte_level_tokenizer(const std::string& vocab) {
  return Tokenizer::from_json(
      R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[{"id":0,)"
      R"("content":"<eos>","single_word":false,"lstrip":false,"rstrip":false,)"
      R"("normalized":false,"special":true}],"normalizer":null,"pre_tokenizer":)"
      R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},)"
      R"("post_processor":null,"decoder":{"type":"ByteLevel","add_prefix_space":true,)"
      R"("trim_offsets":true,"use_regex":true},"model":{"type":"BPE","dropout":null,)"
      R"("unk_token":null,"continuing_subword_prefix":null,"end_of_word_suffix":null,)"
      R"("fuse_unk":false,"byte_fallback":false,"ignore_merges":false,"vocab":{)" +
          vocab + R"(},"merges":[]}})",
      "a byte-level tokenizer");
}

inline SamplingParams greedy(int max_tokens) {
  SamplingParams params;
  params.temperature = 0;
  params.max_tokens = max_tokens;
  params.ignore_eos = true;
  return params;
}

inline SamplingParams random(int max_tokens, std::optional<int64_t> seed = {}) {
  SamplingParams params = greedy(max_tokens);
  params.temperature = 1;
  params.seed = seed;
  return params;
}

// What greedy decoding of the fake model gives.
inline Ids greedy_tokens(Ids ids, int count, int vocab_size = 50) {
  const size_t num_prompt_tokens = ids.size();
  for (int i = 0; i < count; ++i) {
    SamplingRow row;
    row.temperature = 0;
    ids.push_back(FakeModel::sample(FakeModel::fold(ids), row, vocab_size).token_id);
  }
  return {ids.begin() + static_cast<ptrdiff_t>(num_prompt_tokens), ids.end()};
}

// Words "w0" to "w49"; decoding the one with the id too_hard fails.
inline std::unique_ptr<const Tokenizer> words(int32_t too_hard = -1) {
  std::string vocab;
  for (int id = 0; id < 50; ++id) {
    const std::string word = id == too_hard ? std::string(60, 'a') + 'b' : fmt::format("w{}", id);
    vocab += fmt::format("{}\"{}\":{}", id == 0 ? "" : ",", word, id);
  }
  return Tokenizer::from_json(
      R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,)"
      R"("pre_tokenizer":null,"post_processor":null,"decoder":{"type":"Replace","pattern":)"
      R"({"Regex":"(a+)+$"},"content":"a"},"model":{"type":"BPE","dropout":null,)"
      R"("unk_token":null,"continuing_subword_prefix":null,"end_of_word_suffix":null,)"
      R"("fuse_unk":false,"byte_fallback":false,"ignore_merges":false,"vocab":{)" +
          vocab + R"(},"merges":[]}})",
      "words");
}

// One token per letter: "a" to "z", then "A" to "X".
inline std::unique_ptr<const Tokenizer> alphabet() {
  std::string vocab;
  for (int id = 0; id < 50; ++id) {
    const auto letter = static_cast<char>(id < 26 ? 'a' + id : 'A' + id - 26);
    vocab += fmt::format("{}\"{}\":{}", id == 0 ? "" : ",", letter, id);
  }
  return Tokenizer::from_json(
      R"({"added_tokens":[],"model":{"type":"BPE","vocab":{)" + vocab + R"(},"merges":[]}})",
      "alphabet");
}

// Behind `first`, one of 40,000 words of letters up to h: a tenth of a second or more to compile.
inline std::string slow_regex(char first) {
  std::string pattern = fmt::format("{}(", first);
  for (int i = 0; i < 40'000; ++i) {
    for (int rest = 300'000 + i * 31; rest > 0; rest /= 8) {
      pattern += static_cast<char>('a' + rest % 8);
    }
    pattern += i + 1 < 40'000 ? '|' : ')';
  }
  return pattern;
}

// A "model" that recites a script, whatever the prompt.
class Reciter : public Runner {
 public:
  explicit Reciter(std::vector<int32_t> script, int num_blocks)
      : script_(std::move(script)), num_blocks_(num_blocks) {}
  int num_kvcache_blocks() const override { return num_blocks_; }
  void submit(const StepInput& input) override {
    done_.results.resize(input.sequences.size());
    done_.sequences.resize(input.sequences.size());
    draws_.clear();
    for (size_t i = 0; i < input.sequences.size(); ++i) {
      if (input.sequences[i].sample) draws_.push_back(i);
    }
  }
  void draw(std::span<const SamplingRow> rows) override {
    for (size_t draw = 0; draw < rows.size(); ++draw) {
      SamplingResult& result = done_.results[draws_.at(draw)];
      result.token_id = script_.at(rows[draw].output_ids.size());
      result.logprobs = {{result.token_id, -0.5f, 1}, {27, -1.5f, 2}};
      done_.sequences[draws_[draw]].sampled = std::span(&result, 1);
    }
  }
  StepOutput collect() override { return std::move(done_); }
  void abandon() noexcept override {}

 private:
  StepOutput done_;
  std::vector<size_t> draws_;  // which sequence each is for
  const std::vector<int32_t> script_;
  const int num_blocks_;
};

// Runs the engine until it is finished; returns the last output of each request.
inline std::map<uint64_t, RequestOutput> run(EngineCore& core) {
  std::map<uint64_t, RequestOutput> last;
  for (int i = 0; i < 10000 && !core.is_finished(); ++i) {
    for (RequestOutput& output : core.step()) last[output.request_id] = std::move(output);
    EXPECT_EQ(core.check_integrity(), "");
  }
  EXPECT_TRUE(core.is_finished());
  return last;
}

inline RequestOutput run_one(EngineCore& core, const Ids& prompt, const SamplingParams& params) {
  const uint64_t id = core.add_request(prompt, params);
  return run(core).at(id);
}

}  // namespace nanovllm
