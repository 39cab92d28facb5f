#include "grammar/grammar.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "grammar/automaton.h"
#include "grammar/gbnf.h"
#include "grammar/json_schema.h"
#include "grammar/masks.h"
#include "grammar/regex.h"
#include "grammar/structural_tag.h"
#include "grammar/syntax.h"
#include "grammar/token_index.h"

namespace nanovllm {

namespace grammar {

constexpr size_t kMaxAutomatonBytes = size_t{64} << 20;  // of a grammar's automaton
constexpr size_t kMaxMaskBytes = size_t{32} << 20;       // of all masks

struct Parts {
  Parts(std::unique_ptr<const Syntax> its_syntax, NodeId start,
        std::shared_ptr<const TokenIndex> its_index, std::shared_ptr<MaskCache> its_masks,
        std::vector<std::string> its_notes)
      : syntax(std::move(its_syntax)),
        automaton(*syntax, start, kMaxAutomatonBytes),
        index(std::move(its_index)),
        masks(std::move(its_masks)),
        number(masks->next_grammar()),
        notes(std::move(its_notes)) {}

  const std::unique_ptr<const Syntax> syntax;
  Automaton automaton;
  const std::shared_ptr<const TokenIndex> index;
  const std::shared_ptr<MaskCache> masks;
  const uint64_t number;  // among those that share the masks
  const std::vector<std::string> notes;
};

}  // namespace grammar

using grammar::kDead;
using grammar::kOutgrown;

Grammar::Grammar(std::unique_ptr<grammar::Parts> parts) : parts_(std::move(parts)) {}
Grammar::~Grammar() = default;

GrammarState Grammar::start() const { return grammar::kStart; }

GrammarState Grammar::advance(GrammarState state, std::string_view bytes) const {
  return parts_->automaton.advance(state, bytes);
}

GrammarState Grammar::advance(GrammarState state, int32_t token) const {
  const std::string_view bytes = parts_->index->bytes(token);
  return bytes.empty() ? kDead : parts_->automaton.advance(state, bytes);
}

bool Grammar::is_accepting(GrammarState state) const {
  return parts_->automaton.is_accepting(state);
}

bool Grammar::has_next(GrammarState state) const {
  for (int byte = 0; byte < 256; ++byte) {
    const auto value = static_cast<uint8_t>(byte);
    if (parts_->index->has_byte(value) && !is_dead(parts_->automaton.next(state, value))) {
      return true;
    }
  }
  return std::ranges::any_of(*mask(state), [](uint32_t word) { return word != 0; });
}

bool Grammar::is_dead(GrammarState state) const { return state <= kOutgrown; }
bool Grammar::is_outgrown(GrammarState state) const { return state == kOutgrown; }

std::string Grammar::outgrown_message() {
  return fmt::format(
      "the grammar's automaton needs more than {} MiB for this text; make the grammar simpler",
      grammar::kMaxAutomatonBytes >> 20);
}

std::shared_ptr<const std::vector<uint32_t>> Grammar::mask(GrammarState state) const {
  const GrammarState near = parts_->automaton.nearby(state, parts_->index->longest());
  if (auto known = parts_->masks->find(parts_->number, near)) return known;
  auto words = std::make_shared<grammar::MaskWords>();
  grammar::make_mask(parts_->automaton, near, *parts_->index, *words);
  parts_->masks->add(parts_->number, near, words);
  return words;
}

void Grammar::fill_mask(GrammarState state, std::span<uint32_t> words) const {
  const auto made = mask(state);
  NANOVLLM_CHECK(words.size() >= made->size());
  const auto rest = std::ranges::copy(*made, words.begin()).out;
  std::fill(rest, words.end(), 0);
}

bool Grammar::is_text(int32_t token) const {
  const std::string_view bytes = parts_->index->bytes(token);
  return !bytes.empty() && bytes.find('\xFF') == std::string_view::npos;  // a byte of no UTF-8
}
size_t Grammar::num_mask_words() const { return parts_->index->num_words(); }
const std::vector<std::string>& Grammar::notes() const { return parts_->notes; }
size_t Grammar::num_states() const { return parts_->automaton.num_states(); }
size_t Grammar::bytes() const { return parts_->syntax->bytes() + parts_->automaton.bytes(); }

struct GrammarCompiler::Known {
  std::once_flag once;
  std::shared_ptr<const grammar::TokenIndex> index;  // made once

