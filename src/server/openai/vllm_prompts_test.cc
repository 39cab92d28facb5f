// Prompts of published chat templates beside those that vLLM 0.32 makes of the same bodies
// (tests/data/vllm_prompts.json, by tools/record_vllm_prompts.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>

#include "base/testing.h"
#include "io/reference_data_testing.h"
#include "server/openai/chat_prompt.h"
#include "server/openai/protocol_testing.h"

namespace nanovllm::server {
namespace {

namespace fs = std::filesystem;

std::string text_of_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// As the recorder has it, for which the format of a date is the date.
std::string without_clock(std::string source) {
  constexpr std::string_view kClock = "strftime_now(";
  for (size_t at = source.find(kClock); at != source.npos; at = source.find(kClock, at + 1)) {
    source.erase(at, kClock.size() - 1);
  }
  return source;
}

Json fnv1a(const std::string& text) {
  uint64_t value = 0xCBF29CE484222325;
  for (const char c : text) value = (value ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  return fmt::format("{:016x}", value);
}

// Null where it is refused.
std::optional<std::string> prompt_of_body(const Json& body, const ServedModel& model) {
  try {
    return render_chat(RequestFields(body.dump(), "ChatRequest", model), model).text;
  } catch (const ApiError&) {
    return std::nullopt;
  }
}

// Where ours is as good as vLLM's for another conversation, which says the same better.
const std::multimap<std::string, std::string> kSaysTheSame = {
    // vLLM joins parts by a line break, which nobody wrote.
    {"parts", "one part"},
    {"parts of all", "two turns"},
    {"a result in parts", "a tool loop"},
    {"a result in parts", "a tool loop with mapped ids"},
    {"a beginning in parts", "a beginning"},
    // It gives templates all that there are; some show the last one alone, some refuse the second.
    {"two system messages", "two system messages as one"},
    // Where a template does not show them in their place, they are the user's there. vLLM leaves it
    // to the template, which drops, refuses or moves them; with a developer among them it moves all
    // to the head, so that nothing of the dialogue before is found in the prefix cache.
    {"a late system message", "a late system message as the user's"},
    {"a late system message", "a late system message in the user's"},
    {"a late developer", "a late system message"},
    {"a late developer", "a late system message as the user's"},
    {"a late developer", "a late system message in the user's"},
    {"a system message behind the user", "a system message as the user's"},
    // Some templates refuse the user behind the user, and get one message.
    {"a late system message as the user's", "a late system message in the user's"},
    // It makes {} of what is encoded twice or has a raw line break.
    {"arguments in a text", "a tool loop"},
    {"arguments in a text", "a tool loop with mapped ids"},
    {"arguments with a line break", "arguments with an escaped line break"},
    // Templates that want short ids refuse vLLM's own.
    {"a tool loop", "a tool loop with mapped ids"},
};

struct Otherwise {
  std::set<std::string> conversations;
  const char* why;
};

const std::set<std::string> kSilentCalls = {"a result in parts",
                                            "a tool loop",
                                            "a tool loop with mapped ids",
                                            "a tool loop with short ids",
                                            "arguments in a text",
                                            "arguments that are none",
                                            "arguments with a line break",
                                            "arguments with an escaped line break",
                                            "no arguments",
                                            "two calls"};
const std::set<std::string> kWithSystem = {"a developer",
                                           "a late developer",
                                           "a late system message",
                                           "a late system message as the user's",
                                           "a late system message in the user's",
                                           "a system message",
                                           "a system message and a developer",
                                           "a system message as the user's",
                                           "a system message behind the user",
                                           "parts of all",
                                           "tools",
                                           "two system messages",
                                           "two system messages as one",
                                           "two turns"};

std::set<std::string> with_words(std::set<std::string> calls) {
  calls.insert("a tool loop with words");
  return calls;
}

// By template, where ours is another for good reason.
const std::map<std::string, Otherwise> kReasonsByTemplate = {
    {"Mistral-Small-3.2-24B-Instruct-2506.jinja",
     {{"a tool loop with words", "arguments that are none", "arguments with a line break",
       "arguments with an escaped line break", "no arguments", "two calls"},
      "refuses there the ids that vLLM gives out"}},
    {"mistralai-Ministral-3-14B-Reasoning-2512.jinja",
     {{"a tool loop with words", "reasoning", "reasoning by its older name"},
      "has thoughts as parts of the content only, of which vLLM makes none"}},
    {"mistralai-Mistral-Nemo-Instruct-2407.jinja",
     {with_words(kSilentCalls),
      "has the arguments before the name there, which the client wrote "
      "behind it, as the model does; and refuses ids"}},
    {"unsloth-mistral-Devstral-Small-2507.jinja",
     {kSilentCalls, "fails there at the empty list that vLLM makes of an empty content"}},
    {"meetkai-functionary-medium-v3.2.jinja",
     {with_words(kSilentCalls), "fails there at arguments that are no text"}},
    {"deepseek-ai-DeepSeek-R1-Distill-Llama-8B.jinja",
     {kSilentCalls, "drops there calls whose content is empty, but not null"}},
    {"deepseek-ai-DeepSeek-V3.2.jinja",
     {{"a developer", "a system message and a developer"},
      "knows the word developer, by which vLLM goes, and shows nothing of the message"}},
    {"google-gemma-4-31B-it.jinja",
     {kWithSystem, "writes there a Python list, as it goes through others' parts only"}},
    {"google-gemma-4-31B-it-interleaved.jinja",
     {kWithSystem, "writes there a Python list, as it goes through others' parts only"}},
    {"moonshotai-Kimi-K2.jinja",
     {{"a tool loop with words"}, "writes there a Python list beside calls"}},
    {"openai-gpt-oss-120b.jinja",
     {{"a tool loop with words"},
      "takes one text beside calls, be it content or thinking; vLLM drops the reasoning"}},
};

bool is_otherwise(const std::string& file, const std::string& conversation) {
  const auto found = kReasonsByTemplate.find(file);
  return found != kReasonsByTemplate.end() && found->second.conversations.contains(conversation);
}

class VllmPrompts : public testing::ReferenceDataTest {
 protected:
  VllmPrompts() : ReferenceDataTest({"chat-templates"}) {}
};

INSTANTIATE_TEST_SUITE_P(All, VllmPrompts, testing::kExtents, testing::name_of_extent);

// Those of the templates that were recorded.
TEST_P(VllmPrompts, AreOurs) {
  const Json record = Json::parse(text_of_file(test::source_path("tests/data/vllm_prompts.json")));
  const Json& conversations = record["conversations"];
  std::map<std::string, size_t> index_of;
  for (size_t i = 0; i < conversations.size(); ++i) index_of[conversations[i]["name"]] = i;
  LetterModel letters;
  letters.served.format.tool_call_parser = "brackets";
  const fs::path templates = folder("chat-templates") / (is_whole() ? "templates" : "");
  int count = 0;
  for (const auto& [name, prompts] : record["templates"].items()) {
    if (!fs::exists(templates / name)) continue;
    ++count;
    const ChatTemplate chat_template(without_clock(text_of_file(templates / name)));
    letters.served.preparer.chat_template = &chat_template;
    for (const auto& [conversation, i] : index_of) {
      const auto prompt = prompt_of_body(conversations[i]["body"], letters.served);
      const Json ours = prompt ? fnv1a(*prompt) : Json();
      bool is_same = ours == prompts[i];
      const auto [begin, end] = kSaysTheSame.equal_range(conversation);
      for (auto same = begin; same != end; ++same) {
        is_same = is_same || (prompt && ours == prompts[index_of.at(same->second)]);
      }
      const bool otherwise = is_otherwise(name, conversation);
      EXPECT_NE(is_same, otherwise)
          << name << ", " << conversation << ": " << prompt.value_or("refused");
      EXPECT_TRUE(prompt || !otherwise) << name << ", " << conversation;
    }
  }
  EXPECT_EQ(count, is_whole() ? 56 : 23);
}

}  // namespace
}  // namespace nanovllm::server
