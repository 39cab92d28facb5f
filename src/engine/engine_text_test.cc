// What the user reads: text, stop strings, decoded log-probabilities. The "model" recites a script.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine_test_support.h"
#include "text/testing.h"

namespace nanovllm {
namespace {

constexpr int32_t kEndId = 0;

// Ids 1 to 26 are the letters, 27 is a space, 28 and 29 are the two bytes of "é".
std::unique_ptr<const Tokenizer> letters() {
  std::string vocab = R"("<eos>":0)";
  for (char c = 'a'; c <= 'z'; ++c) vocab += fmt::format(",\"{}\":{}", c, c - 'a' + 1);
  vocab += R"(,"Ġ":27,"Ã":28,"©":29)";
  return byte_level_tokenizer(vocab);
}

std::vector<int32_t> ids_of(const std::string& text) {
  return text.empty() ? std::vector<int32_t>{} : letters()->encode(text);
}

std::unique_ptr<EngineCore> reciting(std::vector<int32_t> script,
                                     std::unique_ptr<const Tokenizer> tokenizer = letters(),
                                     int num_blocks = 64) {
  script.resize(100, kEndId);
  EngineParts parts;
  parts.config.kvcache_block_size = 16;
  parts.info.max_model_len = 200;
  parts.info.vocab_size = tokenizer->vocab_size();
  parts.model_dir = "reciter";
  parts.eos_token_ids = {kEndId};
  parts.tokenizer = std::move(tokenizer);
  parts.runner = std::make_unique<Reciter>(std::move(script), num_blocks);
  return std::make_unique<EngineCore>(std::move(parts));
}

// All outputs of one request; the last one is final.
std::vector<RequestOutput> recite(std::vector<int32_t> script, SamplingParams params) {
  const auto core = reciting(std::move(script));
  params.temperature = 0;
  core->add_request("abc", params);
  std::vector<RequestOutput> outputs;
  while (!core->is_finished()) {
    for (RequestOutput& output : core->step()) outputs.push_back(std::move(output));
  }
  return outputs;
}

CompletionOutput last_of(const std::vector<RequestOutput>& outputs) {
  return outputs.back().outputs.at(0);
}

TEST(EngineText, IsTheTextOfTheTokensWithoutTheEnd) {
  const auto outputs = recite(ids_of("hello world"), {});
  EXPECT_EQ(outputs.back().prompt, "abc");
  EXPECT_EQ(outputs.back().prompt_token_ids, ids_of("abc"));
  EXPECT_EQ(last_of(outputs).text, "hello world");
  EXPECT_EQ(last_of(outputs).token_ids.size(), 12u);  // EOS is one of them
  EXPECT_EQ(last_of(outputs).finish_reason, FinishReason::kStop);
}

TEST(EngineText, DeltasJoinToTheWholeAndCharactersComeWhole) {
  auto script = ids_of("caf");
  script.insert(script.end(), {28, 29, 27, 28, 29});
  SamplingParams params;
  params.output_kind = RequestOutputKind::kDelta;
  std::string joined;
  for (const RequestOutput& output : recite(script, params)) {
    EXPECT_EQ(output.outputs[0].text.find("\xef\xbf\xbd"), std::string::npos);
    joined += output.outputs[0].text;
  }
  EXPECT_EQ(joined, "café é");
}

TEST(EngineText, AnIncompleteCharacterAtTheEndIsReplaced) {
  SamplingParams params;
  params.max_tokens = 2;
  const auto outputs = recite({1, 28, 29}, params);
  EXPECT_EQ(last_of(outputs).text, "a\xef\xbf\xbd");
  EXPECT_EQ(outputs.front().outputs[0].text, "a");
}

TEST(EngineText, SpecialTokensAreKeptWhenAskedFor) {
  SamplingParams params;
  params.ignore_eos = true;
  params.max_tokens = 3;
  EXPECT_EQ(last_of(recite({1, kEndId, 2}, params)).text, "ab");
  params.skip_special_tokens = false;
  EXPECT_EQ(last_of(recite({1, kEndId, 2}, params)).text, "a<eos>b");
}

TEST(EngineText, TheTokenThatStopsIsNotPartOfItUnlessAskedFor) {
  SamplingParams params;
  params.stop_token_ids = {3};
  params.skip_special_tokens = false;
  EXPECT_EQ(last_of(recite({1, 2, 3, 4}, params)).text, "ab");
  EXPECT_EQ(last_of(recite({1, 2, kEndId}, params)).text, "ab");
  params.include_stop_str_in_output = true;
  EXPECT_EQ(last_of(recite({1, 2, 3, 4}, params)).text, "abc");
  EXPECT_EQ(last_of(recite({1, 2, kEndId}, params)).text, "ab<eos>");
}

// --- marks ---

// What a delta request of this script was given: "piece(offset:id offset:id)" for each token.
std::vector<std::string> marked_pieces(const std::unique_ptr<EngineCore>& core,
                                       SamplingParams params) {
  params.temperature = 0;
  params.ignore_eos = true;
  params.output_kind = RequestOutputKind::kDelta;
  core->add_request("a", params);
  std::vector<std::string> pieces;
  while (!core->is_finished()) {
    for (const RequestOutput& output : core->step()) {
      std::vector<std::string> marks;
      for (const auto& [offset, id] : output.outputs[0].marks) {
        marks.push_back(fmt::format("{}:{}", offset, id));
      }
      const std::string list = fmt::format("({})", fmt::join(marks, " "));
      pieces.push_back(output.outputs[0].text + (marks.empty() ? "" : list));
    }
  }
  return pieces;
}

using Pieces = std::vector<std::string>;

SamplingParams marking(std::vector<int32_t> ids, int max_tokens) {
  SamplingParams params;
  params.marked_token_ids = std::move(ids);
  params.max_tokens = max_tokens;
  params.skip_special_tokens = false;
  return params;
}

TEST(EngineMarks, SayWhereTheTextOfTheirTokensBegins) {
  EXPECT_EQ(marked_pieces(reciting({1, kEndId, 2, kEndId}), marking({kEndId, 2}, 4)),
            (Pieces{"a", "<eos>(0:0)", "b(0:2)", "<eos>(0:0)"}));
  // Behind a character that is cut off.
  EXPECT_EQ(marked_pieces(reciting({28, 29, 28, kEndId}), marking({kEndId}, 4)),
            (Pieces{"", "é", "", "\uFFFD<eos>(3:0)"}));
  // Where special tokens are left out of the text, those are not.
  SamplingParams params = marking({kEndId}, 3);
  params.skip_special_tokens = true;
  EXPECT_EQ(marked_pieces(reciting({1, kEndId, 2}), params), (Pieces{"a", "<eos>(0:0)", "b"}));
  params.marked_token_ids = {2};
  EXPECT_EQ(marked_pieces(reciting({1, kEndId, 2}), params), (Pieces{"a", "", "b(0:2)"}));
  // The token that stops has no place in it.
  params = marking({kEndId, 2}, 3);
  params.stop_token_ids = {2};
  EXPECT_EQ(marked_pieces(reciting({1, 2}), params), (Pieces{"a", ""}));
  params.include_stop_str_in_output = true;
  EXPECT_EQ(marked_pieces(reciting({1, 2}), params), (Pieces{"a", "b(0:2)"}));
}

TEST(EngineMarks, ComeWithTheFirstByteOfTheirTextWhereItIsHeldBack) {
  SamplingParams params = marking({kEndId, 3}, 4);
  params.stop = {"xcx", "os>x", "b<x"};
  EXPECT_EQ(marked_pieces(reciting({1, 24, 3, 2}), params), (Pieces{"a", "", "", "xcb(1:3)"}));
  EXPECT_EQ(marked_pieces(reciting({1, kEndId, 2, 3}), params),
            (Pieces{"a", "<e(0:0)", "os>", "bc(1:3)"}));
  EXPECT_EQ(marked_pieces(reciting({1, 2, kEndId, 1}), params),
            (Pieces{"a", "", "b<e(1:0)", "os>a"}));
  // A stop text takes those behind it along.
  EXPECT_EQ(marked_pieces(reciting({1, kEndId, 24}), params), (Pieces{"a", "<e(0:0)", ""}));
  params.stop = {"a<eos>"};
  EXPECT_EQ(marked_pieces(reciting({2, 1, kEndId}), params), (Pieces{"b", "", ""}));
  params.include_stop_str_in_output = true;
  EXPECT_EQ(marked_pieces(reciting({2, 1, kEndId}), params), (Pieces{"b", "", "a<eos>(1:0)"}));
}

TEST(EngineMarks, StandBehindTheBytesThatTheirTokensComplete) {
  const auto pieces = [](std::vector<int32_t> script) {
    auto tokenizer = Tokenizer::from_json(
        R"({"added_tokens":[{"id":4,"content":"</t>","special":false}],)"
        R"("decoder":{"type":"Sequence","decoders":[{"type":"ByteFallback"},{"type":"Fuse"}]},)"
        R"("model":{"type":"BPE","vocab":{"<eos>":0,"<0xC3>":1,"<0xA9>":2,"a":3},"merges":[]}})",
        "bytes");
    const auto count = static_cast<int>(script.size());
    return marked_pieces(reciting(std::move(script), std::move(tokenizer)), marking({4}, count));
  };
  EXPECT_EQ(pieces({1, 2, 4, 3, 4}), (Pieces{"", "", "é</t>(2:4)", "a", "</t>(0:4)"}));
  EXPECT_EQ(pieces({1, 4, 1, 1, 4}),
            (Pieces{"", "\uFFFD</t>(3:4)", "", "", "\uFFFD\uFFFD</t>(6:4)"}));
}

TEST(EngineMarks, AreOfTheWholeTextWhereAllOfItIsTold) {
  SamplingParams params = marking({kEndId, 2}, 4);
  params.ignore_eos = true;
  const auto outputs = recite({1, kEndId, 2, kEndId}, params);
  EXPECT_EQ(last_of(outputs).text, "a<eos>b<eos>");
  EXPECT_EQ(last_of(outputs).marks, (std::vector<TokenMark>{{1, kEndId}, {6, 2}, {7, kEndId}}));
}

// --- text after a prompt ---

constexpr const char* kPrompt = "hello wor";

std::unique_ptr<const Tokenizer> sentence_piece() {
  return text::make_tokenizer(text::sentence_piece_json());
}

// The text of one request after kPrompt.
CompletionOutput continued(const std::string& text, SamplingParams params) {
  const auto core = reciting(sentence_piece()->encode(text, false), sentence_piece());
  params.temperature = 0;
  core->add_request(kPrompt, params);
  std::vector<RequestOutput> outputs;
  while (!core->is_finished()) outputs = core->step();
  return last_of(outputs);
}

TEST(EngineText, GoesOnWhereThePromptEnds) {
  SamplingParams params;
  params.max_tokens = 2;
  EXPECT_EQ(continued("hello wor", params).text, " hello wor");
  params.skip_special_tokens = false;
  EXPECT_EQ(continued("hello wor", params).text, " hello wor");
  params.stop = {" hello"};
  const CompletionOutput stopped = continued("hello wor", params);
  EXPECT_EQ(stopped.text, "");
  EXPECT_EQ(stopped.stop_reason, StopReason(" hello"));
  EXPECT_EQ(stopped.token_ids.size(), 1u);
}

TEST(EngineText, GoesOnWhereThePromptEndsInEveryCompletionAfterPreemption) {
  std::vector<int32_t> script;
  std::string expected;
  for (int i = 0; i < 24; ++i) {
    script.push_back(sentence_piece()->token_to_id("▁hello").value());
    expected += " hello";
  }
  const auto core =
      reciting(script, sentence_piece(), 2);  // each completion needs two, and shares one
  SamplingParams params;
  params.n = 2;
  params.max_tokens = 24;
  params.output_kind = RequestOutputKind::kFinalOnly;
  core->add_request(kPrompt, params);
  std::vector<RequestOutput> outputs;
  while (!core->is_finished()) outputs = core->step();
  EXPECT_GT(outputs.at(0).num_preemptions, 0);
  for (const CompletionOutput& completion : outputs[0].outputs) {
    EXPECT_EQ(completion.text, expected);
  }
}

TEST(EngineText, OfNoTokenIsEmptyAfterAPromptThatEndsInsideACharacter) {
  const auto core = reciting({kEndId});
  core->add_request(std::vector<int32_t>{1, 28}, {});
  EXPECT_EQ(last_of(core->step()).text, "");
}

TEST(EngineText, TakesTheCharacterThatThePromptBegan) {
  const auto core = reciting({29, 1, kEndId});
  core->add_request(std::vector<int32_t>{1, 28}, {});
  EXPECT_EQ(last_of(core->step()).text, "é");
  EXPECT_EQ(last_of(core->step()).text, "éa");
}

TEST(EngineStopStrings, EndTheTextBeforeThemAndHoldBackWhatMayBecomeThem) {
  SamplingParams params;
  params.stop = {"zzz", "the end"};
  const auto outputs = recite(ids_of("it was the endless"), params);
  const CompletionOutput last = last_of(outputs);
  EXPECT_EQ(last.text, "it was ");
  EXPECT_EQ(last.finish_reason, FinishReason::kStop);
  EXPECT_EQ(last.stop_reason, StopReason("the end"));
  EXPECT_EQ(last.token_ids, ids_of("it was the end"));
  for (const RequestOutput& output : outputs) {
    EXPECT_EQ(std::string("it was ").rfind(output.outputs[0].text, 0), 0u)
        << output.outputs[0].text;
  }
}

TEST(EngineStopStrings, StayInTheTextWhenAskedFor) {
  SamplingParams params;
  params.stop = {"the end"};
  params.include_stop_str_in_output = true;
  EXPECT_EQ(last_of(recite(ids_of("it was the endless"), params)).text, "it was the end");
}

TEST(EngineStopStrings, WinOverTheLengthAtTheSameToken) {
  SamplingParams params;
  params.stop = {"bc"};
  params.max_tokens = 3;
  const CompletionOutput last = last_of(recite(ids_of("abcd"), params));
  EXPECT_EQ(last.finish_reason, FinishReason::kStop);
  EXPECT_EQ(last.text, "a");
}

TEST(EngineStopStrings, ThatOnlyBeganBelongToTheText) {
  SamplingParams params;
  params.stop = {"the end"};
  const auto by_eos = last_of(recite(ids_of("it was the en"), params));
  EXPECT_EQ(by_eos.text, "it was the en");
  EXPECT_EQ(by_eos.stop_reason, StopReason(kEndId));
  params.max_tokens = 9;
  const auto by_length = last_of(recite(ids_of("it was the end"), params));
  EXPECT_EQ(by_length.text, "it was th");
  EXPECT_EQ(by_length.finish_reason, FinishReason::kLength);
}

TEST(EngineStopStrings, DoNotStopWithinMinTokens) {
  SamplingParams params;
  params.stop = {"ab"};
  params.min_tokens = 4;
  const CompletionOutput last = last_of(recite(ids_of("abcdabcd"), params));
  EXPECT_EQ(last.text, "abcd");
  EXPECT_EQ(last.token_ids, ids_of("abcdab"));
  params.stop = {"b"};
  params.min_tokens = 2;  // the second token is one of them
  EXPECT_EQ(last_of(recite(ids_of("abcb"), params)).text, "abc");
}

TEST(EngineStopStrings, CountWhereTheyEndAfterMinTokensWhereverTheyBegin) {
  SamplingParams params;
  params.stop = {"cd"};
  params.min_tokens = 3;
  const auto outputs = recite(ids_of("abcde"), params);
  EXPECT_EQ(last_of(outputs).text, "ab");
  EXPECT_EQ(last_of(outputs).token_ids, ids_of("abcd"));
  EXPECT_EQ(last_of(outputs).stop_reason, StopReason("cd"));
  EXPECT_EQ(outputs.at(2).outputs[0].text, "ab");  // "c" may become part of it
  params.stop = {"aa"};
  params.min_tokens = 2;
  EXPECT_EQ(last_of(recite(ids_of("aaab"), params)).text, "a");
  params.stop = {"ab"};
  params.max_tokens = 2;
  EXPECT_EQ(last_of(recite(ids_of("ab"), params)).text, "ab");
}

TEST(EngineText, ATokenThatStopsDoesNotWithinMinTokens) {
  SamplingParams params;
  params.min_tokens = 4;
  params.stop_token_ids = {2};
  EXPECT_EQ(last_of(recite({1, 2, kEndId, 3, 2, 4}, params)).token_ids.size(), 5u);
}

TEST(EngineStopStrings, HeldBackTextIsShownWhenTheRequestIsAborted) {
  const auto core = reciting(ids_of("it was the end"));
  SamplingParams params;
  params.stop = {"the end"};
  const uint64_t id = core->add_request("abc", params);
  for (int i = 0; i < 9; ++i) core->step();
  core->abort_request(id);
  const auto outputs = core->step();
  ASSERT_EQ(outputs.size(), 1u);
  EXPECT_EQ(outputs[0].outputs[0].text, "it was th");
  EXPECT_EQ(outputs[0].outputs[0].finish_reason, FinishReason::kAbort);
}

TEST(EngineText, LogprobsCarryTheTextOfTheirTokens) {
  SamplingParams params;
  params.logprobs = 1;
  const CompletionOutput last = last_of(recite(ids_of("hi"), params));
  ASSERT_EQ(last.logprobs.size(), 3u);
  EXPECT_EQ(last.logprobs[0][0].decoded_token, "h");
  EXPECT_EQ(last.logprobs[0][1].decoded_token, " ");
  EXPECT_EQ(last.logprobs[2][0].decoded_token, "<eos>");
}

TEST(EngineText, ARowWithoutADistributionEndsItsRequestAlone) {
  const auto core = reciting({1, 2, -1});
  core->add_request("abc", {});
  std::vector<RequestOutput> outputs;
  while (!core->is_finished()) outputs = core->step();
  const CompletionOutput& last = outputs.at(0).outputs[0];
  EXPECT_EQ(last.text, "ab");
  EXPECT_EQ(last.finish_reason, FinishReason::kAbort);
  EXPECT_EQ(last.stop_reason, StopReason("the model's logits leave no token to draw"));
}

TEST(EngineText, ATokenThatCannotBeDecodedEndsItsRequestAlone) {
  const Ids hard = greedy_tokens(prompt_of(5), 3), easy = greedy_tokens(prompt_of(7, 20), 8);
  ASSERT_EQ(std::ranges::count(hard, hard[2]), 1);
  ASSERT_EQ(std::ranges::count(easy, hard[2]), 0);
  SamplingParams stopping = greedy(8);
  stopping.stop_token_ids = {hard[2]};
  stopping.include_stop_str_in_output = true;
  for (const int depth : {0, 1}) {
    // Would go on behind that token, or end with it.
    for (const SamplingParams& params : {greedy(8), greedy(3), stopping}) {
      FakeEngine engine = make_fake_engine({.pipeline_depth = depth}, words(hard[2]));
      const uint64_t first = engine.core->add_request(prompt_of(5), params);
      const uint64_t second = engine.core->add_request(prompt_of(7, 20), greedy(8));
      std::map<uint64_t, CompletionOutput> last;
      for (int i = 0; i < 20 && !engine.core->is_finished(); ++i) {
        for (auto& output : engine.core->step()) last[output.request_id] = output.outputs[0];
        ASSERT_EQ(engine.core->check_integrity(), "");
      }
      EXPECT_TRUE(engine.core->is_finished());
      EXPECT_EQ(last[first].finish_reason, FinishReason::kAbort);
      const auto* reason = std::get_if<std::string>(&last[first].stop_reason);
      ASSERT_NE(reason, nullptr);
      EXPECT_NE(reason->find("gave up on a text of 61 bytes"), std::string::npos) << *reason;
      EXPECT_EQ(last[first].text, fmt::format("w{}w{}", hard[0], hard[1]));
      EXPECT_EQ(last[second].finish_reason, FinishReason::kLength);
      EXPECT_EQ(last[second].token_ids, easy);
    }
  }
}

}  // namespace
}  // namespace nanovllm
