// Log-probabilities of /v1/responses, whatever pieces an answer comes in.
#include "server/agents/block_logprobs.h"

#include "engine/deltas.h"
#include "server/agents/agents_testing.h"
#include "server/agents/responses_api.h"

namespace nanovllm::server {
namespace {

// Tokens of ASCII's characters, of bytes, and of tags; its words are taken apart as Qwen3's.
struct SpellingModel : LetterModel {
  SpellingModel() {
    Json vocab = {{"\n", 0}}, added = Json::array();
    for (char c = ' '; c <= '~'; ++c) vocab[std::string(1, c)] = vocab.size();
    for (const char* byte : {"<0xC3>", "<0xA9>"}) vocab[byte] = vocab.size();
    for (const char* tag : {"<think>", "</think>", "<|im_end|>"}) {
      added.push_back({{"id", vocab.size() + added.size()}, {"content", tag}, {"special", true}});
    }
    const Json decoders = {{{"type", "ByteFallback"}}, {{"type", "Fuse"}}};
    tokenizer = Tokenizer::from_json(
        Json({{"added_tokens", added},
              {"decoder", {{"type", "Sequence"}, {"decoders", decoders}}},
              {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", Json::array()}}}})
            .dump(),
        "spelling");
    served.preparer.tokenizer = tokenizer.get();
    served.preparer.info.vocab_size = tokenizer->vocab_size();
    served.format = {"qwen3", "hermes"};
    served.tags = transcript_tags(served.format, *tokenizer);
    served.make_parser = make_transcript_parser;
  }

  // What an engine tells of these tokens, one by one. What ends an answer has no text.
  std::vector<RequestDelta> pieces(const std::vector<std::string>& spellings) const {
    Detokenizer detokenizer(*tokenizer, true);
    std::vector<RequestDelta> pieces;
    for (const std::string& spelling : spellings) {
      const int32_t id = tokenizer->token_to_id(spelling).value();
      const bool is_tag = served.tags.ids.contains(spelling);
      RequestDelta piece = delta(0, detokenizer.append(id, is_tag), {id});
      if (is_tag) piece.marks = {{piece.text.size() - spelling.size(), id}};
      piece.logprobs = {{logprob(id, -0.5f, 1, spelling)}};
      pieces.push_back(std::move(piece));
    }
    return pieces;
  }
};

std::vector<std::string> spelled_answer() {
  std::vector<std::string> tokens = {"<think>", "h", "m", "</think>", "\n", "\n", "b"};
  const auto add = [&](std::string_view text) {
    for (const char c : text) tokens.emplace_back(1, c);
  };
  add("<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>c");
  tokens.insert(tokens.end(), {"<0xC3>", "<0xA9>"});
  add(" <too");  // which the parser holds back until the end
  tokens.emplace_back("<|im_end|>");
  return tokens;
}

constexpr const char* kLogprobsBody =
    R"({"input":"ab","top_logprobs":1,"include":["message.output_text.logprobs"],
    "tools":[{"type":"function","name":"f"}])";

// The texts of the tokens in a list.
std::string spelled(const Json& logprobs) {
  std::string text;
  for (const Json& entry : logprobs) text += entry["token"].get<std::string>();
  return text;
}

// In pieces of one token each, or of random numbers of them.
std::vector<EngineEvent> merged(const std::vector<RequestDelta>& pieces, unsigned one_in,
                                std::mt19937& random) {
  std::vector<EngineEvent> events;
  for (RequestDelta piece : pieces) {
    if (events.empty() || random() % one_in == 0) {
      events.emplace_back(std::move(piece));
    } else {
      append_delta(std::get<RequestDelta>(events.back()), std::move(piece));
    }
  }
  events.emplace_back(end(0));
  return events;
}

TEST(BlockLogprobs, AreThoseOfTheTextsTokensHoweverTheyCome) {
  const SpellingModel model;
  const auto pieces = model.pieces(spelled_answer());
  std::mt19937 random(5);
  for (const unsigned one_in : {1U, 2U, 5U, 20U, 1000U}) {
    const auto call = parse_responses(kLogprobsBody + std::string("}"), model.served, "7");
    const Json answer = Json::parse(told(*call, merged(pieces, one_in, random)));
    std::string texts;
    size_t num_entries = 0;
    for (const Json& item : answer["output"]) {
      if (item["type"] != "message") continue;
      const Json& part = item["content"][0];
      EXPECT_EQ(spelled(part["logprobs"]), part["text"]) << one_in;
      texts += part["text"].get<std::string>() + "|";
      num_entries += part["logprobs"].size();
    }
    EXPECT_EQ(texts, "b|c\u00e9 <too|");
    EXPECT_EQ(num_entries, 9u);  // the character of two bytes has two
    EXPECT_EQ(answer["output"][1]["content"][0]["logprobs"].dump(),
              R"([{"token":"b","logprob":-0.5,"bytes":[98],)"
              R"("top_logprobs":[{"token":"b","logprob":-0.5,"bytes":[98]}]}])");
    EXPECT_EQ(answer["top_logprobs"], 1);
  }
}

TEST(BlockLogprobs, ComeWithTheirTextsAndOnceMoreWithTheItem) {
  const SpellingModel model;
  const auto pieces = model.pieces(spelled_answer());
  std::mt19937 random(6);
  for (const bool one_by_one : {true, false}) {
    const auto call =
        parse_responses(kLogprobsBody + std::string(R"(,"stream":true})"), model.served, "7");
    EXPECT_TRUE(call->wants_events_soon);
    EXPECT_EQ(call->requests[0].params.logprobs, 1);
    const std::string stream = told(*call, merged(pieces, 1, random), one_by_one);
    std::string texts;
    size_t num_told = 0;
    for (size_t at = stream.find("data: {"); at != stream.npos; at = stream.find("data: {", at)) {
      at += 6;
      const Json event = Json::parse(stream.substr(at, stream.find("\n\n", at) - at));
      if (event["type"] == "response.output_text.delta") {
        EXPECT_EQ(spelled(event["logprobs"]), event["delta"]);
        texts += event["delta"].get<std::string>();
      } else if (event["type"] == "response.output_text.done") {
        EXPECT_TRUE(event["logprobs"].empty());
      } else if (event["type"] == "response.content_part.done") {
        EXPECT_TRUE(event["part"].value("logprobs", Json::array()).empty());
      }
      const std::string text = event.dump();
      for (size_t i = text.find("top_logprobs\":[{"); i != text.npos;
           i = text.find("top_logprobs\":[{", i + 1)) {
        ++num_told;
      }
    }
    EXPECT_EQ(texts, "bc\u00e9 <too");
    EXPECT_EQ(num_told, 3 * 9u);  // with the deltas, the items, and the response
  }
}

TEST(BlockLogprobs, AreLeftOutWhereNobodyAsks) {
  const SpellingModel model;
  EXPECT_FALSE(parse_responses(R"({"input":"ab","top_logprobs":1})", model.served, "7")
                   ->requests[0]
                   .params.logprobs);
}

}  // namespace
}  // namespace nanovllm::server
