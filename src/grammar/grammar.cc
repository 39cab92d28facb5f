#include "grammar/grammar.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <future>
#include <mutex>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/signals.h"
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

constexpr size_t kMaxGrammarBytes = size_t{64} << 20;  // its rules and its automaton
constexpr size_t kMaxMaskBytes = size_t{32} << 20;     // of all masks
constexpr size_t kMaxTextBytes = size_t{1} << 20;      // of a regular expression, GBNF or a choice
// Grammars that nobody uses are kept for the next one who asks.
constexpr ptrdiff_t kMaxKept = 16;
constexpr size_t kMaxKeptBytes = size_t{64} << 20;
constexpr size_t kMaxRefusedBytes = size_t{4} << 20;  // of the texts of as many that were refused

struct Parts {
  Parts(std::unique_ptr<const Syntax> its_syntax, NodeId start,
        std::shared_ptr<const TokenIndex> its_index, std::shared_ptr<MaskCache> its_masks,
        std::vector<std::string> its_notes)
      : syntax(std::move(its_syntax)),
        automaton(*syntax, start, kMaxGrammarBytes - syntax->bytes()),
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

GrammarState Grammar::advance(GrammarState state, std::string_view bytes, bool is_guess) const {
  return parts_->automaton.advance(state, bytes, is_guess);
}

GrammarState Grammar::advance(GrammarState state, int32_t token, bool is_guess) const {
  const std::string_view bytes = bytes_of(token);
  return bytes.empty() ? kDead : parts_->automaton.advance(state, bytes, is_guess);
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

std::string Grammar::forced_text(GrammarState state, size_t most) const {
  std::string text;
  while (text.size() < most) {
    const int byte = parts_->automaton.forced_byte(state);
    const auto only = static_cast<char>(byte);
    if (byte < 0 || grammar::TokenIndex::has_symbol({&only, 1})) break;
    state = advance(state, {&only, 1}, true);
    text += only;
  }
  return text;
}

bool Grammar::is_dead(GrammarState state) const { return state <= kOutgrown; }
bool Grammar::is_outgrown(GrammarState state) const { return state == kOutgrown; }

std::string Grammar::outgrown_message() {
  return fmt::format(
      "the grammar allows so many ways to go on with this text that it needs more than {} MiB, or "
      "more time than a token may take; make it simpler",
      grammar::kMaxGrammarBytes >> 20);
}

std::shared_ptr<const std::vector<uint32_t>> Grammar::mask(GrammarState state,
                                                           bool is_guess) const {
  const GrammarState near = mask_state(state, is_guess);
  if (auto known = parts_->masks->find(parts_->number, near)) return known;
  auto words = std::make_shared<grammar::MaskWords>();
  const size_t max_work = is_guess ? grammar::kMaxGuessWork : grammar::kMaxMaskWork;
  if (grammar::make_mask(parts_->automaton, near, *parts_->index, *words, max_work, is_guess)) {
    parts_->masks->add(parts_->number, near, words);
  } else if (is_guess) {
    return nullptr;
  }
  return words;
}

void Grammar::fill_mask(GrammarState state, std::span<uint32_t> words) const {
  const auto made = mask(state);
  NANOVLLM_CHECK(words.size() >= made->size());
  const auto rest = std::ranges::copy(*made, words.begin()).out;
  std::fill(rest, words.end(), 0);
}

GrammarState Grammar::mask_state(GrammarState state, bool is_guess) const {
  return parts_->automaton.nearby(state, parts_->index->longest(), is_guess);
}

std::string_view Grammar::bytes_of(int32_t token) const { return parts_->index->bytes(token); }

bool Grammar::is_text(int32_t token) const {
  const std::string_view bytes = bytes_of(token);
  return !bytes.empty() && !grammar::TokenIndex::has_symbol(bytes);
}
size_t Grammar::num_mask_words() const { return parts_->index->num_words(); }
const std::vector<std::string>& Grammar::notes() const { return parts_->notes; }
size_t Grammar::num_states() const { return parts_->automaton.num_states(); }
size_t Grammar::bytes() const { return parts_->syntax->bytes() + parts_->automaton.bytes(); }

bool Grammar::is_worn() const {
  const grammar::Automaton& automaton = parts_->automaton;
  return automaton.is_outgrown() || automaton.bytes() > automaton.max_bytes() / 2;
}

struct GrammarCompiler::Known {
  std::once_flag once;
  std::shared_ptr<const grammar::TokenIndex> index;  // made once

  // Null: it is not known. Throws what it was refused with.
  std::shared_ptr<const Grammar> find(const std::string& key) {
    const std::lock_guard lock(mutex);
    const auto no = std::ranges::find(refused, key, &Refusal::key);
    if (no != refused.end()) throw Error(no->error);
    const auto found = in_use.find(key);
    std::shared_ptr<const Grammar> grammar = found == in_use.end() ? nullptr : found->second.lock();
    if (grammar == nullptr || grammar->is_worn()) return nullptr;
    keep(grammar);
    return grammar;
  }

  void add(std::string key, const std::shared_ptr<const Grammar>& grammar) {
    const std::lock_guard lock(mutex);
    keep(grammar);
    std::erase_if(in_use, [](const auto& entry) { return entry.second.expired(); });
    in_use[std::move(key)] = grammar;
  }

  void refuse(std::string key, const Error& error) {
    const std::lock_guard lock(mutex);
    refused.push_front({std::move(key), error});
    bound(refused, grammar::kMaxRefusedBytes, [](const Refusal& it) { return it.key.size(); });
  }

 private:
  struct Refusal {
    std::string key;
    Error error;
  };

  void keep(const std::shared_ptr<const Grammar>& grammar) {
    std::erase(kept, grammar);
    kept.push_front(grammar);
    bound(kept, grammar::kMaxKeptBytes, [](const auto& it) { return it->bytes(); });
  }

  template <typename T, typename BytesOf>
  static void bound(std::deque<T>& list, size_t max_bytes, const BytesOf& bytes_of) {
    size_t bytes = 0;
    auto end = list.begin();
    for (; end != list.end() && end - list.begin() < grammar::kMaxKept; ++end) {
      bytes += bytes_of(*end);
      if (bytes > max_bytes) break;
    }
    list.erase(end, list.end());
  }

  std::mutex mutex;
  // The grammars that somebody uses still, and those that were asked for last, the last one first.
  std::unordered_map<std::string, std::weak_ptr<const Grammar>> in_use;
  std::deque<std::shared_ptr<const Grammar>> kept;
  std::deque<Refusal> refused;  // the last one first
};

GrammarCompiler::GrammarCompiler(const Tokenizer& tokenizer)
    : tokenizer_(&tokenizer),
      masks_(std::make_shared<grammar::MaskCache>(grammar::kMaxMaskBytes)),
      known_(std::make_shared<Known>()) {}

GrammarCompiler::GrammarCompiler(std::shared_ptr<const grammar::TokenIndex> index)
    : tokenizer_(nullptr),
      masks_(std::make_shared<grammar::MaskCache>(grammar::kMaxMaskBytes)),
      known_(std::make_shared<Known>()) {
  known_->index = std::move(index);
}

GrammarCompiler GrammarCompiler::known() const {
  GrammarCompiler result(*this);
  result.compiles_ = false;
  return result;
}

const std::shared_ptr<const grammar::TokenIndex>& GrammarCompiler::index() const {
  std::call_once(known_->once, [this] {
    if (tokenizer_ != nullptr) {
      known_->index = std::make_shared<const grammar::TokenIndex>(*tokenizer_);
    }
  });
  return known_->index;
}

namespace {

constexpr int kCompilingNiceness = 10;

// All else that nothing satisfies in it is found before it is whole.
constexpr std::string_view kJsonSchema = "the JSON schema";

// Waits for a thread that leaves the processor to those that compute tokens, where all have work.
template <typename Work>
auto at_low_priority(const Work& work) {
  const auto run = [&work] {
    ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kCompilingNiceness);
    return work();
  };
  std::future<decltype(work())> result;
  try {
    const SignalsBlocked in_thread;
    result = std::async(std::launch::async, run);
  } catch (const std::system_error&) {  // there may be no more threads
    return work();
  }
  return result.get();
}

}  // namespace

std::shared_ptr<const Grammar> GrammarCompiler::compile(std::string key, std::string_view what,
                                                        const Build& build) const {
  if (auto grammar = known_->find(key); grammar || !compiles_) return grammar;
  try {
    auto made = at_low_priority([&] { return make(what, build); });
    known_->add(std::move(key), made);
    return made;
  } catch (const Error& error) {
    known_->refuse(std::move(key), error);
    throw;
  }
}

std::shared_ptr<const Grammar> GrammarCompiler::make(std::string_view what,
                                                     const Build& build) const {
  auto syntax = std::make_unique<grammar::Syntax>();
  std::vector<std::string> notes;
  const grammar::NodeId start = syntax->finish(build(*syntax, notes));
  if (start == syntax->never()) {
    throw_error(
        ErrorCode::kInvalidArgument, "{} can't be satisfied: {}", what,
        what == kJsonSchema ? "a part of it requires itself, without end" : "no text fits it");
  }
  std::shared_ptr<const Grammar> made(new Grammar(std::make_unique<grammar::Parts>(
      std::move(syntax), start, index(), masks_, std::move(notes))));
  if (made->parts_->automaton.is_outgrown()) {
    throw_error(ErrorCode::kInvalidArgument,
                "the grammar has too many ways to begin a text; make it simpler");
  }
  return made;
}

namespace {

std::string key_of(const JsonSchemaOptions& options, std::string_view schema) {
  const std::string spaces = options.whitespace_pattern.value_or("");
  return fmt::format("{}{}{} {}:{}{}", options.disable_any_whitespace,
                     options.disable_additional_properties, options.whitespace_pattern.has_value(),
                     spaces.size(), spaces, schema);
}

void check_size(std::string_view what, size_t bytes) {
  if (bytes > grammar::kMaxTextBytes) {
    throw_error(ErrorCode::kInvalidArgument, "{} has {} bytes; at most {} are supported", what,
                bytes, grammar::kMaxTextBytes);
  }
}

}  // namespace

std::shared_ptr<const Grammar> GrammarCompiler::json_schema(
    std::string_view schema, const JsonSchemaOptions& options) const {
  if (options.whitespace_pattern) {
    check_size("whitespace_pattern", options.whitespace_pattern->size());
  }
  return compile("json " + key_of(options, schema), kJsonSchema,
                 [&](grammar::Syntax& syntax, std::vector<std::string>& notes) {
                   return grammar::compile_json_schema(schema, options, syntax, notes);
                 });
}

std::shared_ptr<const Grammar> GrammarCompiler::json_object(
    const JsonSchemaOptions& options) const {
  return json_schema(R"({"type": "object"})", options);
}

std::shared_ptr<const Grammar> GrammarCompiler::regex(std::string_view pattern) const {
  check_size("the regular expression", pattern.size());
  return compile(
      "regex " + std::string(pattern), "the regular expression",
      [&](grammar::Syntax& syntax, auto&) { return grammar::compile_regex(pattern, syntax); });
}

std::shared_ptr<const Grammar> GrammarCompiler::choice(
    const std::vector<std::string>& texts) const {
  std::string key = "choice";
  for (const std::string& text : texts) key += fmt::format(" {}:{}", text.size(), text);
  check_size("choice", key.size());
  return compile(std::move(key), "choice", [&](grammar::Syntax& syntax, auto&) {
    if (texts.empty()) {
      throw_error(ErrorCode::kInvalidArgument,
                  "choice is an empty list; expected one text or more to choose from");
    }
    return syntax.choice_of_texts(texts);
  });
}

std::shared_ptr<const Grammar> GrammarCompiler::gbnf(std::string_view text) const {
  check_size("the grammar", text.size());
  return compile("gbnf " + std::string(text), "the grammar", [&](grammar::Syntax& syntax, auto&) {
    return grammar::compile_gbnf(text, syntax);
  });
}

std::shared_ptr<const Grammar> GrammarCompiler::structural_tag(
    std::string_view json, const JsonSchemaOptions& options) const {
  return compile("tag " + key_of(options, json), "the structural tag",
                 [&](grammar::Syntax& syntax, std::vector<std::string>& notes) {
                   return grammar::compile_structural_tag(json, options, tokens(), syntax, notes);
                 });
}

}  // namespace nanovllm