  // The grammars that somebody uses still.
  std::mutex mutex;
  std::unordered_map<std::string, std::weak_ptr<const Grammar>> grammars;
};

GrammarCompiler::GrammarCompiler(const Tokenizer& tokenizer)
    : tokenizer_(&tokenizer),
      masks_(std::make_shared<grammar::MaskCache>(grammar::kMaxMaskBytes)),
      known_(std::make_unique<Known>()) {}

GrammarCompiler::GrammarCompiler(std::shared_ptr<const grammar::TokenIndex> index)
    : tokenizer_(nullptr),
      masks_(std::make_shared<grammar::MaskCache>(grammar::kMaxMaskBytes)),
      known_(std::make_unique<Known>()) {
  known_->index = std::move(index);
}

GrammarCompiler::~GrammarCompiler() = default;

const std::shared_ptr<const grammar::TokenIndex>& GrammarCompiler::index() const {
  std::call_once(known_->once, [this] {
    if (tokenizer_ != nullptr) {
      known_->index = std::make_shared<const grammar::TokenIndex>(*tokenizer_);
    }
  });
  return known_->index;
}

std::shared_ptr<const Grammar> GrammarCompiler::compile(std::string key, const Build& build) const {
  {
    const std::lock_guard lock(known_->mutex);
    const auto found = known_->grammars.find(key);
    if (found != known_->grammars.end()) {
      if (auto grammar = found->second.lock()) return grammar;
    }
  }
  auto syntax = std::make_unique<grammar::Syntax>();
  std::vector<std::string> notes;
  const grammar::NodeId start = syntax->finish(build(*syntax, notes));
  if (start == syntax->never()) {
    throw_error(ErrorCode::kInvalidArgument, "the grammar can't be satisfied: no text fits it");
  }
  std::shared_ptr<const Grammar> made(new Grammar(std::make_unique<grammar::Parts>(
      std::move(syntax), start, index(), masks_, std::move(notes))));
  const std::lock_guard lock(known_->mutex);
  std::erase_if(known_->grammars, [](const auto& entry) { return entry.second.expired(); });
  known_->grammars[std::move(key)] = made;
  return made;
}

namespace {

std::string key_of(const JsonSchemaOptions& options, std::string_view schema) {
  return fmt::format("{}{}{}{}\n{}", options.disable_any_whitespace,
                     options.disable_additional_properties, options.whitespace_pattern.has_value(),
                     options.whitespace_pattern.value_or(""), schema);
}

}  // namespace

std::shared_ptr<const Grammar> GrammarCompiler::json_schema(
    std::string_view schema, const JsonSchemaOptions& options) const {
  return compile("json " + key_of(options, schema),
                 [&](grammar::Syntax& syntax, std::vector<std::string>& notes) {
                   return grammar::compile_json_schema(schema, options, syntax, notes);
                 });
}

std::shared_ptr<const Grammar> GrammarCompiler::json_object(
    const JsonSchemaOptions& options) const {
  return json_schema(R"({"type": "object"})", options);
}

std::shared_ptr<const Grammar> GrammarCompiler::regex(std::string_view pattern) const {
  return compile("regex " + std::string(pattern), [&](grammar::Syntax& syntax, auto&) {
    return grammar::compile_regex(pattern, syntax);
  });
}

std::shared_ptr<const Grammar> GrammarCompiler::choice(
    const std::vector<std::string>& texts) const {
  std::string key = "choice";
  for (const std::string& text : texts) key += fmt::format(" {}:{}", text.size(), text);
  return compile(std::move(key), [&](grammar::Syntax& syntax, auto&) {
    if (texts.empty()) {
      throw_error(ErrorCode::kInvalidArgument,
                  "choice is an empty list; expected one text or more to choose from");
    }
    return syntax.choice_of_texts(texts);
  });
}

std::shared_ptr<const Grammar> GrammarCompiler::gbnf(std::string_view text) const {
  return compile("gbnf " + std::string(text), [&](grammar::Syntax& syntax, auto&) {
    return grammar::compile_gbnf(text, syntax);
  });
}

std::shared_ptr<const Grammar> GrammarCompiler::structural_tag(
    std::string_view json, const JsonSchemaOptions& options) const {
  return compile("tag " + key_of(options, json),
                 [&](grammar::Syntax& syntax, std::vector<std::string>& notes) {
                   return grammar::compile_structural_tag(json, options, tokens(), syntax, notes);
                 });
}

}  // namespace nanovllm
