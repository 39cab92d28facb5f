// What a chat template takes, of that in which templates differ and clients don't know it.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "text/json_fields.h"

namespace nanovllm::text {

struct TemplateHabits {
  // In which form a message's content is shown as the words that it has.
  enum class Content {
    kText,         // as a text only
    kTextOrParts,  // as a list of parts too
    kParts,        // as a list of parts only
  };

  bool knows_developer = false;              // the role; elsewhere it is system
  bool takes_late_system = false;            // system messages behind others, where they stand
  bool takes_users_in_a_row = true;          // messages of the user behind each other
  bool takes_user_behind_result = true;      // a message of the user behind a tool's result
  bool wants_short_call_ids = false;         // nine letters and digits, as Mistral's
  bool wants_arguments_as_text = false;      // of calls, instead of an object
  bool wants_null_beside_calls = false;      // as the content; calls are not shown elsewhere
  bool wants_one_text_beside_calls = false;  // either content or reasoning
  bool wants_descriptions = false;           // of tools: an empty one where none was given
  std::map<std::string, Content, std::less<>> contents = {};  // by role
  // Roles whose thoughts are parts, {"type": "thinking", "thinking"}, and nothing beside the
  // content.
  std::set<std::string, std::less<>> thoughts_in_parts = {};

  Content content_of(std::string_view role) const;
};

// Renders a dialogue. Throws Error where the template refuses it.
using RenderDialogue = std::function<std::string(const Json& messages, const Json& tools)>;

// By rendering a few dozen small dialogues. What a template refuses altogether is taken for what
// most templates do.
TemplateHabits find_habits(const RenderDialogue& render);

}  // namespace nanovllm::text
