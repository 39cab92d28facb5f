#include "text/jinja/attribute_getter.h"
#include "text/jinja/filters.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/iterators.h"
#include "text/jinja/operators.h"
#include "text/jinja/unicode.h"

namespace nanovllm::jinja {
namespace {

// Base of what Jinja implements as generators: nothing happens, no error either, before the first
// item is asked for.
class Generator : public Iterator {
 public:
  Generator(Budget* budget, Value source, const Arguments& arguments)
      : Iterator(budget, source.depth()), source_(std::move(source)) {
    for (const Value& value : arguments.positional) set_depth_above(value.depth());
    for (const auto& [name, value] : arguments.named) set_depth_above(value.depth());
  }

  bool next(Interpreter& in, Value& item) final {
    if (is_over_) return false;
    const Nesting nesting(in.budget());
    if (!has_started_) {
      has_started_ = true;
      is_over_ = !start(in);
    }
    is_over_ = is_over_ || !produce(in, item);
    return !is_over_;
  }

 protected:
  // False when there will be no items.
  virtual bool start(Interpreter& in) = 0;
  virtual bool produce(Interpreter& in, Value& item) = 0;
  bool next_of_source(Interpreter& in, Value& item) {
    in.budget().step();
    if (items_.is_missing()) items_ = in.iterate(source_);
    return items_.as<Iterator>().next(in, item);
  }

  Value source_;

 private:
  Value items_;
  bool has_started_ = false;
  bool is_over_ = false;
};

class MapGenerator : public Generator {
 public:
  MapGenerator(Budget* budget, Value source, Arguments arguments)
      : Generator(budget, std::move(source), arguments), arguments_(std::move(arguments)) {}

 protected:
  bool start(Interpreter& in) override {
    if (!is_truthy(source_)) return false;
    const Value* attribute = arguments_.find("attribute");
    if (arguments_.positional.empty() && attribute != nullptr) {
      const Value* otherwise = arguments_.find("default");
      for (const auto& [name, value] : arguments_.named) {
        if (text_of(name) != "attribute" && text_of(name) != "default") {
          fail(Fault::kRuntime, "Unexpected keyword argument '{}'", text_of(name));
        }
      }
      getter_ = std::make_unique<AttributeGetter>(in, attribute, false,
                                                  otherwise == nullptr ? Value() : *otherwise);
      return true;
    }
    if (arguments_.positional.empty()) {
      fail(Fault::kRuntime, "map requires a filter argument");
    }
    name_ = arguments_.positional.front();
    arguments_.positional.erase(arguments_.positional.begin());
    return true;
  }

  bool produce(Interpreter& in, Value& item) override {
    Value source;
    if (!next_of_source(in, source)) return false;
    item = getter_ != nullptr ? (*getter_)(in, source) : in.call_filter(name_, source, arguments_);
    return true;
  }

 private:
  Arguments arguments_;
  Value name_;
  std::unique_ptr<AttributeGetter> getter_;
};

struct Selection {
  bool by_attribute = false;
  bool wanted = true;  // what the test has to give
};

class SelectGenerator : public Generator {
 public:
  SelectGenerator(Budget* budget, Value source, Arguments arguments, Selection selection)
      : Generator(budget, std::move(source), arguments),
        arguments_(std::move(arguments)),
        selection_(selection) {}

 protected:
  bool start(Interpreter& in) override {
    if (!is_truthy(source_)) return false;
    Values& positional = arguments_.positional;
    if (selection_.by_attribute) {
      if (positional.empty()) fail(Fault::kRuntime, "Missing parameter for attribute name");
      getter_ = std::make_unique<AttributeGetter>(in, &positional.front(), false);
      positional.erase(positional.begin());
    }
    if (!positional.empty()) {
      test_ = positional.front();
      positional.erase(positional.begin());
    }
    return true;
  }

  bool produce(Interpreter& in, Value& item) override {
    while (next_of_source(in, item)) {
      const Value tested = getter_ != nullptr ? (*getter_)(in, item) : item;
      const bool holds =
          test_.is_missing() ? is_truthy(tested) : in.call_test(test_, tested, arguments_);
      if (holds == selection_.wanted) return true;
    }
    return false;
  }

 private:
  Arguments arguments_;
  Selection selection_;
  Value test_;
  std::unique_ptr<AttributeGetter> getter_;
};

class ItemsGenerator : public Generator {
 public:
  ItemsGenerator(Budget* budget, Value source) : Generator(budget, std::move(source), {}) {}

 protected:
  bool start(Interpreter&) override {
    if (source_.is_undefined()) return false;
    if (!source_.is(Kind::kDict)) fail(Fault::kType, "Can only get item pairs from a mapping.");
    return true;
  }
  bool produce(Interpreter& in, Value& item) override {
    const auto& entries = source_.as<Dict>().entries();
    if (index_ >= entries.size()) return false;
    item = view_item(in.budget(), entries[index_++], ViewKind::kItems);
    return true;
  }

 private:
  size_t index_ = 0;
};

class BatchGenerator : public Generator {
 public:
  BatchGenerator(Budget* budget, Value source, int64_t size, Value fill)
      : Generator(budget, std::move(source), {}), size_(size), fill_(std::move(fill)) {
    set_depth_above(fill_.depth());
  }

