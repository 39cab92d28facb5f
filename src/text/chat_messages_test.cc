// What happens to messages before a template reads them.
#include "text/chat_messages.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "io/reference_data_testing.h"
#include "nanovllm/chat.h"

namespace nanovllm::text {
namespace {

namespace fs = std::filesystem;

std::string source_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

Json said(const char* role, Json content) {
  return {{"role", role}, {"content", std::move(content)}};
}

Json parts_of(std::initializer_list<const char*> texts) {
  Json parts = Json::array();
  for (const char* text : texts) parts.push_back({{"type", "text"}, {"text", text}});
  return parts;
}

Json tool_named_find() {
  const Json parameter = {{"type", "string"}, {"description", "a key"}};
  const Json parameters = {{"type", "object"}, {"properties", {{"key", parameter}}}};
  const Json function = {{"name", "find"}, {"description", "d"}, {"parameters", parameters}};
  return Json::array({{{"type", "function"}, {"function", function}}});
}

// As the server gives it: null where there is nothing.
Json answer_with_call(const Json& content, const Json& reasoning, const Json& arguments,
                      const std::string& id = "chatcmpl-tool-0123456789abcdef") {
  const Json function = {{"name", "find"}, {"arguments", arguments}};
  return {{"role", "assistant"},
          {"content", content},
          {"refusal", nullptr},
          {"annotations", nullptr},
          {"audio", nullptr},
          {"function_call", nullptr},
          {"tool_calls", {{{"id", id}, {"type", "function"}, {"function", function}}}},
          {"reasoning", reasoning},
          {"reasoning_content", reasoning}};
}

Json result_of_call(const std::string& id = "chatcmpl-tool-0123456789abcdef") {
  return {{"role", "tool"}, {"tool_call_id", id}, {"content", "a wallaby"}};
}

TemplateHabits habits_with(void (*change)(TemplateHabits&)) {
  TemplateHabits habits;
  change(habits);
  return habits;
}
const TemplateHabits kPlain;

Json arguments_after(const Json& arguments, const TemplateHabits& habits = kPlain) {
  const Json messages =
      prepare_messages(Json::array({answer_with_call(nullptr, nullptr, arguments)}), habits);
  return messages[0]["tool_calls"][0]["function"]["arguments"];
}

TEST(ChatMessages, ArgumentsBecomeAnObject) {
  const Json object = {{"key", "a\nb"}};
  EXPECT_EQ(arguments_after(object), object);
  EXPECT_EQ(arguments_after(R"({"key": "a\nb"})"), object);
  EXPECT_EQ(arguments_after(Json(R"({"key": "a\nb"})").dump()), object);  // encoded twice
  EXPECT_EQ(arguments_after("{\"key\": \"a\nb\"}"), object);              // a raw line break
  EXPECT_EQ(arguments_after("{\n\t\"key\": \"a\nb\"\n}"), object);
  EXPECT_EQ(arguments_after("{\"key\": \"\xC3\xA4\\\"\t\\\n\"}"),
            Json({{"key", "\xC3\xA4\"\t\\\n"}}));
  for (const Json& none : {Json(), Json(""), Json("{"), Json("[1]"), Json("3"), Json(3),
                           Json::array({1}), Json("null"), Json("\"\"")}) {
    EXPECT_EQ(arguments_after(none), Json::object()) << none;
  }
  const Json nested = Json::parse(R"({"b": 1, "a": [1, {"c": null}], "d": 1.5, "e": {}})");
  EXPECT_EQ(arguments_after(nested.dump()).dump(), nested.dump());
  const TemplateHabits text =
      habits_with([](TemplateHabits& habits) { habits.wants_arguments_as_text = true; });
  EXPECT_EQ(arguments_after(nested, text), R"({"b": 1, "a": [1, {"c": null}], "d": 1.5, "e": {}})");
}

TEST(ChatMessages, ReasoningIsThereUnderAllNames) {
  for (const char* name : {"reasoning", "reasoning_content", "thinking"}) {
    Json message = said("assistant", "a");
    message[name] = "r";
    const Json result = prepare_messages(Json::array({message}), kPlain)[0];
    for (const char* read : {"reasoning", "reasoning_content", "thinking"}) {
      EXPECT_EQ(result[read], "r") << name << read;
    }
  }
  EXPECT_EQ(prepare_messages(Json::array({said("assistant", "a")}), kPlain)[0].size(), 2u);
}

Json thought_of(const char* text) {
  return {{"type", "thinking"}, {"thinking", text}, {"closed", true}};
}

TEST(ChatMessages, ThoughtsAmongThePartsAreReasoningAndNoWords) {
  const auto prepared = [](const Json& content) {
    return prepare_messages(Json::array({said("assistant", content)}), kPlain)[0];
  };
  const Json answer = prepared({thought_of("r"), "a", thought_of("s"), "b"});
  EXPECT_EQ(answer["content"], "ab");
  for (const char* name : {"reasoning", "reasoning_content", "thinking"}) {
    EXPECT_EQ(answer[name], "rs") << name;
  }
  const Json alone = prepared(Json::array({thought_of("r")}));
  EXPECT_EQ(alone["content"], "");
  EXPECT_EQ(alone["reasoning"], "r");
  EXPECT_FALSE(prepared({thought_of(""), "a"}).contains("reasoning"));
  const Json users = Json::array({said("user", {thought_of("r"), "a"})});
  EXPECT_EQ(prepare_messages(users, kPlain)[0], said("user", "ra"));  // whom no template lets think
}

TEST(ChatMessages, ReasoningIsAPartInFrontWhereTheTemplateHasItThere) {
  const TemplateHabits in_parts = habits_with([](TemplateHabits& habits) {
    habits.thoughts_in_parts = {"assistant", "system"};
    for (const char* role : {"assistant", "system"}) {
      habits.contents[role] = TemplateHabits::Content::kTextOrParts;
    }
  });
  const Json thought = {{"type", "thinking"}, {"thinking", "r"}};
  const Json text = {{"type", "text"}, {"text", "a"}};
  for (const char* name : {"reasoning", "reasoning_content", "thinking"}) {
    const auto content = [&](const Json& given, const char* reasoning = "r") -> Json {
      Json message = said("assistant", given);
      message[name] = reasoning;
      return prepare_messages(Json::array({message}), in_parts)[0]["content"];
    };
    EXPECT_EQ(content("a"), Json({thought, text})) << name;
    EXPECT_EQ(content(Json::array({"a"})), Json({thought, text})) << name;
    EXPECT_EQ(content(nullptr), Json::array({thought})) << name;
    EXPECT_EQ(content("a", ""), "a") << name;
    const Json in_place = {text, thought};
    EXPECT_EQ(content({"a", thought_of("r")}), in_place) << name;  // and not twice
  }
  const Json messages = {said("system", {"a", thought_of("r")}), said("user", "u"),
                         said("system", Json::array({thought_of("r")}))};
  const Json prepared = prepare_messages(messages, in_parts);
  EXPECT_EQ(prepared[0]["content"], Json({text, thought}));
  EXPECT_EQ(prepared[1]["content"], "u\n\nr");
}

TEST(ChatMessages, IdsOfCallsBecomeShortWhereTheTemplateWantsSuch) {
  const TemplateHabits mistral =
      habits_with([](TemplateHabits& habits) { habits.wants_short_call_ids = true; });
  std::set<std::string> ids;
  for (const char* id : {"toolu_01A09q90qw90lq917835lq9", "call_1", "call_2", "a1B2c3D4e",
                         "a1B2c3D4_", "chatcmpl-tool-0123456789abcdef", ""}) {
    const Json messages =
        prepare_messages({answer_with_call("", nullptr, "{}", id), result_of_call(id)}, mistral);
    const auto call = messages[0]["tool_calls"][0]["id"].get<std::string>();
    EXPECT_EQ(call.size(), 9u) << id;
    EXPECT_TRUE(std::ranges::all_of(call, [](unsigned char c) { return std::isalnum(c); })) << call;
    EXPECT_EQ(messages[1]["tool_call_id"], call) << id;
    EXPECT_EQ(short_call_id(call), call);
    ids.insert(call);
    const Json as_it_is =
        prepare_messages({answer_with_call("", nullptr, "{}", id), result_of_call(id)}, kPlain);
    EXPECT_EQ(as_it_is[0]["tool_calls"][0]["id"], id);
    EXPECT_EQ(as_it_is[1]["tool_call_id"], id);
  }
  EXPECT_EQ(ids.size(), 7u);
  EXPECT_TRUE(ids.contains("a1B2c3D4e"));
}

std::string roles_and_words(const Json& messages) {
  std::string text;
  for (const Json& message : messages) {
    text += fmt::format("{}({}) ", message["role"].get<std::string>(),
                        text_of_content(message["content"], ""));
  }
  return text;
}

TEST(ChatMessages, SystemMessagesAtTheHeadBecomeOne) {
  const Json head = {said("system", "a"), said("system", parts_of({"b", "c"})), said("user", "u")};
  EXPECT_EQ(roles_and_words(prepare_messages(head, kPlain)), "system(a\n\nbc) user(u) ");
  const Json empty = {said("system", ""), said("system", "b"), said("system", nullptr)};
  EXPECT_EQ(roles_and_words(prepare_messages(empty, kPlain)), "system(b) ");
}

TEST(ChatMessages, DevelopersAreSystemWhereTheTemplateDoesNotKnowThem) {
  const Json messages = {said("system", "a"), said("developer", "b"), said("user", "u")};
  EXPECT_EQ(roles_and_words(prepare_messages(messages, kPlain)), "system(a\n\nb) user(u) ");
  const TemplateHabits knows =
      habits_with([](TemplateHabits& habits) { habits.knows_developer = true; });
  EXPECT_EQ(roles_and_words(prepare_messages(messages, knows)), "system(a) developer(b) user(u) ");
}

TEST(ChatMessages, LateSystemMessagesStayOrBecomeTheUsersInTheirPlace) {
  const Json messages = {said("system", "h"),    said("user", "a"), said("assistant", "b"),
                         said("developer", "s"), said("user", "c"), said("system", "t")};
  EXPECT_EQ(roles_and_words(prepare_messages(messages, kPlain)),
            "system(h) user(a) assistant(b) user(s) user(c\n\nt) ");
  const TemplateHabits takes =
      habits_with([](TemplateHabits& habits) { habits.takes_late_system = true; });
  EXPECT_EQ(roles_and_words(prepare_messages(messages, takes)),
            "system(h) user(a) assistant(b) system(s) user(c) system(t) ");
  const Json before = {said("assistant", "b"), said("system", "s"), said("assistant", "c")};
  EXPECT_EQ(roles_and_words(prepare_messages(before, kPlain)),
            "assistant(b) user(s) assistant(c) ");
  const Json behind_result = {said("user", "a"), said("assistant", "b"), said("tool", "r"),
                              said("system", "s"), said("system", "t")};
  EXPECT_EQ(roles_and_words(prepare_messages(behind_result, kPlain)),
            "user(a) assistant(b) tool(r) user(s\n\nt) ");
  const TemplateHabits ends_with_results =
      habits_with([](TemplateHabits& habits) { habits.takes_user_behind_result = false; });
  EXPECT_EQ(roles_and_words(prepare_messages(behind_result, ends_with_results)),
            "user(a) assistant(b) tool(r\n\ns\n\nt) ");
  const TemplateHabits alternates =
      habits_with([](TemplateHabits& habits) { habits.takes_users_in_a_row = false; });
  EXPECT_EQ(roles_and_words(prepare_messages(messages, alternates)),
            "system(h) user(a) assistant(b) user(s\n\nc\n\nt) ");
  const Json into_parts = {said("user", parts_of({"a", "b"})), said("system", "s")};
  EXPECT_EQ(roles_and_words(prepare_messages(into_parts, kPlain)), "user(ab\n\ns) ");
}

TEST(ChatMessages, TheUsersJoinWhatIsBeforeThemWhereTheTemplateTakesNoneThere) {
  const Json messages = {said("user", "a"), said("user", parts_of({"b", "c"})),
                         said("assistant", "d"), said("tool", "e"), said("user", "f")};
  EXPECT_EQ(roles_and_words(prepare_messages(messages, kPlain)),
            "user(a) user(bc) assistant(d) tool(e) user(f) ");
  const TemplateHabits alternates =
      habits_with([](TemplateHabits& habits) { habits.takes_users_in_a_row = false; });
  EXPECT_EQ(roles_and_words(prepare_messages(messages, alternates)),
            "user(a\n\nbc) assistant(d) tool(e) user(f) ");
  const TemplateHabits ends_with_results =
      habits_with([](TemplateHabits& habits) { habits.takes_user_behind_result = false; });
  EXPECT_EQ(roles_and_words(prepare_messages(messages, ends_with_results)),
            "user(a) user(bc) assistant(d) tool(e\n\nf) ");
}

TEST(ChatMessages, OfManyMessagesEachIsPlacedInConstantTime) {
  constexpr int kMany = 100'000;
  Json late = {said("user", "u")}, head = {said("system", "s")};
  for (int i = 0; i < kMany; ++i) {
    late.push_back(said(i % 2 == 0 ? "assistant" : "system", "x"));
    head.push_back(said(i % 2 == 0 ? "developer" : "system", "x"));
  }
  EXPECT_EQ(prepare_messages(late, kPlain).size(), 1u + kMany);
  const TemplateHabits knows =
      habits_with([](TemplateHabits& habits) { habits.knows_developer = true; });
  EXPECT_EQ(prepare_messages(head, knows).size(), 1u + kMany / 2);
}

TEST(ChatMessages, ContentsHaveTheFormThatTheTemplateReads) {
  using Content = TemplateHabits::Content;
  const Json messages = {said("user", "a"), said("user", parts_of({"b", "c"})),
                         said("user", Json::array({"d"}))};
  const auto contents = [&](Content form) {
    TemplateHabits habits;
    habits.contents["user"] = form;
    Json result = Json::array();
    for (const Json& message : prepare_messages(messages, habits)) {
      result.push_back(message["content"]);
    }
    return result;
  };
  EXPECT_EQ(contents(Content::kText), Json({"a", "bc", "d"}));
  EXPECT_EQ(contents(Content::kTextOrParts), Json({"a", parts_of({"b", "c"}), parts_of({"d"})}));
  EXPECT_EQ(contents(Content::kParts),
            Json({parts_of({"a"}), parts_of({"b", "c"}), parts_of({"d"})}));
}

TEST(ChatMessages, ContentsThatAreNoTextAreRefusedByTheirPlace) {
  const std::pair<Json, const char*> wrong[] = {
      {3, "messages[1].content must be a text or a list of parts, got 3"},
      {Json::array({3}), "messages[1].content[0] must be a text or an object with a type"},
      {{{{"type", "text"}}}, "messages[1].content[0] has no text"},
      {{"a", {{"type", "image_url"}}}, "messages[1].content[1] is of the type \"image_url\""}};
  for (const auto& [content, reason] : wrong) {
    try {
      prepare_messages({said("user", "a"), said("user", content)}, kPlain);
      ADD_FAILURE() << content;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_EQ(std::string(error.what()).find(reason), 0u) << error.what();
    }
  }
}

// What is found about a template that is written here.
std::string rendered(const std::string& source, const Json& messages) {
  return ChatTemplate(source).render(messages, nullptr, false, {});
}

TEST(TemplateHabits, ARoleIsKnownWhereItIsNotWrittenDownAsAnyOther) {
  const Json messages = {said("developer", "d"), said("user", "u")};
  const std::string any = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
  EXPECT_EQ(rendered(any, messages), "<system>d<user>u");
  EXPECT_EQ(rendered("{% for m in messages %}{% if m.role == 'developer' %}D{% endif %}"
                     "{{ m.content }}{% endfor %}",
                     messages),
            "Ddu");
  EXPECT_EQ(rendered("{% for m in messages if m.role in ['system', 'user'] %}{{ m.content }};"
                     "{% endfor %}",
                     messages),
            "d;u;");
}

TEST(TemplateHabits, LateSystemMessagesStayOnlyWhereTheyAreShownInTheirPlace) {
  const Json messages = {said("user", "u"), said("assistant", "a"), said("system", "s"),
                         said("user", "v")};
  EXPECT_EQ(
      rendered("{% for m in messages %}{{ m.role[0] }}:{{ m.content }} {% endfor %}", messages),
      "u:u a:a s:s u:v ");
  const char* moved = "u:u a:a u:s u:v ";
  EXPECT_EQ(rendered("{% for m in messages if m.role == 'system' %}{{ m.content }}{% endfor %}"
                     "{% for m in messages if m.role != 'system' %}{{ m.role[0] }}:{{ m.content }} "
                     "{% endfor %}",
                     messages),
            moved);
  EXPECT_EQ(rendered("{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
                     "{{ raise_exception('late') }}{% endif %}{{ m.role[0] }}:{{ m.content }} "
                     "{% endfor %}",
                     messages),
            moved);
}

TEST(TemplateHabits, UsersStayWhereTheTemplateTakesThem) {
  const Json messages = {said("user", "u"), said("user", "v")};
  const std::string all = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }} {% endfor %}";
  EXPECT_EQ(rendered(all, messages), "u:u u:v ");
  EXPECT_EQ(rendered("{% for m in messages %}{% if not loop.first and m.role == 'user' and "
                     "loop.previtem.role == 'user' %}{{ raise_exception('must alternate') }}"
                     "{% endif %}{% endfor %}" +
                         all,
                     messages),
            "u:u\n\nv ");
}

