#include "text/jinja/resolver.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "text/jinja/ast_walk.h"
#include "text/jinja/error.h"
#include "text/jinja/symbols.h"

namespace nanovllm::jinja {
namespace {

// The names of `wanted` that something below refers to before it assigns them.
template <typename Walk>
std::set<std::string> find_undeclared(std::set<std::string> wanted, const Walk& walk_nodes) {
  std::set<std::string> found;
  TreeWalk walk(
      [&](Name& name) {
        if (name.use == Name::Use::kLoad && wanted.contains(name.name)) {
          found.insert(name.name);
        } else {
          wanted.erase(name.name);
        }
      },
      [](Block&) { return false; });
  walk_nodes(walk);
  return found;
}

std::set<std::string> find_undeclared(std::set<std::string> wanted, const Body& body) {
  return find_undeclared(std::move(wanted), [&](auto& walk) { walk.walk(body); });
}

// A scope being resolved.
struct Frame {
  Symbols& symbols;
  bool is_toplevel = false;  // assignments are seen by blocks
  bool in_loop = false;      // break and continue have a loop to act on
  // Within a condition a missing filter or test is an error only when it is reached.
  bool is_soft = false;

  FunctionScope& function() const { return symbols.function(); }
};

class Resolver {
 public:
  Resolver(Template& parsed, uint32_t& offset) : template_(parsed), offset_(offset) {}

  void run() {
    find_blocks();
    FunctionScope function(template_.function, nullptr);
    Symbols symbols(nullptr, function);
    const Frame root{symbols, true};
    if (!find_undeclared({"self"}, template_.body).empty()) {
      template_.self_slot = root.symbols.declare_parameter("self").slot;
    }
    root.symbols.collect(template_.body);
    template_.scope = enter(root);
    resolve(template_.body, root);
    for (Block* block : template_.blocks) resolve_block_body(*block);
  }

 private:
  template <typename... Args>
  [[noreturn]] void fail_at(uint32_t offset, fmt::format_string<Args...> format, Args&&... args) {
    offset_ = offset;
    fail(Fault::kSyntax, format, std::forward<Args>(args)...);
  }

  int context_index(const std::string& name) {
    const auto [entry, is_new] =
        context_indices_.try_emplace(name, static_cast<int>(template_.context_names.size()));
    if (is_new) template_.context_names.push_back(name);
    return entry->second;
  }
  Scope enter(const Frame& frame) {
    return frame.symbols.enter([&](const std::string& name) { return context_index(name); });
  }
  // A scope within `frame`, in the same function or in one of its own.
  static Frame inner(const Frame& frame, Symbols& symbols) {
    Frame result{symbols};
    result.in_loop = &symbols.function() == &frame.function() && frame.in_loop;
    return result;
  }
  static Symbols inner_symbols(const Frame& frame) { return {&frame.symbols, frame.function()}; }

  void find_blocks() {
    std::set<std::string> names;
    TreeWalk walk([](Name&) {},
                  [&](Block& block) {
                    if (!names.insert(block.name).second) {
                      fail_at(block.offset, "block '{}' defined twice", block.name);
                    }
                    template_.blocks.push_back(&block);
                    return true;
                  });
    walk.walk(template_.body);
  }

  // Expressions

  void resolve(Expr& expr, const Frame& frame) { resolve(expr, frame, frame.is_soft); }

