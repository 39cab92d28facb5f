#include "text/template_habits.h"

#include <initializer_list>
#include <optional>
#include <utility>

#include "nanovllm/error.h"

namespace nanovllm::text {
namespace {

// Words that no template writes of itself.
constexpr const char* kAsked = "aardvark";
constexpr const char* kSaid = "bandicoot";
constexpr const char* kTold = "capybara";
constexpr const char* kThought = "dormouse";
constexpr const char* kGiven = "echidna";   // to a function
constexpr const char* kFound = "flamingo";  // by it
constexpr const char* kUnknownRole = "gazelle";

constexpr const char* kLongId = "call_0123456789abcdef";
constexpr const char* kShortId = "a1b2c3d4e";

Json one_tool() {
  const Json parameter = {{"type", "string"}, {"description", "a key"}};
  const Json parameters = {
      {"type", "object"}, {"properties", {{"key", parameter}}}, {"required", Json::array({"key"})}};
  return Json::array(
      {{{"type", "function"},
        {"function", {{"name", "find"}, {"description", "finds"}, {"parameters", parameters}}}}});
}

Json say_as(const char* role, Json content) {
  return {{"role", role}, {"content", std::move(content)}};
}

void add_thought(Json& message, const Json& thought) {
  for (const char* name : {"reasoning", "reasoning_content", "thinking"}) message[name] = thought;
}

Json in_parts(std::initializer_list<const char*> texts) {
  Json parts = Json::array();
  for (const char* text : texts) parts.push_back({{"type", "text"}, {"text", text}});
  return parts;
}

size_t count_of(std::string_view text, std::string_view what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != text.npos; at = text.find(what, at + 1)) ++count;
  return count;
}

bool has(const std::optional<std::string>& text, std::string_view what) {
  return text && text->find(what) != text->npos;
}

// As a value written out, be it by Python or as JSON, instead of its words.
size_t count_quoted(std::string_view text, const std::string& key) {
  return count_of(text, "'" + key + "'") + count_of(text, '"' + key + '"') +
         count_of(text, "\\\"" + key + "\\\"");
}

std::string replaced(std::string text, std::string_view what, std::string_view with) {
  for (size_t at = text.find(what); at != text.npos; at = text.find(what, at + with.size())) {
    text.replace(at, what.size(), with);
  }
  return text;
}

class HabitFinder {
 public:
  explicit HabitFinder(const RenderDialogue& render) : render_(render) {}

  TemplateHabits find() {
    find_roles();
    find_form_of_tools();
    find_form_of_calls();
    find_what_follows();
    for (const char* role : {"system", "developer", "user", "assistant", "tool"}) {
      habits_.contents[role] = find_content(role);
      if (takes_thoughts_in_parts(role)) habits_.thoughts_in_parts.insert(role);
    }
    return habits_;
  }

 private:
  using Content = TemplateHabits::Content;

  std::optional<std::string> attempt(const Json& messages, const Json& tools = nullptr) const {
    try {
      return render_(messages, tools);
    } catch (const Error&) {
      return std::nullopt;
    }
  }

  void find_roles() {
    const auto told_by = [&](const char* role) {
      return attempt({say_as(role, kTold), say_as("user", kAsked)});
    };
    // Templates that write down any role know none.
    const auto developer = told_by("developer"), unknown = told_by(kUnknownRole);
    habits_.knows_developer =
        has(developer, kTold) &&
        (!unknown || replaced(*unknown, kUnknownRole, "developer") != *developer);
    const auto late =
        attempt({say_as("system", kFound), say_as("user", kAsked), say_as("assistant", kSaid),
                 say_as("system", kTold), say_as("user", kGiven)});
    if (!late) return;
    // At its place: some templates gather all system messages at the head.
    size_t at = 0;
    for (const char* words : {kAsked, kSaid, kTold, kGiven}) {
      at = late->find(words, at);
      if (at == late->npos) return;
    }
    habits_.takes_late_system = count_of(*late, kTold) == 1;
  }

  void find_form_of_tools() {
    const Json asked = Json::array({say_as("user", kAsked)});
    Json bare = one_tool();
    bare[0]["function"]["description"] = nullptr;
    habits_.wants_descriptions = attempt(asked, one_tool()) && !attempt(asked, bare);
  }

