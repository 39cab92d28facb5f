#include "text/pattern_json.h"

namespace nanovllm::text {

Pattern parse_pattern(const Fields& fields, const char* name) {
  const Fields pattern(fields.required(name), fields.origin(), fields.path() + "." + name);
  if (pattern.find("String")) return Pattern::literal(pattern.string("String"), fields.origin());
  if (pattern.find("Regex")) return Pattern::regex(pattern.string("Regex"), fields.origin());
  pattern.fail("has neither 'String' nor 'Regex'");
}

}  // namespace nanovllm::text
