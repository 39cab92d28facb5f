#include "server/transcript/call_scanner.h"

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "server/transcript/call_scanners.h"

namespace nanovllm::server {
namespace {

class JsonCallScanner final : public CallScanner {
 public:
  explicit JsonCallScanner(CallSyntax syntax) : syntax_(syntax) {}

 private:
  enum class Step { kBegin, kBareName, kKey, kInKey, kColon, kValue, kInValue, kComma };

  bool take(char byte) override;
  bool take_bare_name(char byte);
  bool is_bare() const { return syntax_.form == CallForm::kBareJson; }
  bool is_arguments() const {
    return key_ == "arguments" || (syntax_.takes_parameters && key_ == "parameters");
  }
  void begin_arguments() {
    has_arguments_ = true;
    is_call_ = has_name_;
  }
  bool begin_value(char byte);
  bool take_value(char byte);
  bool end_value();

  CallSyntax syntax_;
  Step step_ = Step::kBegin;
  std::string text_ = {};  // of the name, key or value being read
  std::string key_ = {};
  bool has_name_ = false, has_arguments_ = false;
  bool is_streamed_ = false;  // the value goes to arguments_ as it comes
  int depth_ = 0;             // of brackets around the next byte of the value
  bool in_string_ = false, is_escaped_ = false;
};

bool JsonCallScanner::take(char byte) {
  const bool may_be_blank =
      step_ != Step::kBareName && step_ != Step::kInKey && step_ != Step::kInValue;
  if (may_be_blank && is_json_blank(byte)) return true;
  switch (step_) {
    case Step::kBegin:
      if (is_bare()) return take_bare_name(byte);
      if (byte != '{') return stop();
      step_ = Step::kKey;
      return true;
    case Step::kBareName:
      return take_bare_name(byte);
    case Step::kKey:
      if (byte == '"') return begin_value(byte);
      [[fallthrough]];
    case Step::kComma:
      if (byte == ',' && step_ == Step::kComma) {
        step_ = Step::kKey;
      } else if (byte == '}') {
        if (has_name_ && !has_arguments_ && syntax_.lenient_arguments) {
          arguments_ = "{}";
          begin_arguments();
        }
        stop();
      } else {
        return stop();
      }
      return true;
    case Step::kColon:
      if (byte != ':') return stop();
      step_ = Step::kValue;
      return true;
    case Step::kValue:
      return begin_value(byte);
    case Step::kInKey:
    case Step::kInValue:
      return take_value(byte);
  }
  return false;
}

// The name ends at the first blank or bracket; what stands in brackets is not looked at.
bool JsonCallScanner::take_bare_name(char byte) {
  if (byte == '{' && !text_.empty()) {
    name_ = text_.substr(0, text_.find_first_of(" \t\r\n["));
    has_name_ = true;
    key_ = "arguments";
    return begin_value(byte);
  }
  const bool is_first = text_.empty(), after_blank = !is_first && is_json_blank(text_.back());
  const bool fits = (is_call_name_byte(byte) && !after_blank) ||
                    (!is_first && (byte == '[' || is_json_blank(byte))) ||
                    (byte == ']' && text_.find('[') != text_.npos);
  if (!fits) return stop();
  step_ = Step::kBareName;
  text_ += byte;
  return true;
}

bool JsonCallScanner::begin_value(char byte) {
  const bool is_key = step_ == Step::kKey;
  step_ = is_key ? Step::kInKey : Step::kInValue;
  text_.clear();
  depth_ = 0;
  // Anything else than an object is short: it is looked at as a whole.
  is_streamed_ = !is_key && is_arguments() && has_name_ && !has_arguments_ && byte == '{';
  if (is_streamed_) begin_arguments();
  return take_value(byte);
}

bool JsonCallScanner::take_value(char byte) {
  bool ends = false;
  if (in_string_) {
    if (!is_escaped_ && byte == '"') {
      in_string_ = false;
      ends = depth_ == 0;
    }
    is_escaped_ = !is_escaped_ && byte == '\\';
  } else if (byte == '"') {
    in_string_ = true;
  } else if (byte == '{' || byte == '[') {
    ++depth_;
  } else if (byte == '}' || byte == ']') {
    if (depth_ == 0) return end_value() && take(byte);  // of what holds a number
    ends = --depth_ == 0;
  } else if (depth_ == 0 && (byte == ',' || is_json_blank(byte))) {
    return end_value() && take(byte);
  }
  (is_streamed_ ? arguments_ : text_) += byte;
  if (ends) end_value();
  return true;
}

bool JsonCallScanner::end_value() {
  const bool is_key = step_ == Step::kInKey;
  step_ = is_key ? Step::kColon : Step::kComma;
  if (is_streamed_) return is_bare() ? stop() : true;
  if (!nlohmann::json::accept(text_)) return stop();
  const bool is_string = text_.front() == '"';
  if (is_key) {
    key_ = nlohmann::json::parse(text_).get<std::string>();
  } else if (key_ == "name" && !has_name_) {
    if (is_string) name_ = nlohmann::json::parse(text_).get<std::string>();
    has_name_ = !name_.empty();
    is_call_ = has_name_ && has_arguments_;
    if (!has_name_) return stop();
  } else if (is_arguments() && !has_arguments_) {
    arguments_ = text_;
    if (syntax_.lenient_arguments && text_ == "null") arguments_ = "{}";
    if (syntax_.lenient_arguments && is_string) {
      std::string inner = nlohmann::json::parse(text_).get<std::string>();
      const size_t begin = inner.find_first_not_of(kJsonBlanks);
      const bool is_object = begin != inner.npos && inner[begin] == '{';
      if (is_object && nlohmann::json::accept(inner)) arguments_ = std::move(inner);
    }
    begin_arguments();
  }
  return true;
}

}  // namespace

size_t CallScanner::read(std::string_view text) {
  size_t taken = 0;
  while (taken < text.size() && !has_stopped_ && take(text[taken])) ++taken;
  return taken;
}

bool CallScanner::stop() {
  has_stopped_ = true;
  return false;
}

std::unique_ptr<CallScanner> make_call_scanner(const CallSyntax& syntax, const ToolTypes* types) {
  switch (syntax.form) {
    case CallForm::kJson:
    case CallForm::kBareJson:
      return std::make_unique<JsonCallScanner>(syntax);
    case CallForm::kTagged:
      return make_tagged_scanner(*syntax.tagged, types);
    case CallForm::kPythonic:
      return make_pythonic_scanner();
  }
  NANOVLLM_CHECK(false);
}

bool is_json_blank(char byte) { return kJsonBlanks.find(byte) != kJsonBlanks.npos; }

bool is_call_name_byte(char byte) {
  return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
         (byte >= '0' && byte <= '9') || byte == '_' || byte == '-' || byte == '.' || byte == ':' ||
         byte == '/';
}

}  // namespace nanovllm::server