 protected:
  bool start(Interpreter&) override { return true; }
  bool produce(Interpreter& in, Value& item) override {
    Values batch = std::move(pending_);
    pending_.clear();
    Value next;
    while (next_of_source(in, next)) {
      if (static_cast<int64_t>(batch.size()) == size_) {
        pending_.push_back(std::move(next));
        item = make_list(in.budget(), std::move(batch));
        return true;
      }
      batch.push_back(std::move(next));
    }
    if (batch.empty()) return false;
    if (!fill_.is_missing() && !fill_.is_none()) {
      in.budget().expect(static_cast<size_t>(std::max<int64_t>(0, size_)) * sizeof(Value));
      while (static_cast<int64_t>(batch.size()) < size_) batch.push_back(fill_);
    }
    item = make_list(in.budget(), std::move(batch));
    return true;
  }

 private:
  int64_t size_;
  Value fill_;
  Values pending_;
};

class SliceGenerator : public Generator {
 public:
  SliceGenerator(Budget* budget, Value source, int64_t slices, Value fill)
      : Generator(budget, std::move(source), {}), slices_(slices), fill_(std::move(fill)) {
    set_depth_above(fill_.depth());
  }

 protected:
  bool start(Interpreter& in) override {
    items_ = in.to_values(source_);
    if (slices_ == 0) fail(Fault::kArithmetic, "integer division or modulo by zero");
    return true;
  }
  bool produce(Interpreter& in, Value& item) override {
    if (number_ >= slices_) return false;
    const auto length = static_cast<int64_t>(items_.size());
    const int64_t each = length / slices_;
    const int64_t with_extra = length % slices_;
    const int64_t begin = number_ * each + std::min(number_, with_extra);
    const int64_t end = begin + each + (number_ < with_extra ? 1 : 0);
    Values slice(items_.begin() + begin, items_.begin() + end);
    if (!fill_.is_missing() && !fill_.is_none() && number_ >= with_extra) slice.push_back(fill_);
    ++number_;
    item = make_list(in.budget(), std::move(slice));
    return true;
  }

 private:
  int64_t slices_;
  Value fill_;
  Values items_;
  int64_t number_ = 0;
};

Value select(Interpreter& in, const Value& value, Arguments& arguments, Selection selection) {
  return make<SelectGenerator>(Kind::kIterator, in.budget(), value, std::move(arguments),
                               selection);
}

}  // namespace

Value filter_map(Interpreter& in, const Value& value, Arguments& arguments) {
  return make<MapGenerator>(Kind::kIterator, in.budget(), value, std::move(arguments));
}

Value filter_select(Interpreter& in, const Value& value, Arguments& arguments) {
  return select(in, value, arguments, {false, true});
}

Value filter_reject(Interpreter& in, const Value& value, Arguments& arguments) {
  return select(in, value, arguments, {false, false});
}

Value filter_selectattr(Interpreter& in, const Value& value, Arguments& arguments) {
  return select(in, value, arguments, {true, true});
}

Value filter_rejectattr(Interpreter& in, const Value& value, Arguments& arguments) {
  return select(in, value, arguments, {true, false});
}

Value filter_items(Interpreter& in, const Value& value, Arguments& arguments) {
  bind_none(arguments, "items");
  return make<ItemsGenerator>(Kind::kIterator, in.budget(), value);
}

Value filter_batch(Interpreter& in, const Value& value, Arguments& arguments) {
  const auto [size, fill] = bind<2>(arguments, "batch", {"linecount", "fill_with?"});
  return make<BatchGenerator>(Kind::kIterator, in.budget(), value, int_argument(size, 0, "batch"),
                              fill == nullptr ? Value() : *fill);
}

Value filter_slice(Interpreter& in, const Value& value, Arguments& arguments) {
  const auto [slices, fill] = bind<2>(arguments, "slice", {"slices", "fill_with?"});
  return make<SliceGenerator>(Kind::kIterator, in.budget(), value, int_argument(slices, 0, "slice"),
                              fill == nullptr ? Value() : *fill);
}

Value filter_first(Interpreter& in, const Value& value, Arguments& arguments) {
  bind_none(arguments, "first");
  Value item;
  if (in.iterate(value).as<Iterator>().next(in, item)) return item;
  return make_undefined(in.budget(), "No first item, sequence was empty.", "");
}

Value filter_last(Interpreter& in, const Value& value, Arguments& arguments) {
  bind_none(arguments, "last");
  Value item;
  if (reverse_iterator(in.budget(), value).as<Iterator>().next(in, item)) return item;
  return make_undefined(in.budget(), "No last item, sequence was empty.", "");
}

Value filter_list(Interpreter& in, const Value& value, Arguments& arguments) {
  bind_none(arguments, "list");
  return make_list(in.budget(), in.to_values(value));
}

Value filter_reverse(Interpreter& in, const Value& value, Arguments& arguments) {
  bind_none(arguments, "reverse");
  if (value.is(Kind::kIterator)) {
    Values items = in.to_values(value);
    return make_list(in.budget(), Values(items.rbegin(), items.rend()));
  }
  if (!value.is_string()) return reverse_iterator(in.budget(), value);
  const std::string& text = text_of(value);
  in.budget().work(text.size() * 4);
  std::string out(text.size(), '\0');
  size_t end = text.size();
  for (size_t pos = 0; pos < text.size();) {
    const size_t begin = pos;
    decode(text, pos);
    end -= pos - begin;
    text.copy(out.data() + end, pos - begin, begin);
  }
  return make_string(in.budget(), std::move(out), is_markup(value));
}

}  // namespace nanovllm::jinja