TEST(TemplateHabits, PartsStayWhereTheTemplateGoesThroughThem) {
  const Json parts = {said("user", parts_of({"a", "b"}))}, text = {said("user", "ab")};
  EXPECT_EQ(rendered("{{ messages[0].content }}", parts), "ab");
  EXPECT_EQ(rendered("{{ messages[0].content | tojson }}", parts), "\"ab\"");
  const std::string both =
      "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
      "{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endif %}{% endfor %}";
  EXPECT_EQ(rendered(both, parts), "[a][b]");
  EXPECT_EQ(rendered(both, text), "ab");
  const std::string only =
      "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}";
  EXPECT_EQ(rendered(only, parts), "ab");
  EXPECT_EQ(rendered(only, text), "ab");
}

TEST(TemplateHabits, ThoughtsAreWhereTheTemplateHasThem) {
  Json beside = said("assistant", "a");
  beside["reasoning"] = "r";
  const Json in_parts = said("assistant", {thought_of("r"), "a"});
  const std::string parts =
      "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
      "{% for p in m.content %}{% if p.type == 'thinking' %}<{{ p.thinking }}>{% else %}"
      "{{ p.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}";
  const std::string field =
      "{% for m in messages %}{% if m.reasoning_content %}<{{ m.reasoning_content }}>{% endif %}";
  const std::string text = "{{ m.content }}{% endfor %}";
  const std::string both = field + parts.substr(parts.find("{% if"));
  for (const std::string& source : {parts, field + text, both}) {
    EXPECT_EQ(rendered(source, Json::array({beside})), "<r>a") << source;
    EXPECT_EQ(rendered(source, Json::array({in_parts})), "<r>a") << source;
  }
  const std::string none = "{% for m in messages %}" + text;
  EXPECT_EQ(rendered(none, Json::array({beside})), "a");
  EXPECT_EQ(rendered(none, Json::array({in_parts})), "a");
}