  void resolve(Expr& expr, const Frame& frame, bool is_soft) {
    switch (expr.kind) {
      case ExprKind::kName:
        return resolve_name(static_cast<Name&>(expr), frame);
      case ExprKind::kNamespaceRef:
        offset_ = expr.offset;
        static_cast<NamespaceRef&>(expr).ref =
            frame.symbols.resolve(static_cast<NamespaceRef&>(expr).name);
        return;
      case ExprKind::kCondition:
        is_soft = true;
        break;
      case ExprKind::kAnd:
      case ExprKind::kOr: {
        // Jinja folds constants before it looks for filters, so what is never reached may name any.
        const auto& node = static_cast<const Binary&>(expr);
        const bool is_decided =
            node.left->kind == ExprKind::kConst &&
            is_truthy(static_cast<const Const&>(*node.left).value) == (expr.kind == ExprKind::kOr);
        resolve(*node.left, frame, is_soft);
        return resolve(*node.right, frame, is_soft || is_decided);
      }
      case ExprKind::kFilter:
      case ExprKind::kTest: {
        const auto& node = static_cast<FilterOrTest&>(expr);
        if (node.builtin == nullptr && !is_soft) {
          fail_at(expr.offset, "No {} named '{}'.",
                  expr.kind == ExprKind::kFilter ? "filter" : "test", node.name);
        }
        check_names(node.arguments, expr.offset);
        break;
      }
      case ExprKind::kCall:
        check_names(static_cast<Call&>(expr).arguments, expr.offset);
        break;
      default:
        break;
    }
    for_each_part(expr, [&](Expr& part) { resolve(part, frame, is_soft); });
  }

  void check_names(const CallArguments& arguments, uint32_t offset) {
    for (size_t i = 0; i < arguments.named.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (text_of(arguments.named[i].first) == text_of(arguments.named[j].first)) {
          fail_at(offset, "keyword argument repeated: {}", text_of(arguments.named[i].first));
        }
      }
    }
  }

  void resolve_name(Name& name, const Frame& frame) {
    offset_ = name.offset;
    name.ref = frame.symbols.resolve(name.name);
    if (name.use == Name::Use::kStore && frame.is_toplevel && !template_.blocks.empty()) {
      name.context_name = context_index(name.name);
    }
  }

  // Statements

  void resolve(const Body& body, const Frame& frame) {
    for (const StmtPtr& statement : body) resolve(*statement, frame);
  }

  void resolve(Stmt& statement, const Frame& frame) {
    switch (statement.kind) {
      case StmtKind::kOutput:
        for (const ExprPtr& item : static_cast<Output&>(statement).items) resolve(*item, frame);
        return;
      case StmtKind::kFor:
        return resolve_for(static_cast<For&>(statement), frame);
      case StmtKind::kIf:
        return resolve_if(static_cast<If&>(statement), frame);
      case StmtKind::kMacro: {
        auto& node = static_cast<MacroStmt&>(statement);
        resolve_macro(node.macro, node.offset, frame);
        node.ref = frame.symbols.resolve(node.name);
        if (frame.is_toplevel && !template_.blocks.empty()) {
          node.context_name = context_index(node.name);
        }
        return;
      }
      case StmtKind::kCallBlock: {
        auto& node = static_cast<CallBlock&>(statement);
        resolve_macro(node.macro, node.offset, frame);
        if (node.call != nullptr) resolve_block_call(static_cast<Call&>(*node.call), frame);
        return;
      }
      case StmtKind::kFilterBlock:
        return resolve_filter_block(static_cast<FilterBlock&>(statement), frame);
      case StmtKind::kWith:
        return resolve_with(static_cast<With&>(statement), frame);
      case StmtKind::kAssign:
        resolve(*static_cast<Assign&>(statement).target, frame);
        resolve(*static_cast<Assign&>(statement).value, frame);
        return;
      case StmtKind::kAssignBlock:
        return resolve_assign_block(static_cast<AssignBlock&>(statement), frame);
      case StmtKind::kBlock: {
        auto& block = static_cast<Block&>(statement);
        if (!block.is_scoped) return;
        for (const auto& [name, ref] : frame.symbols.visible_stores()) {
          block.visible.emplace_back(context_index(name), ref);
        }
        return;
      }
      case StmtKind::kAutoescape: {
        auto& node = static_cast<Autoescape&>(statement);
        Symbols symbols = inner_symbols(frame);
        const Frame scope = inner(frame, symbols);
        symbols.collect(*node.enabled);
        symbols.collect(node.body);
        node.scope = enter(scope);
        resolve(*node.enabled, scope);
        resolve(node.body, scope);
        return;
      }
      case StmtKind::kImport:
        if (static_cast<Import&>(statement).tag == "extends" && !frame.is_toplevel) {
          fail_at(statement.offset, "cannot use extend from a non top-level scope");
        }
        return resolve(*static_cast<Import&>(statement).source, frame);
      case StmtKind::kBreak:
      case StmtKind::kContinue:
        if (!frame.in_loop) {
          fail_at(statement.offset, "'{}' outside loop",
                  statement.kind == StmtKind::kBreak ? "break" : "continue");
        }
        return;
    }
  }

