// Sessions of both APIs by the chat templates of published models.
#include <filesystem>

#include "server/agents/agents_testing.h"
#include "server/agents/messages_request.h"
#include "server/agents/responses_request.h"

namespace nanovllm::server {
namespace {

// The head that a client sends at once, a turn with two calls, and what comes behind it.
constexpr const char* kCodexSession = R"({"instructions":"alpha","input":[
    {"type":"message","role":"developer","content":[{"type":"input_text","text":"bravo"}]},
    {"type":"message","role":"developer","content":[{"type":"input_text","text":"charlie"}]},
    {"type":"message","role":"user","content":[{"type":"input_text","text":"delta"}]},
    {"type":"message","role":"user","content":[{"type":"input_text","text":"echo"}]},
    {"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"hm"}]},
    {"role":"assistant","content":[{"type":"output_text","text":"said"}]},
    {"type":"function_call","call_id":"call_1","name":"f","arguments":"{\"x\": 1}"},
    {"type":"custom_tool_call","call_id":"call_2","name":"g","input":"patch"},
    {"type":"function_call_output","call_id":"call_1","output":"one"},
    {"type":"custom_tool_call_output","call_id":"call_2",
     "output":[{"type":"input_text","text":"two"}]},
    {"role":"assistant","content":[{"type":"output_text","text":"foxtrot"}]},
    {"role":"developer","content":"golf"},{"role":"user","content":"hotel"}],
    "tools":[{"type":"function","name":"f","parameters":{"type":"object","properties":{}}},
    {"type":"custom","name":"g"}],
    "chat_template_kwargs":{"bos_token":"<s>","eos_token":"</s>"}})";
constexpr const char* kClaudeSession = R"({"model":"letters","max_tokens":9,"system":[
    {"type":"text","text":"x-anthropic-billing-header: cc_version=2;"},
    {"type":"text","text":"alpha"},{"type":"text","text":"bravo"}],"messages":[
    {"role":"user","content":[{"type":"text","text":"charlie"},{"type":"text","text":"delta"}]},
    {"role":"system","content":[{"type":"text","text":"echo"}]},
    {"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},
    {"type":"text","text":"said"},{"type":"tool_use","id":"toolu_1","name":"f","input":{"x":1}},
    {"type":"tool_use","id":"toolu_2","name":"f","input":{}}]},
    {"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","content":"one"},
    {"type":"tool_result","tool_use_id":"toolu_2","content":[{"type":"text","text":"two"}]}]},
    {"role":"assistant","content":"foxtrot"},{"role":"user","content":[
    {"type":"text","text":"golf"},{"type":"text","text":"hotel"}]}],
    "tools":[{"name":"f","input_schema":{"type":"object","properties":{}}}],
    "chat_template_kwargs":{"bos_token":"<s>","eos_token":"</s>"}})";
// What no template drops: nothing but thoughts, and tools and what is said beside them.
constexpr const char* kKept[] = {"alpha", "bravo",   "charlie", "delta",
                                 "echo",  "foxtrot", "golf",    "hotel"};

TEST(AgentTemplates, EveryTemplateTakesASessionAndShowsAllThatWasSaid) {
  LetterModel letters;
  int num_templates = 0;
  const std::string folder = test::source_path("tests/data/chat_templates");
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".jinja") continue;
    const std::string name = entry.path().stem();
    const ChatTemplate chat_template(template_source(name));
    letters.served.preparer.chat_template = &chat_template;
    const bool has_channels = name.find("gpt-oss") != name.npos;
    letters.served.format =
        has_channels ? TranscriptFormat{"openai_gptoss", "openai"} : TranscriptFormat{"", "hermes"};
    const Json chats[] = {
        translate_responses(RequestFields(kCodexSession, kResponsesRequest, letters.served)).chat,
        read_messages(kClaudeSession, letters.served, false).chat};
    for (const Json& chat : chats) {
      const std::string text = agent_request(chat, letters.served).prompt().text;
      // A template may show the system message beside the last words of the user.
      for (const char* word : kKept) EXPECT_NE(text.find(word), text.npos) << name << text;
      EXPECT_LT(text.find("delta"), text.find("foxtrot")) << name << text;
      EXPECT_LT(text.find("foxtrot"), text.find("golf")) << name << text;
      EXPECT_LT(text.find("golf"), text.find("hotel")) << name << text;
      EXPECT_EQ(text.find("x-anthropic"), text.npos) << name;
    }
    ++num_templates;
  }
  EXPECT_GT(num_templates, 15);
}

}  // namespace
}  // namespace nanovllm::server