// Those that need variables of their makers for any chat.
const std::set<std::string> kNeedMore = {"MiroThinker.jinja",
                                         "fireworks-ai-llama-3-firefunction-v2.jinja"};

// Whether an answer of ours comes back to a template as it was given out, and its call with it.
void expect_answers_come_back(const std::string& name, const std::string& source) {
  // Jinja2's sandbox refuses what these do with calls, so that transformers and vLLM do so too.
  static const std::set<std::string> kRefused = {"Kimi-K2-Instruct.jinja",
                                                 "Kimi-K2-Thinking.jinja"};
  const ChatTemplate chat_template(source);
  const auto render = [&](const Json& messages, const Json& tools) -> std::optional<std::string> {
    try {
      return chat_template.render(messages, tools, true,
                                  {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
    } catch (const Error& error) {
      ADD_FAILURE_AT(__FILE__, __LINE__) << name << ": " << error.what() << messages;
      return std::nullopt;
    }
  };
  const Json ask = said("user", "What is it?");
  Json plain = said("assistant", "It is small.");
  for (const Json& reasoning : {Json(), Json("Hm, small.")}) {
    if (kNeedMore.contains(name)) break;
    plain["reasoning"] = plain["reasoning_content"] = reasoning;
    const bool wants_tools = name.find("tool_use") != name.npos;
    const auto text = render({ask, plain, ask}, wants_tools ? tool_named_find() : Json());
    EXPECT_TRUE(text && text->find("It is small.") != text->npos) << name;
  }
  std::string question;
  try {
    question = chat_template.render(Json::array({ask}), tool_named_find(), true, {});
  } catch (const Error&) {
    return;  // no model of this template has ever called a tool
  }
  if (question.find("find") == std::string::npos || kRefused.contains(name)) return;
  for (const Json& content : {Json(), Json("I look.")}) {
    for (const Json& reasoning : {Json(), Json("A look-up.")}) {
      const Json answer = answer_with_call(content, reasoning, R"({"key": "quokka"})");
      const auto text = render({ask, answer, result_of_call()}, tool_named_find());
      EXPECT_TRUE(text && text->find("a wallaby") != text->npos) << name << answer;
    }
  }
}

class PublishedChatMessages : public testing::ReferenceDataTest {
 protected:
  PublishedChatMessages() : ReferenceDataTest({"chat-templates"}) {}
};

INSTANTIATE_TEST_SUITE_P(All, PublishedChatMessages, testing::kExtents, testing::name_of_extent);

TEST_P(PublishedChatMessages, AnswersComeBackToTheTemplates) {
  int count = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder("chat-templates"))) {
    if (entry.path().extension() != ".jinja") continue;
    expect_answers_come_back(entry.path().filename(), source_of(entry.path()));
    ++count;
  }
  EXPECT_EQ(count, is_whole() ? 56 : 23);
}

}  // namespace
}  // namespace nanovllm::text
