// Iterators that more than one place makes.
#pragma once

#include "text/jinja/value.h"

namespace nanovllm::jinja {

// Over a list or tuple.
class SequenceIterator : public Iterator {
 public:
  SequenceIterator(Budget* budget, Value sequence);
  bool next(Interpreter& in, Value& item) override;
  const char* type_name() const override { return "list_iterator"; }

 private:
  Value sequence_;
  size_t index_ = 0;
};

Value view_item(Budget& budget, const Dict::Entry& entry, ViewKind which);
// reversed(); throws kType for what has no order to reverse.
Value reverse_iterator(Budget& budget, const Value& sequence);
bool is_iterable(const Value& value);

}  // namespace nanovllm::jinja