  void resolve_if(If& node, const Frame& frame) {
    Frame soft = frame;
    soft.is_soft = true;
    for (const If::Branch& branch : node.branches) {
      resolve(*branch.test, soft);
      resolve(branch.body, soft);
    }
    resolve(node.otherwise, soft);
  }

  void check_loop_assignments(For& node) {
    TreeWalk walk(
        [&](Name& name) {
          if (name.use == Name::Use::kStore && name.name == "loop") {
            fail_at(name.offset, "Can't assign to special loop variable in for-loop target");
          }
        },
        [](Block&) { return true; });
    walk.walk(node);
  }

  // Whether the body can see the variable `loop`.
  bool uses_loop(const For& node) {
    if (node.is_recursive || !find_undeclared({"loop"}, node.body).empty()) return true;
    bool has_scoped_block = false;
    TreeWalk walk([](Name&) {},
                  [&](Block& block) {
                    has_scoped_block |= block.is_scoped;
                    return true;
                  });
    walk.walk(node.body);
    walk.walk(node.otherwise);
    return has_scoped_block;
  }

  void resolve_for(For& node, const Frame& frame) {
    check_loop_assignments(node);
    std::optional<FunctionScope> recursive;
    if (node.is_recursive) recursive.emplace(node.function, &frame.function());
    FunctionScope& function = recursive.has_value() ? *recursive : frame.function();

    Symbols body_symbols(&frame.symbols, function);
    Frame body = inner(frame, body_symbols);
    body.in_loop = true;
    if (uses_loop(node)) node.loop_slot = body_symbols.declare_parameter("loop").slot;
    body_symbols.collect_parameters(*node.target);
    body_symbols.collect(node.body);

    if (node.test != nullptr) resolve_loop_test(node, frame);
    resolve(*node.iterable, frame);
    resolve(*node.target, body);
    node.scope = enter(body);
    resolve(node.body, body);

    Symbols else_symbols(&frame.symbols, function);
    const Frame otherwise = inner(frame, else_symbols);
    else_symbols.collect(node.otherwise);
    node.else_scope = enter(otherwise);
    resolve(node.otherwise, otherwise);
  }

  void resolve_loop_test(For& node, const Frame& frame) {
    FunctionScope function(node.test_function, &frame.function());
    Symbols symbols(&frame.symbols, function);
    const Frame test = inner(frame, symbols);
    symbols.collect_parameters(*node.test_target);
    symbols.collect(*node.test);
    node.test_scope = enter(test);
    resolve(*node.test_target, test);
    resolve(*node.test, test);
  }

  void resolve_macro(MacroBody& macro, uint32_t offset, const Frame& frame) {
    FunctionScope function(macro.function, &frame.function());
    Symbols symbols(&frame.symbols, function);
    const Frame body = inner(frame, symbols);
    const auto collect = [&] {
      for (const auto& parameter : macro.parameters) symbols.collect(*parameter);
      for (const ExprPtr& value : macro.defaults) symbols.collect(*value);
      symbols.collect(macro.body);
    };
    collect();
    declare_special_variables(macro, offset, symbols);
    collect();
    macro.scope = enter(body);
    for (const auto& parameter : macro.parameters) resolve(*parameter, body);
    for (const ExprPtr& value : macro.defaults) resolve(*value, body);
    resolve(macro.body, body);
  }

