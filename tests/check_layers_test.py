"""scripts/check_layers.py passes what the sources include, and names what they must not."""
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import check_layers


class CheckLayers(unittest.TestCase):
    def offences(self, path, include):
        """What is said about one file with one include."""
        with tempfile.TemporaryDirectory() as root:
            file = pathlib.Path(root) / path
            file.parent.mkdir(parents=True)
            file.write_text(f'#include "{include}"\n')
            return "\n".join(check_layers.offences(pathlib.Path(root))).replace(f"{root}/", "")

    def test_the_sources_pass(self):
        self.assertEqual(list(check_layers.offences(ROOT)), [])

    def test_includes_go_downwards_only(self):
        self.assertEqual(self.offences("src/io/a.h", "base/check.h"), "")
        self.assertEqual(self.offences("src/base/a.h", "io/file.h"),
                         'src/base/a.h: layer base must not include "io/file.h"')
        self.assertEqual(self.offences("src/engine/a.cc", "ops/sampling.h"), "")
        self.assertIn('"ops/tensor.h"', self.offences("src/engine/a.cc", "ops/tensor.h"))
        self.assertIn("device headers", self.offences("src/runner/a.cc", "cuda_runtime.h"))
        self.assertIn("of no layer", self.offences("src/new/a.h", "base/check.h"))

    def test_a_public_header_is_for_its_lowest_layer_and_those_above(self):
        for layer, header in [("base", "error.h"), ("text", "sampling_params.h"), ("runner", "config.h"),
                              ("api", "llm.h")]:
            self.assertEqual(self.offences(f"src/{layer}/a.h", f"nanovllm/{header}"), "")
        for layer, header in [("base", "llm.h"), ("models", "config.h"), ("runner", "llm_engine.h"), ("backend", "sampling_params.h"),
                              ("engine", "llm.h"), ("cli", "new.h")]:
            self.assertIn("must not include", self.offences(f"src/{layer}/a.h", f"nanovllm/{header}"))

    def test_a_public_header_includes_public_ones_of_its_layer_or_below(self):
        self.assertEqual(self.offences("include/nanovllm/llm_engine.h", "nanovllm/config.h"), "")
        self.assertIn("must not include", self.offences("include/nanovllm/error.h", "nanovllm/llm.h"))
        self.assertIn("must not include", self.offences("include/nanovllm/llm_engine.h", "engine/request.h"))
        self.assertIn("must not include", self.offences("include/nanovllm/llm_engine.h", "ops/sampling.h"))
        self.assertIn("must not include", self.offences("include/nanovllm/error.h", "llm.h"))
        self.assertIn("of no layer", self.offences("include/nanovllm/new.h", "nanovllm/error.h"))


if __name__ == "__main__":
    unittest.main()
