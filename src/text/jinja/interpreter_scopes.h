// What the interpreter switches for a while: where it writes to, and whose variables it sees.
#pragma once

#include <string>

#include "text/jinja/interpreter.h"

namespace nanovllm::jinja {

// Collects what is written while it lives, for blocks whose text is a value. Its bytes count as
// live.
class Interpreter::Buffer {
 public:
  explicit Buffer(Interpreter& in) : in_(in), outer_(in.out_) { in.out_ = &text_; }
  ~Buffer() {
    in_.out_ = outer_;
    in_.budget_.release(text_.size());
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  Value take() { return make_string(in_.budget_, text_, in_.autoescape_); }
  const std::string& text() const { return text_; }

 private:
  Interpreter& in_;
  std::string* outer_;
  std::string text_;
};

// Makes `activation` the running one while it lives.
class Interpreter::Running {
 public:
  Running(Interpreter& in, Activation* activation) : in_(in), outer_(in.activation_) {
    in.activation_ = activation;
  }
  ~Running() { in_.activation_ = outer_; }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  Interpreter& in_;
  Activation* outer_;
};

template <typename Write>
Value Interpreter::run_buffered(const Write& write) {
  Buffer buffer(*this);
  const Running running(*this, activation_);
  write();
  return buffer.take();
}

}  // namespace nanovllm::jinja