  void declare_special_variables(MacroBody& macro, uint32_t offset, Symbols& symbols) {
    std::set<std::string> parameters;
    bool caller_has_default = false;
    for (size_t i = 0; i < macro.parameters.size(); ++i) {
      const std::string& name = macro.parameters[i]->name;
      if (!parameters.insert(name).second) {
        fail_at(macro.parameters[i]->offset, "duplicate argument '{}' in macro definition", name);
      }
      caller_has_default |=
          name == "caller" && i + macro.defaults.size() >= macro.parameters.size();
    }
    const std::set<std::string> used = find_undeclared({"caller", "kwargs", "varargs"}, macro.body);
    if (used.contains("caller")) {
      if (!parameters.contains("caller")) {
        macro.uses_caller = true;
        macro.caller_slot = symbols.declare_parameter("caller").slot;
      } else if (!caller_has_default) {
        fail_at(offset,
                "When defining macros or call blocks the special \"caller\" argument must be "
                "omitted or be given a default.");
      }
    }
    if (used.contains("kwargs") && !parameters.contains("kwargs")) {
      macro.uses_kwargs = true;
      macro.kwargs_slot = symbols.declare_parameter("kwargs").slot;
    }
    if (used.contains("varargs") && !parameters.contains("varargs")) {
      macro.uses_varargs = true;
      macro.varargs_slot = symbols.declare_parameter("varargs").slot;
    }
  }

  void resolve_block_call(Call& call, const Frame& frame) {
    for (const auto& [name, value] : call.arguments.named) {
      if (text_of(name) == "caller") fail_at(call.offset, "keyword argument repeated: caller");
    }
    resolve(call, frame);
  }

  void resolve_filter_block(FilterBlock& node, const Frame& frame) {
    Symbols symbols = inner_symbols(frame);
    const Frame scope = inner(frame, symbols);
    symbols.collect(node.body);
    symbols.collect(*node.filter);
    node.scope = enter(scope);
    resolve(node.body, scope);
    resolve(*node.filter, scope);
  }

  void resolve_with(With& node, const Frame& frame) {
    Symbols symbols = inner_symbols(frame);
    const Frame scope = inner(frame, symbols);
    for (const ExprPtr& target : node.targets) symbols.collect(*target);
    symbols.collect(node.body);
    node.scope = enter(scope);
    for (const ExprPtr& target : node.targets) resolve(*target, scope);
    for (const ExprPtr& value : node.values) resolve(*value, frame);
    resolve(node.body, scope);
  }

  void resolve_assign_block(AssignBlock& node, const Frame& frame) {
    Symbols symbols = inner_symbols(frame);
    const Frame scope = inner(frame, symbols);
    symbols.collect(node.body);
    node.scope = enter(scope);
    resolve(node.body, scope);
    resolve(*node.target, frame);
    if (node.filter != nullptr) resolve(*node.filter, scope);
  }

  // A block sees the variables of the rendering, not those of the scopes around it.
  void resolve_block_body(Block& block) {
    FunctionScope function(block.function, nullptr);
    Symbols symbols(nullptr, function);
    const Frame frame{symbols};
    if (!find_undeclared({"self"}, block.body).empty()) {
      block.self_slot = frame.symbols.declare_parameter("self").slot;
    }
    frame.symbols.collect(block.body);
    block.scope = enter(frame);
    resolve(block.body, frame);
  }

  Template& template_;
  uint32_t& offset_;
  std::map<std::string, int> context_indices_;
};

}  // namespace

void resolve(Template& parsed, uint32_t& offset) { Resolver(parsed, offset).run(); }

}  // namespace nanovllm::jinja
