// From messages as clients send them to messages as a template reads them.
#pragma once

#include <string>
#include <string_view>

#include "text/template_habits.h"

namespace nanovllm::text {

// Messages of OpenAI's API, an array of objects; those of assistants may have what was thought as
// `reasoning`, `reasoning_content`, `thinking` or parts of the type thinking. Throws
// Error(kInvalidArgument) for contents that are no text.
Json prepare_messages(const Json& messages, const TemplateHabits& habits);

// The words of a content: null, a text, or a list of texts and of parts that are text. `where` is
// what errors name. Throws Error(kInvalidArgument).
std::string text_of_content(const Json& content, const std::string& where);

// A list of tools, with an empty description where there is none.
Json with_descriptions(Json tools);

// Of a call, as an object: given as one, or as the text of one, which a model may have written with
// line breaks in its strings. What is none becomes an empty one.
Json arguments_of(Json arguments);

// Nine letters and digits for a call's id: the same for the same, and for what is such an id
// itself.
std::string short_call_id(std::string_view id);

}  // namespace nanovllm::text
