#include "server/fleet/request_stream.h"

#include <gtest/gtest.h>

namespace nanovllm::server {
namespace {

RequestDelta letters(int index, const std::string& text) {
  RequestDelta delta{.id = 1, .index = index, .text = text};
  for (const char letter : text) {
    delta.token_ids.push_back(letter);
    delta.logprobs.push_back({{letter, -1, 1, std::nullopt}});
  }
  return delta;
}

// What nobody reads is one delta a completion, however long it takes.
TEST(RequestStream, MergesWhatIsNotRead) {
  StreamBuffer buffer;
  buffer.append(PromptLogprobs{.id = 1}, false);
  for (int i = 0; i < 1000; ++i) {
    buffer.append(letters(0, "ab"), false);
    if (i % 2 == 0) buffer.append(letters(1, "c"), false);
  }
  buffer.append(RequestEnd{.id = 1, .index = 1}, false);
  buffer.append(letters(0, "x"), false);
  const std::vector<EngineEvent> events = buffer.take();
  ASSERT_EQ(events.size(), 4u);
  EXPECT_TRUE(std::holds_alternative<PromptLogprobs>(events[0]));
  std::string text;
  for (int i = 0; i < 1000; ++i) text += "ab";
  EXPECT_EQ(std::get<RequestDelta>(events[1]), letters(0, text + "x"));
  EXPECT_EQ(std::get<RequestDelta>(events[2]), letters(1, std::string(500, 'c')));
  EXPECT_EQ(std::get<RequestEnd>(events[3]).index, 1);
  EXPECT_TRUE(buffer.take().empty());
  buffer.append(letters(0, "y"), false);
  EXPECT_EQ(std::get<RequestDelta>(buffer.take().at(0)), letters(0, "y"));
}

TEST(RequestStream, KeepsMarksAtTheirPlacesWhenItMerges) {
  const auto marked = [](int index, const std::string& text, std::vector<TokenMark> marks) {
    RequestDelta gained = letters(index, text);
    gained.marks = std::move(marks);
    return gained;
  };
  StreamBuffer buffer;
  buffer.append(marked(0, "ab", {{1, 7}}), false);
  buffer.append(marked(1, "x", {{0, 8}}), false);
  buffer.append(marked(0, "", {}), false);
  buffer.append(marked(0, "cde", {{0, 7}, {2, 9}}), false);
  buffer.append(marked(0, "f", {{0, 7}}), false);
  const std::vector<EngineEvent> events = buffer.take();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(std::get<RequestDelta>(events[0]),
            marked(0, "abcdef", {{1, 7}, {2, 7}, {4, 9}, {5, 7}}));
  EXPECT_EQ(std::get<RequestDelta>(events[1]), marked(1, "x", {{0, 8}}));
}

TEST(RequestStream, WakesOnceAndOnlyWhoWaits) {
  StreamBuffer buffer;
  int num_calls = 0;
  const auto wake = [&] { ++num_calls; };
  EXPECT_FALSE(buffer.append(letters(0, "a"), false));
  buffer.on_ready(wake);  // at once, for what is there
  EXPECT_EQ(num_calls, 1);
  EXPECT_FALSE(buffer.append(letters(0, "b"), false));
  buffer.take();
  buffer.on_ready(wake);
  buffer.on_ready(wake);  // in the first one's place
  EXPECT_EQ(num_calls, 1);
  buffer.append(letters(0, "c"), false)();
  EXPECT_EQ(num_calls, 2);
  EXPECT_FALSE(buffer.append(RequestEnd{.id = 1, .last = true}, true));
  buffer.take();
  buffer.on_ready(wake);  // nothing more comes
  EXPECT_EQ(num_calls, 3);
}

TEST(RequestStream, WakesAtTheEndWhoWantsAllAtOnce) {
  StreamBuffer buffer;
  int num_calls = 0;
  const auto wake = [&] { ++num_calls; };
  buffer.append(letters(0, "a"), false);
  buffer.on_end(wake);
  EXPECT_FALSE(buffer.append(letters(0, "b"), false));
  EXPECT_EQ(num_calls, 0);
  const auto end = buffer.append(RequestEnd{.id = 1, .last = true}, true);
  ASSERT_TRUE(end);
  EXPECT_EQ(buffer.take().size(), 2u);
  buffer.on_end(wake);  // nothing more comes
  EXPECT_EQ(num_calls, 1);
  StreamBuffer other;
  other.on_end(wake);
  other.on_ready(wake);  // in the first one's place
  EXPECT_TRUE(other.append(letters(0, "c"), false));
}

TEST(RequestStream, EndsItsRequestOnce) {
  int num_ends = 0;
  const auto end = [&] { ++num_ends; };
  const auto cancelled = std::make_shared<StreamBuffer>();
  {
    BufferedStream stream(cancelled, end);
    cancelled->append(letters(0, "a"), false);
    stream.cancel();
    EXPECT_TRUE(stream.take().empty());
    EXPECT_FALSE(cancelled->append(letters(0, "b"), false));
    EXPECT_TRUE(stream.take().empty());
  }
  EXPECT_EQ(num_ends, 1);
  { BufferedStream stream(std::make_shared<StreamBuffer>(), end); }
  EXPECT_EQ(num_ends, 2);
  const auto over = std::make_shared<StreamBuffer>();
  over->append(RequestEnd{.id = 1, .last = true}, true);
  { BufferedStream stream(over, end); }
  EXPECT_EQ(num_ends, 2);
}

}  // namespace
}  // namespace nanovllm::server
