// Calls as Python writes them: f(x=1, y="a").
#include "server/transcript/call_scanners.h"
#include "server/transcript/pythonic_json.h"

namespace nanovllm::server {
namespace {

class PythonicCallScanner final : public CallScanner {
 private:
  enum class Step { kName, kKey, kEqual, kValue };

  bool take(char byte) override;
  bool take_key(char byte);
  bool take_value(char byte);
  bool end();

  Step step_ = Step::kName;
  std::string key_ = {};
  bool has_arguments_ = false;
  PythonicJson value_ = {};
};

bool PythonicCallScanner::take(char byte) {
  switch (step_) {
    case Step::kName:
      if (name_.empty() && is_json_blank(byte)) return true;
      if (byte == '(' && !name_.empty()) {
        step_ = Step::kKey;
        return true;
      }
      if (!is_call_name_byte(byte)) return stop();
      name_ += byte;
      return true;
    case Step::kKey:
      return take_key(byte);
    case Step::kEqual:
      if (is_json_blank(byte)) return true;
      return byte == '=' ? take_key(byte) : stop();
    case Step::kValue:
      return take_value(byte);
  }
  return false;
}

bool PythonicCallScanner::take_key(char byte) {
  if (is_json_blank(byte)) {
    if (!key_.empty()) step_ = Step::kEqual;
    return true;
  }
  if (byte == ')' && key_.empty()) return end();
  if (byte == '=' && !key_.empty()) {
    is_call_ = true;
    arguments_ += (has_arguments_ ? ", \"" : "{\"") + std::exchange(key_, {}) + "\": ";
    has_arguments_ = true;
    value_ = {};
    step_ = Step::kValue;
    return true;
  }
  if (!is_call_name_byte(byte)) return stop();
  key_ += byte;
  return true;
}

bool PythonicCallScanner::take_value(char byte) {
  if (!value_.is_outside() || (byte != ',' && byte != ')')) {
    if (value_.is_outside() && (byte == ']' || byte == '}')) {
      arguments_ += value_.finish();
      return stop();
    }
    if (!value_.is_outside() || !is_json_blank(byte)) arguments_ += value_.take(byte);
    return true;
  }
  arguments_ += value_.finish();
  step_ = Step::kKey;
  return byte == ',' ? true : end();
}

bool PythonicCallScanner::end() {
  arguments_ += has_arguments_ ? "}" : "{}";
  is_call_ = true;
  stop();
  return true;
}

}  // namespace

std::unique_ptr<CallScanner> make_pythonic_scanner() {
  return std::make_unique<PythonicCallScanner>();
}

}  // namespace nanovllm::server