  // A question, the call of a function, and what it found.
  Json call_dialogue(Json content, Json found = kFound) const {
    const char* id = habits_.wants_short_call_ids ? kShortId : kLongId;
    Json arguments = {{"key", kGiven}};
    if (habits_.wants_arguments_as_text) arguments = arguments.dump();
    Json answer = say_as("assistant", std::move(content));
    answer["tool_calls"] =
        Json::array({{{"id", id},
                      {"type", "function"},
                      {"function", {{"name", "find"}, {"arguments", std::move(arguments)}}}}});
    Json result = say_as("tool", std::move(found));
    result["tool_call_id"] = id;
    result["name"] = "find";
    return {say_as("user", kAsked), std::move(answer), std::move(result)};
  }

  // What a call looks like: shown well (3), shown as Python writes dicts (2), not shown (1),
  // refused (0).
  int merit_of_calls() const {
    const Json content = habits_.wants_null_beside_calls ? Json() : Json("");
    const auto text = attempt(call_dialogue(content), one_tool());
    if (!text) return 0;
    if (!has(text, kGiven)) return 1;
    return text->find(std::string("'") + kGiven + "'") == text->npos ? 3 : 2;
  }

  void find_form_of_calls() {
    int best = 0;
    TemplateHabits found = habits_;
    for (int form = 0; form < 8 && best < 3; ++form) {
      habits_.wants_short_call_ids = (form & 4) != 0;
      habits_.wants_null_beside_calls = (form & 2) != 0;
      habits_.wants_arguments_as_text = (form & 1) != 0;
      const int merit = merit_of_calls();
      if (merit > best) {
        best = merit;
        found = habits_;
      }
    }
    habits_ = found;
    const auto with_both = [&](const char* content, const char* reasoning) {
      Json dialogue = call_dialogue(content);
      add_thought(dialogue[1], reasoning);
      return attempt(dialogue, one_tool()).has_value();
    };
    habits_.wants_one_text_beside_calls = !with_both(kSaid, kThought) && with_both("", kThought);
  }

  // Where a template refuses less too, it is not for what follows.
  void find_what_follows() {
    const Json one = Json::array({say_as("user", kAsked)});
    const Json two = {say_as("user", kAsked), say_as("user", kSaid)};
    habits_.takes_users_in_a_row = attempt(two).has_value() || !attempt(one);
    const Json called = call_dialogue(habits_.wants_null_beside_calls ? Json() : Json(""));
    Json followed = called;
    followed.push_back(say_as("user", kSaid));
    habits_.takes_user_behind_result =
        attempt(followed, one_tool()).has_value() || !attempt(called, one_tool());
  }

  // What becomes of a message, of which `thought` is what was thought before.
  std::optional<std::string> shown(std::string_view role, const Json& content,
                                   const Json& thought = nullptr) const {
    if (role == "tool") {
      const Json beside = habits_.wants_null_beside_calls ? Json() : Json("");
      return attempt(call_dialogue(beside, content), one_tool());
    }
    Json dialogue = Json::array();
    if (role == "assistant") dialogue.push_back(say_as("user", kAsked));
    dialogue.push_back(say_as(std::string(role).c_str(), content));
    if (!thought.is_null()) add_thought(dialogue.back(), thought);
    if (role != "user") dialogue.push_back(say_as("user", kSaid));
    return attempt(dialogue);
  }

  Content find_content(std::string_view role) const {
    const auto text = shown(role, kTold), parts = shown(role, in_parts({kTold, kThought}));
    const bool shows_parts =
        has(parts, kTold) && has(parts, kThought) &&
        count_quoted(*parts, "text") <= count_quoted(text.value_or(""), "text");
    if (!shows_parts) return Content::kText;  // some show the first alone, or the list as it is
    if (!has(text, kTold)) return Content::kParts;
    // Of a result, parts may stand for several results, which nobody means by them.
    return role == "tool" ? Content::kText : Content::kTextOrParts;
  }

  bool takes_thoughts_in_parts(std::string_view role) const {
    if (habits_.content_of(role) == Content::kText) return false;
    const Json thought = {{"type", "thinking"}, {"thinking", kThought}};
    const auto parts = shown(role, Json::array({thought, in_parts({kTold})[0]}));
    return has(parts, kTold) && has(parts, kThought) && count_quoted(*parts, kThought) == 0 &&
           !has(shown(role, kTold, kThought), kThought);
  }

  const RenderDialogue& render_;
  TemplateHabits habits_;
};

}  // namespace

TemplateHabits::Content TemplateHabits::content_of(std::string_view role) const {
  const auto found = contents.find(role);
  return found == contents.end() ? Content::kText : found->second;
}

TemplateHabits find_habits(const RenderDialogue& render) { return HabitFinder(render).find(); }

}  // namespace nanovllm::text
