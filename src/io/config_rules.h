// How the files of a family of models are read, where the files themselves do not say it.
#pragma once

namespace nanovllm {

struct ConfigRules {
  // The model is the text_config of a multimodal one.
  bool has_text_config = false;
  // There may be heads of which only a part turns.
  bool turns_parts = false;
  // Layers with a window turn by rope_theta where no base of their own is given, and are never
  // stretched.
  bool windows_turn_apart = false;
  // Stacks of experts that are parameters of their module, without ".weight", lie as [experts, out,
  // in], not as [experts, in, out].
  bool experts_are_in_order = false;
  // "yarn" is a name of LongRoPE.
  bool yarn_is_longrope = false;
  // There are windows unless use_sliding_window is false, only if it is true, or in any case.
  enum class Windows { kUnlessDenied, kIfAskedFor, kAlways } windows = Windows::kUnlessDenied;
  // Layers from this one on have the window, where no key says which.
  int first_window_layer = 0;
};

}  // namespace nanovllm
