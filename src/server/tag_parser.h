// Takes a transcript apart by tags around the thought and around calls of tools.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "server/call_scanner.h"
#include "server/tagged_text.h"
#include "server/transcript_parser.h"

namespace nanovllm::server {

struct ReasoningFormat {
  std::string_view name;       // vLLM's
  std::string_view begin_tag;  // of a thought
  std::string_view end_tag;
  bool may_call;  // in a thought that is never closed
};

struct ToolFormat {
  std::string_view name;  // vLLM's
  std::string_view open_tag;
  std::string_view close_tag = {};  // empty = none
  bool keeps_tags = false;          // around what is no call: then they are text
  bool begins_answer = false;       // a call needs no tag where the answer begins with it
  bool is_mistral = false;          // [TOOL_CALLS] [{...}, ...] or [TOOL_CALLS]f{...}
  CallSyntax syntax = {};
};

// What is not known yet to be calls is parsed on trial: its pieces are held back, and so is its
// text, which is shown instead of them if it turns out to be no calls.
class TagParser final : public TranscriptParser {
 public:
  // Null formats: there is no such thing in the transcript.
  TagParser(const ReasoningFormat* reasoning, const ToolFormat* tools, const TranscriptTags& tags,
            bool in_thought);
  TranscriptDelta append(std::string_view text, std::span<const TokenMark> tags) override;
  TranscriptDelta finish() override;

 private:
  enum class Mode {
    kThought,
    kContent,
    kOpened,  // behind [TOOL_CALLS]
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
  void take_open_tag();
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
  Tag end_tag_on_trial() const { return trial_ == Trial::kThought ? end_thought_ : Tag{}; }
  TranscriptDelta& shown() { return trial_ == Trial::kNone ? delta_ : tried_; }

  const ReasoningFormat* reasoning_;
  const ToolFormat* tools_;
  Tag begin_thought_, end_thought_, open_call_, close_call_;
  Mode mode_ = Mode::kContent;
  TaggedText text_ = {};      // that is not told apart yet
  bool has_thought_ = false;  // the thought's first tag, or what is not blank
  std::string blanks_ = {};   // before content, which may turn out to stand beside calls alone
  bool has_content_ = false;  // that is not blank, behind the last call
  std::string held_ = {};     // content if it is no call
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
