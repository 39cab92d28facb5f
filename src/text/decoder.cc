#include "text/decoder.h"

#include <nlohmann/json.hpp>
#include <variant>

#include "text/decode_steps.h"
#include "text/json_fields.h"
#include "text/pattern_json.h"
#include "text/utf8.h"

namespace nanovllm::text {

namespace decoders {  // no anonymous one: a class with linkage is made of these

struct ByteLevel {};
struct ByteFallback {};
struct Fuse {};
struct ReplaceLiteral {
  std::string literal, content;
};
struct ReplaceRegex {
  Pattern pattern;
  std::string content;
};
struct Strip {
  std::string content;
  uint32_t start, stop;
};
struct Metaspace {
  std::string replacement;
  bool prepended;
};

using Any =
    std::variant<ByteLevel, ByteFallback, Fuse, ReplaceLiteral, ReplaceRegex, Strip, Metaspace>;

struct MakeStep {
  DecodeStep& next;
  using Step = std::unique_ptr<DecodeStep>;
  Step operator()(const ByteLevel&) const { return std::make_unique<ByteLevelStep>(next); }
  Step operator()(const ByteFallback&) const { return std::make_unique<ByteFallbackStep>(next); }
  Step operator()(const Fuse&) const { return std::make_unique<FuseStep>(next); }
  Step operator()(const ReplaceLiteral& c) const {
    return std::make_unique<ReplaceLiteralStep>(next, c.literal, c.content);
  }
  Step operator()(const ReplaceRegex& c) const {
    return std::make_unique<ReplaceRegexStep>(next, c.pattern, c.content);
  }
  Step operator()(const Strip& c) const {
    return std::make_unique<StripStep>(next, c.content, c.start, c.stop);
  }
  Step operator()(const Metaspace& c) const {
    return std::make_unique<MetaspaceStep>(next, c.replacement, c.prepended);
  }
};

}  // namespace decoders

struct Decoder::Config : decoders::Any {
  using variant::variant;
};

Decoder::Decoder() = default;
Decoder::~Decoder() = default;
Decoder::Decoder(Decoder&&) noexcept = default;
Decoder& Decoder::operator=(Decoder&&) noexcept = default;

Decoder::Decoder(const Json& json, const std::string& origin) {
  if (json.is_null()) return;
  join_with_spaces_ = false;
  parse(Fields(json, origin, "decoder"), 0);
}

void Decoder::parse(const Fields& fields, int depth) {
  const std::string type = fields.type();
  if (depth > kMaxNesting) fields.unsupported("is nested too deeply");
  if (type == "Sequence") {
    for (size_t i = 0; i < fields.array("decoders").size(); ++i) {
      parse(fields.element("decoders", i), depth + 1);
    }
  } else if (type == "ByteLevel") {
    configs_.emplace_back(decoders::ByteLevel{});
  } else if (type == "ByteFallback") {
    configs_.emplace_back(decoders::ByteFallback{});
  } else if (type == "Fuse") {
    configs_.emplace_back(decoders::Fuse{});
  } else if (type == "Replace") {
    const Fields pattern(fields.required("pattern"), fields.origin(), fields.path() + ".pattern");
    const auto literal = pattern.optional_string("String");
    if (literal && !literal->empty()) {
      configs_.emplace_back(decoders::ReplaceLiteral{*literal, fields.string("content")});
    } else {
      configs_.emplace_back(
          decoders::ReplaceRegex{parse_pattern(fields, "pattern"), fields.string("content")});
    }
  } else if (type == "Strip") {
    decoders::Strip strip;
    append_utf8(strip.content, fields.character("content"));
    strip.start = fields.unsigned_integer("start");
    strip.stop = fields.unsigned_integer("stop");
    configs_.emplace_back(std::move(strip));
  } else if (type == "Metaspace") {
    decoders::Metaspace metaspace;
    append_utf8(metaspace.replacement, fields.character("replacement"));
    metaspace.prepended = fields.optional_string("prepend_scheme").value_or("always") != "never" &&
                          fields.boolean_or("add_prefix_space", true);
    configs_.emplace_back(std::move(metaspace));
  } else {
    fields.unsupported(fmt::format(
        "is a '{}', which is not supported (ByteLevel, ByteFallback, Fuse, Replace, Strip, "
        "Metaspace and Sequence are)",
        printable(type)));
  }
}

DecodeStream Decoder::start() const {
  auto out = std::make_unique<std::string>();
  std::vector<std::unique_ptr<DecodeStep>> steps;
  steps.push_back(std::make_unique<AppendStep>(*out, join_with_spaces_));
  for (auto config = configs_.rbegin(); config != configs_.rend(); ++config) {
    steps.push_back(
        std::visit(decoders::MakeStep{*steps.back()}, static_cast<const decoders::Any&>(*config)));
  }
  return DecodeStream(std::move(steps), std::move(out));
}

}  // namespace nanovllm::text
