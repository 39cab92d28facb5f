#include "text/decoder.h"

#include <nlohmann/json.hpp>

#include "text/decode_steps.h"
#include "text/json_fields.h"
#include "text/utf8.h"

namespace nanovllm::text {

Decoder::Decoder(const Json& json, const std::string& origin) : join_with_spaces_(json.is_null()) {
  for_each_part(json, origin, "decoder", "decoders",
                [this](const Fields& fields) { parse(fields); });
}

template <typename Step, typename... Options>
void Decoder::add(Options... options) {
  steps_.emplace_back([=](DecodeStep& next) { return std::make_unique<Step>(next, options...); });
}

void Decoder::parse(const Fields& fields) {
  const auto character = [&](const char* name) {
    std::string spelling;
    append_utf8(spelling, fields.character(name));
    return spelling;
  };
  const std::string type = fields.type();
  if (type == "ByteLevel") {
    add<ByteLevelStep>();
    spells_bytes_ = true;
  } else if (type == "ByteFallback") {
    add<ByteFallbackStep>();
    falls_back_to_bytes_ = true;
  } else if (type == "Fuse") {
    add<FuseStep>();
  } else if (type == "Replace") {
    const Fields pattern = fields.part("pattern");
    const auto literal = pattern.optional_string("String");
    if (literal && !literal->empty()) {
      add<ReplaceLiteralStep>(*literal, fields.string("content"));
    } else {
      add<ReplaceRegexStep>(parse_pattern(fields, "pattern"), fields.string("content"));
    }
  } else if (type == "Strip") {
    if (fields.unsigned_integer("stop") != 0) {
      fields.unsupported("has a 'stop' other than 0, which is not supported");
    }
    add<StripStep>(character("content"), fields.unsigned_integer("start"));
  } else if (type == "Metaspace") {
    add<MetaspaceStep>(character("replacement"),
                       fields.optional_string("prepend_scheme").value_or("always") != "never" &&
                           fields.boolean_or("add_prefix_space", true));
  } else {
    fields.unsupported_type(
        "ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace and Sequence");
  }
}

DecodeStream Decoder::start() const {
  auto out = std::make_unique<std::string>();
  std::vector<std::unique_ptr<DecodeStep>> steps;
  steps.push_back(std::make_unique<AppendStep>(*out, join_with_spaces_));
  for (auto make = steps_.rbegin(); make != steps_.rend(); ++make) {
    steps.push_back((*make)(*steps.back()));
  }
  return DecodeStream(std::move(steps), std::move(out));
}

}  // namespace nanovllm::text
