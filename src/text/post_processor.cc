#include "text/post_processor.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "text/json_fields.h"
#include "text/vocabulary.h"

namespace nanovllm::text {

namespace {

// Ids of the special token a template names.
void append_special(const Fields& fields, const std::string& name, std::vector<int32_t>& out) {
  const Fields table = fields.part("special_tokens");
  if (!table.find(name)) {
    fields.fail(
        fmt::format("uses the special token '{}', which its special_tokens lack", printable(name)));
  }
  const Fields token = table.part(name);
  for (const Json& id : token.array("ids")) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > kMaxTokenId) {
      token.fail("has ids that are not token ids");
    }
    out.push_back(id.get<int32_t>());
  }
}

}  // namespace

PostProcessor::PostProcessor(const Json& json, const std::string& origin) {
  for_each_part(json, origin, "post_processor", "processors",
                [this](const Fields& fields) { parse(fields); });
}

void PostProcessor::parse(const Fields& fields) {
  const std::string type = fields.type();
  if (type == "ByteLevel") return;  // corrects offsets, which nobody asks for here
  if (type != "TemplateProcessing") {
    fields.unsupported_type("TemplateProcessing, ByteLevel and Sequence");
  }
  if (has_template_) fields.unsupported("is the second template, and only one is supported");
  has_template_ = true;
  for (size_t i = 0; i < fields.array("single").size(); ++i) {
    const Fields piece = fields.element("single", i);
    if (piece.find("SpecialToken")) {
      append_special(fields, piece.part("SpecialToken").string("id"), template_);
    } else {
      const Fields sequence = piece.part("Sequence");
      if (sequence.string("id") != "A") sequence.fail("uses a second sequence for a single text");
      template_.push_back(kText);
    }
  }
}

void PostProcessor::set_ends(int32_t first, int32_t last) {
  has_template_ = true;
  template_ = {kText};
  if (first >= 0) template_.insert(template_.begin(), first);
  if (last >= 0) template_.push_back(last);
}

void PostProcessor::apply(std::vector<int32_t>& ids, bool add_special_tokens) const {
  if (!has_template_) return;
  const std::vector<int32_t> text = std::move(ids);
  ids.clear();
  ids.reserve(text.size() + template_.size());
  for (const int32_t id : template_) {
    if (id == kText) {
      ids.insert(ids.end(), text.begin(), text.end());
    } else if (add_special_tokens) {
      ids.push_back(id);
    }
  }
}

}  // namespace nanovllm::text
