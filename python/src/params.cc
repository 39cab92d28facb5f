// SamplingParams and EngineConfig, whose keywords come from tables, and StructuredOutputsParams.
#include <nanobind/operators.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <iterator>
#include <string>
#include <type_traits>

#include "api/json.h"
#include "api/structured_outputs_json.h"
#include "base/check.h"
#include "base/message.h"
#include "convert.h"
#include "engine/config_table.h"
#include "engine/sampling_table.h"
#include "models/load_config.h"

namespace nanovllm::python {
namespace {

nb::object get(const SamplingParams& params, const Parameter& parameter) {
  const auto value_of = [&]<typename T>(T SamplingParams::*member) -> nb::object {
    if constexpr (std::is_same_v<T, int>) {  // as many as fit: vLLM's None
      if (params.*member == kAsManyAsFit) return nb::none();
    }
    return nb::cast(params.*member);
  };
  return std::visit(value_of, parameter.member);
}

void set(SamplingParams& params, std::string_view name, nb::handle value) {
  if (name == "structured_outputs" && nb::isinstance<StructuredOutputsParams>(value)) {
    params.structured_outputs = nb::cast<const StructuredOutputsParams&>(value);
    return;
  }
  if (name == "output_kind") {
    if (nb::try_cast(value, params.output_kind)) return;
    throw nb::type_error("output_kind must be a RequestOutputKind");
  }
  nlohmann::json object;
  object[std::string(name)] = name == "structured_outputs" ? to_document(value) : to_json(value);
  update_sampling_params(params, object);
}

// Checks it whatever the other parameters are, which may be assigned next.
void assign(SamplingParams& params, std::string_view name, nb::handle value) {
  SamplingParams alone;
  alone.max_tokens = kAsManyAsFit;
  set(alone, name, value);
  alone.validate();
  set(params, name, value);
}

SamplingParams make(const nb::dict& values) {
  SamplingParams params;
  try {
    for (const auto [key, value] : values) set(params, to_text(key), value);
  } catch (const std::exception&) {
    // No sooner: a daemon thread that Python stops in there, for it has ended, ends the process.
    const nb::object known =
        nb::module_::import_("nanovllm._arguments").attr("known_parameters")(values);
    if (nb::len(known) == nb::len(values)) throw;
    return make(nb::cast<nb::dict>(known));  // the others ask for nothing
  }
  params.validate();
  return params;
}

// The table as Python sees it: name, default and what help() says.
nb::list parameters() {
  nb::list rows;
  for (const Parameter& parameter : sampling_table()) {
    std::string help(parameter.help);
    const auto& ranges = parameter.ranges;
    if (!ranges.empty() && ranges.back().sentence == nullptr) {
      help = fmt::format("{}: {}", interval(ranges.back()), help);
    }
    rows.append(nb::make_tuple(parameter.name, get({}, parameter), help));
  }
  return rows;
}

// In vLLM's order, in which they may be given without their names.
template <typename... Handles>
StructuredOutputsParams structured_outputs_of(Handles... values) {
  constexpr std::string_view kNames[] = {"json",
                                         "regex",
                                         "choice",
                                         "grammar",
                                         "json_object",
                                         "disable_any_whitespace",
                                         "disable_additional_properties",
                                         "whitespace_pattern",
                                         "structural_tag"};
  static_assert(sizeof...(Handles) == std::size(kNames));
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  const auto* name = std::begin(kNames);
  ((object[std::string(*name++)] = to_document(values)), ...);
  StructuredOutputsParams params = read_structured_outputs(object);
  params.validate();
  return params;
}

void bind_structured_outputs(nb::module_& module) {
  using P = StructuredOutputsParams;
  nb::class_<P> params(module, "StructuredOutputsParams",
                       "What an output must follow: exactly one of json, regex, choice, grammar, "
                       "json_object and structural_tag, as in vLLM.");
  using H = nb::handle;
  params
      .def(
          "__init__",
          [](P* self, H json, H regex, H choice, H grammar, H json_object, H any_whitespace,
             H additional_properties, H whitespace_pattern, H structural_tag,
             const nb::kwargs& others) {
            if (others.size() > 0) {
              nb::module_::import_("nanovllm._arguments").attr("check_constraints")(others);
            }
            new (self)
                P(structured_outputs_of(json, regex, choice, grammar, json_object, any_whitespace,
                                        additional_properties, whitespace_pattern, structural_tag));
          },
          nb::arg("json") = nb::none(), nb::arg("regex") = nb::none(),
          nb::arg("choice") = nb::none(), nb::arg("grammar") = nb::none(),
          nb::arg("json_object") = nb::none(), nb::arg("disable_any_whitespace") = false,
          nb::arg("disable_additional_properties") = false,
          nb::arg("whitespace_pattern") = nb::none(), nb::arg("structural_tag") = nb::none(),
          nb::arg("others"))
      .def_ro("json", &P::json, "A JSON Schema: its text, or a dict.")
      .def_ro("regex", &P::regex, "A regular expression that matches the whole output.")
      .def_ro("choice", &P::choice, "Texts of which the output is one.")
      .def_ro("grammar", &P::grammar, "llama.cpp's GBNF; it begins with the rule root.")
      .def_ro("json_object", &P::json_object, "Any JSON object.")
      .def_ro("disable_any_whitespace", &P::disable_any_whitespace,
              "No white space in JSON, but a blank behind commas and colons.")
      .def_ro("disable_additional_properties", &P::disable_additional_properties,
              "Objects have the properties that a schema names, unless it says what others are.")
      .def_ro("whitespace_pattern", &P::whitespace_pattern,
              "A regular expression of what stands between JSON's tokens.")
      .def_ro("structural_tag", &P::structural_tag, "Tags and what is between them, as xgrammar's.")
      .def(nb::self == nb::self);
  params.attr("__hash__") = nb::none();
}

// The same for the keywords of an engine.
nb::list config_fields() {
  const EngineConfig config;
  nb::list rows;
  for (const ConfigField& field : config_table()) {
    const auto value = [&](auto member) { return nb::cast(config.*member); };
    rows.append(nb::make_tuple(field.name, std::visit(value, field.member), field.help));
  }
  return rows;
}

}  // namespace

EngineConfig to_config(const nb::dict& arguments) {
  EngineConfig config;
  for (const ConfigField& field : config_table()) {
    const nb::object name = nb::cast(field.name);
    if (!arguments.contains(name)) continue;
    const nb::object value = arguments[name];
    const auto assign = [&](auto member) {
      if (nb::try_cast(value, config.*member)) return;
      throw_error(ErrorCode::kInvalidArgument, "{} can't be {}.", field.name,
                  to_text(nb::repr(value)));
    };
    std::visit(assign, field.member);
  }
  config.validate();
  return config;
}

EngineConfig lowered_for(const std::string& model, EngineConfig config) {
  if (config.max_model_len == -1) return config;
  const int most = load_model_config(model).max_context_length();
  if (config.max_model_len <= most) return config;
  print_message("nanovllm: max_model_len is lowered from {} to {}, which {} was made for\n",
                config.max_model_len, most, model);
  config.max_model_len = most;
  return config;
}

void bind_params(nb::module_& module) {
  bind_structured_outputs(module);
  nb::enum_<RequestOutputKind>(module, "RequestOutputKind",
                               "What the outputs of a request's steps hold.")
      .value("CUMULATIVE", RequestOutputKind::kCumulative, "everything so far, each time")
      .value("DELTA", RequestOutputKind::kDelta, "what is new since the last output")
      .value("FINAL_ONLY", RequestOutputKind::kFinalOnly, "everything, once, at the end");

  nb::class_<SamplingParams> params(module, "SamplingParams");
  params.def("__init__", [](SamplingParams* self, const nb::kwargs& values) {
    new (self) SamplingParams(make(values));
  });
  for (const Parameter& parameter : sampling_table()) {
    params.def_prop_rw(
        parameter.name.data(),
        [&parameter](const SamplingParams& self) { return get(self, parameter); },
        [&parameter](SamplingParams& self, nb::handle value) {
          assign(self, parameter.name, value);
        },
        nb::for_setter(nb::arg("value").none()), parameter.help.data());
  }
  params.def_prop_rw(
      "output_kind", [](const SamplingParams& self) { return self.output_kind; },
      [](SamplingParams& self, nb::handle value) { assign(self, "output_kind", value); },
      nb::for_setter(nb::arg("value").none()));
  params.def(
      "clone", [](const SamplingParams& self) { return self; }, "A copy.");
  params.def(nb::self == nb::self);
  params.attr("__hash__") = nb::none();
  module.def("parameters", parameters, "The table of SamplingParams: name, default, help.");
  module.def("config_fields", config_fields, "The table of an engine's keywords, likewise.");
}

}  // namespace nanovllm::python
