// Takes a transcript apart by tags around the thought and around calls of tools.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>

#include "server/transcript/call_scanner.h"
#include "server/transcript/tagged_text.h"
#include "server/transcript/transcript_parser.h"

namespace nanovllm::server {

struct ReasoningFormat {
  std::string_view name;  // vLLM's
  // Any of them, of a thought; empty = there are fewer.
  std::array<std::string_view, 3> begin_tags = {"<think>"};
  std::array<std::string_view, 3> end_tags = {"</think>"};
  bool may_call = false;         // in a thought that is never closed
  bool needs_begin_tag = false;  // else all is a thought that the prompt has not closed
  // Around an answer behind a thought; empty = none.
  std::string_view begin_answer = {}, end_answer = {};
};

// How a model was taught to write calls: each is begin, name, behind_name, arguments, end.
struct CallLayout {
  std::string_view between = {};  // calls
  std::string_view begin = {}, behind_name = {}, end = {};
  std::string_view id_mark = {}, arguments_mark = {};  // behind the name; empty = there is none
  bool may_have_id_member = false;                     // behind the arguments
  std::string_view style = "json";                     // of json_schema in structural tags
  // All calls stand between these, behind one opening tag.
  bool is_list = false;
  std::string_view list_begin = {}, list_end = {};
};

struct ToolFormat {
  std::string_view name;  // vLLM's
  std::string_view open_tag = {};
  std::string_view close_tag = {};   // empty = none
  std::string_view other_open = {};  // in place of the opening tag; empty = none
  bool other_is_call = false;        // it is the begin of the call itself
  bool keeps_tags = false;           // around what is no call: then they are text
  bool begins_answer = false;        // a call needs no tag where the answer begins with it
  bool may_be_list = false;          // behind the tag: [{...}, ...], or f{...}
  CallSyntax syntax = {};
  CallLayout layout = {};
};

// What is not known yet to be calls is parsed on trial: its pieces are held back, and so is its
// text, which is shown instead of them if it turns out to be no calls.
class TagParser final : public TranscriptParser {
 public:
  enum class Begin {
    kContent,
    kMayThink,  // the prompt leaves it open
    kThought,   // that the prompt has opened
  };
  // Null formats: there is no such thing in the transcript. `types` (or null) must outlive it.
  // Without `calls_in_thoughts`, there are none in formats that have them either.
  TagParser(const ReasoningFormat* reasoning, const ToolFormat* tools, const TranscriptTags& tags,
            Begin begin, const ToolTypes* types, bool calls_in_thoughts = true);
  TranscriptDelta append(std::string_view text, std::span<const TokenMark> tags) override;
  TranscriptDelta finish() override;

 private:
  enum class Mode {
    kThought,
    kContent,
    kOpened,  // behind [TOOL_CALLS] and the like
    kCall,    // in {...} or f{...}
  };
  enum class Trial {
    kNone,
    kThought,  // from a tag of a call within the thought on
    kAnswer,   // from the begin of an answer on that may be a call without a tag
  };

  // Takes what can be told apart now; false: nothing more before more comes.
  bool advance();
  bool advance_thought();
  bool advance_content();
  bool advance_opened();
  bool advance_call();

  void begin_content();
  void begin_call(bool in_brackets);
  void take_open_tag(const Tag& tag);
  void end_thought_on_trial();
  std::string undo_trial();
  void end_trial();

  std::string_view take(size_t size);
  void hold(size_t size);
  void hold_tag(const Tag& tag);
  void show(std::string_view text);
  void show_call();
  void show_no_call();

  std::string_view separators() const;
  // Of formats with calls in thoughts, which have one such tag.
  Tag end_tag_on_trial() const { return trial_ == Trial::kThought ? end_thought_[0] : Tag{}; }
  TranscriptDelta& shown() { return trial_ == Trial::kNone ? delta_ : tried_; }

  const ReasoningFormat* reasoning_;
  const ToolFormat* tools_;
  const bool may_call_in_thought_;
  std::array<Tag, 3> begin_thought_ = {}, end_thought_ = {};
  Tag begin_answer_ = {}, end_answer_ = {};
  Tag open_call_ = {}, other_open_ = {}, close_call_ = {};
  const ToolTypes* types_;
  Mode mode_ = Mode::kContent;
  TaggedText text_ = {};      // that is not told apart yet
  bool has_thought_ = false;  // the thought's first tag, or what is not blank
  bool needs_begin_ = false;  // what comes before the thought's first tag is none
  std::string blanks_ = {};   // before content, which may turn out to stand beside calls alone
  bool has_content_ = false;  // that is not blank, behind the last call
  bool may_begin_ = false, has_begun_ = false, has_ended_ = false;  // an answer between tags
  std::string held_ = {};                                           // content if it is no call
  bool is_shown_ = true;      // held_ is, as a call or content
  bool in_brackets_ = false;  // [{...}, {...}]
  bool may_follow_ = false;   // another call without a tag
  bool may_close_ = false;    // a closing tag belongs to the last call
  int num_calls_ = 0;
  std::unique_ptr<CallScanner> scanner_ = {};
  Trial trial_ = Trial::kNone;
  std::string trial_text_ = {};  // all of it so far
  TranscriptDelta delta_ = {}, tried_ = {};
};

}  // namespace nanovllm::server
