// The interpreter's iterators over what Python can iterate.
#include "text/jinja/interpreter.h"
#include "text/jinja/iterators.h"
#include "text/jinja/operators.h"
#include "text/jinja/unicode.h"

namespace nanovllm::jinja {
namespace {

class CharacterIterator : public Iterator {
 public:
  CharacterIterator(Budget* budget, Value string)
      : Iterator(budget, string.depth()), string_(std::move(string)) {}
  bool next(Interpreter& in, Value& item) override {
    const std::string& text = text_of(string_);
    if (pos_ >= text.size()) return false;
    const size_t begin = pos_;
    decode(text, pos_);
    // Plain, of a Markup too: Python iterates over the str that it is.
    item = make_string(in.budget(), text.substr(begin, pos_ - begin));
    return true;
  }
  const char* type_name() const override { return "str_iterator"; }

 private:
  Value string_;
  size_t pos_ = 0;  // bytes
};

class DictIterator : public Iterator {
 public:
  DictIterator(Budget* budget, Value dict, ViewKind which)
      : Iterator(budget, dict.depth()), dict_(std::move(dict)), which_(which) {}
  bool next(Interpreter& in, Value& item) override {
    const auto& entries = dict_.as<Dict>().entries();
    if (index_ >= entries.size()) return false;
    item = view_item(in.budget(), entries[index_++], which_);
    return true;
  }
  const char* type_name() const override { return "dict_keyiterator"; }

 private:
  Value dict_;
  ViewKind which_;
  size_t index_ = 0;
};

class RangeIterator : public Iterator {
 public:
  RangeIterator(Budget* budget, Value range) : Iterator(budget, 0), range_(std::move(range)) {}
  bool next(Interpreter&, Value& item) override {
    const auto& range = range_.as<Range>();
    if (index_ >= range.length) return false;
    item = Value::integer(range.at(index_++));
    return true;
  }
  const char* type_name() const override { return "range_iterator"; }

 private:
  Value range_;
  int64_t index_ = 0;
};

// From the last item to the first.
class ReverseIterator : public Iterator {
 public:
  ReverseIterator(Budget* budget, Value sequence)
      : Iterator(budget, sequence.depth()),
        sequence_(std::move(sequence)),
        left_(length_of(sequence_)) {}
  bool next(Interpreter& in, Value& item) override {
    if (left_ == 0) return false;
    const auto index = static_cast<size_t>(--left_);
    switch (sequence_.kind()) {
      case Kind::kDict:
        item = sequence_.as<Dict>().entries()[index].key;
        break;
      case Kind::kView: {
        const auto& view = sequence_.as<View>();
        item = view_item(in.budget(), view.dict.as<Dict>().entries()[index], view.which);
        break;
      }
      case Kind::kRange:
        item = Value::integer(sequence_.as<Range>().at(left_));
        break;
      default:
        item = items_of(sequence_)[index];
    }
    return true;
  }
  const char* type_name() const override { return "list_reverseiterator"; }

 private:
  Value sequence_;
  int64_t left_;
};

}  // namespace

SequenceIterator::SequenceIterator(Budget* budget, Value sequence)
    : Iterator(budget, sequence.depth()), sequence_(std::move(sequence)) {}

bool SequenceIterator::next(Interpreter&, Value& item) {
  const Values& items = items_of(sequence_);
  if (index_ >= items.size()) return false;
  item = items[index_++];
  return true;
}

Value view_item(Budget& budget, const Dict::Entry& entry, ViewKind which) {
  if (which == ViewKind::kKeys) return entry.key;
  if (which == ViewKind::kValues) return entry.value;
  return make_tuple(budget, {entry.key, entry.value});
}

Value reverse_iterator(Budget& budget, const Value& sequence) {
  switch (sequence.kind()) {
    case Kind::kUndefined:
      return make<SequenceIterator>(Kind::kIterator, budget, make_tuple(budget, {}));
    case Kind::kString: {
      Values characters;
      const std::string& text = text_of(sequence);
      for (size_t pos = 0; pos < text.size();) {
        const size_t begin = pos;
        decode(text, pos);
        budget.step();
        characters.push_back(
            make_string(budget, text.substr(begin, pos - begin), is_markup(sequence)));
      }
      return make<ReverseIterator>(Kind::kIterator, budget,
                                   make_tuple(budget, std::move(characters)));
    }
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
    case Kind::kView:
    case Kind::kRange:
      return make<ReverseIterator>(Kind::kIterator, budget, sequence);
    default:
      fail(Fault::kType, "'{}' object is not reversible", type_name(sequence));
  }
}

bool is_iterable(const Value& value) {
  return has_length(value) || value.is(Kind::kIterator) || value.is(Kind::kLoop);
}

Value Interpreter::iterate(const Value& value) {
  switch (value.kind()) {
    case Kind::kIterator:
      return value;
    case Kind::kList:
    case Kind::kTuple:
      return make<SequenceIterator>(Kind::kIterator, budget_, value);
    case Kind::kUndefined:
      return make<SequenceIterator>(Kind::kIterator, budget_, make_tuple(budget_, {}));
    case Kind::kString:
      return make<CharacterIterator>(Kind::kIterator, budget_, value);
    case Kind::kDict:
      return make<DictIterator>(Kind::kIterator, budget_, value, ViewKind::kKeys);
    case Kind::kView:
      return make<DictIterator>(Kind::kIterator, budget_, value.as<View>().dict,
                                value.as<View>().which);
    case Kind::kRange:
      return make<RangeIterator>(Kind::kIterator, budget_, value);
    default:
      fail(Fault::kType, "'{}' object is not iterable", type_name(value));
  }
}

Values Interpreter::to_values(const Value& iterable) {
  Values values;
  for_each(iterable, [&](const Value& item) {
    values.push_back(item);
    if (values.size() % 1024 == 0) budget_.expect(values.size() * sizeof(Value));
    return true;
  });
  return values;
}

}  // namespace nanovllm::jinja
