"""scripts/check_layers.py passes what the sources include, and names what they must not include or know."""
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
        return self.offences_of({path: f'#include "{include}"\n'})

    def offences_of(self, files):
        """What is said about some files, {path: text}."""
        with tempfile.TemporaryDirectory() as root:
            for path, text in files.items():
                file = pathlib.Path(root) / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
            return "\n".join(check_layers.offences(pathlib.Path(root))).replace(f"{root}/", "")

    def test_the_sources_pass(self):
        self.assertEqual(list(check_layers.offences(ROOT)), [])

    def test_includes_go_downwards_only(self):
        self.assertEqual(self.offences("src/io/a.h", "base/check.h"), "")
        self.assertEqual(self.offences("src/base/a.h", "io/file.h"),
                         'src/base/a.h: layer base must not include "io/file.h"')
        self.assertEqual(self.offences("src/engine/a.cc", "ops/sampling.h"), "")
        self.assertEqual(self.offences("src/engine/a.cc", "models/load_config.h"), "")
        self.assertIn('"ops/tensor.h"', self.offences("src/engine/a.cc", "ops/tensor.h"))
        self.assertIn("device headers", self.offences("src/runner/a.cc", "cuda_runtime.h"))
        self.assertIn("of no layer", self.offences("src/new/a.h", "base/check.h"))

    def test_rooms_of_the_server_know_only_what_they_stand_on(self):
        self.assertEqual(self.offences("src/server/openai/a.cc", "server/http/api_error.h"), "")
        self.assertEqual(self.offences("src/server/http/a.cc", "server/log.h"), "")
        self.assertEqual(self.offences("src/server/a.cc", "server/page/page.h"), "")
        self.assertEqual(self.offences("src/server/fleet/a_test.cc", "server/openai/answer.h"), "")
        self.assertEqual(self.offences("src/server/http/a.cc", "server/openai/protocol.h"),
                         'src/server/http/a.cc: this room must not include "server/openai/protocol.h"')
        self.assertIn("this room", self.offences("src/server/openai/a.cc", "server/routes.h"))

    def test_kernels_of_cuda_stand_on_device_code_and_know_no_backend(self):
        cuda = "backend/cuda"
        for room, other in [("attention", "device"), ("layer", "linear"), ("layer", "peers"), ("backend", "layer"),
                            ("linear", "linear")]:
            self.assertEqual(self.offences(f"src/{cuda}/{room}/a.cu", f"{cuda}/{other}/b.h"), "")
        for room, other in [("device", "linear"), ("attention", "backend"), ("experts", "linear"), ("linear", "layer"),
                            ("peers", "layer"), ("attention", "layer")]:
            self.assertEqual(self.offences(f"src/{cuda}/{room}/a.cu", f"{cuda}/{other}/b.h"),
                             f'src/{cuda}/{room}/a.cu: this room must not include "{cuda}/{other}/b.h"')
        self.assertEqual(self.offences("src/backend/registry.cc", f"{cuda}/backend/b.h"), "")
        self.assertEqual(self.offences("src/backend/registry.cc", f"{cuda}/layer/b.h"),
                         f'src/backend/registry.cc: of {cuda} others may include the room backend only, not "{cuda}/layer/b.h"')
        # Nor by way of what includes it.
        for room in ("device", "attention", "layer"):
            for other in ("backend/registry.h", "backend/cpu/cpu_backend.h"):
                self.assertEqual(self.offences(f"src/{cuda}/{room}/a.cu", other),
                                 f'src/{cuda}/{room}/a.cu: this room must not include what lies outside of {cuda}: "{other}"')
                self.assertEqual(self.offences(f"src/{cuda}/{room}/a_test.cc", other), "")
            self.assertEqual(self.offences(f"src/{cuda}/{room}/a.cu", "ops/backend.h"), "")
        self.assertEqual(self.offences(f"src/{cuda}/backend/a.cc", "backend/cpu/host_memory.h"), "")
        self.assertEqual(self.offences(f"src/{cuda}/layer/a_test.cc", f"{cuda}/backend/b.h"), "")
        self.assertIn("in no room of backend/cuda", self.offences(f"src/{cuda}/a.cc", "base/check.h"))
        self.assertIn("in no room of backend/cuda", self.offences(f"src/{cuda}/new/a.cc", "base/check.h"))

    def test_headers_of_tests_are_for_tests(self):
        for header in ("backend/cuda/layer/b_testing.h", "backend/cuda/layer/b_test_support.h", "base/testing.h",
                       "backend/backend_cases.h"):
            self.assertEqual(self.offences("src/backend/cuda/layer/a.cc", header),
                             f'src/backend/cuda/layer/a.cc: what is no test must not include a test\'s "{header}"')
            self.assertIn("no test", self.offences("src/backend/a.cc", header))
            for test in ("a_test.cc", "a_testing.h", "a_test_support.h"):
                self.assertEqual(self.offences(f"src/backend/cuda/layer/{test}", header), "")
        self.assertIn("no test", self.offences("src/server/fleet/a.cc", "server/fleet/fleet_stage.h"))

    def test_no_room_includes_one_that_stands_after_it(self):
        for rooms in check_layers.ROOMS.values():
            names = list(rooms)
            for i, room in enumerate(names):
                self.assertLessEqual(rooms[room], set(names[:i]))

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

    def test_io_knows_no_family_by_name(self):
        rows = {"src/models/gpt.cc": '{"GptOssForCausalLM", "gpt-oss"}', "src/models/llama.cc": '{"LlamaForCausalLM"}',
                "src/models/new.cc": '{"Newton2MoeForCausalLM"}', "src/models/a_test.cc": '{"TestForCausalLM"}'}

        def offences(text, path="src/io/a.cc"):
            return self.offences_of({**rows, path: text})

        self.assertEqual(offences('bool is_newton2();'),
                         "src/io/a.cc: names the family newton, of which only its file in src/models knows")
        for text in ('if (type == "gpt_oss") return;', 'return "gpt-oss";', 'GptOss a;', '"//"; llama();', "// a\nread_llama();"):
            self.assertIn("names the family", offences(text))
        for text in ("// as Newton has it\nint x;", "/* llama\n */", 'kind == "llama3"', "llama3_frequency()", "gpt();", '"test"'):
            self.assertEqual(offences(text), "")
        self.assertEqual(offences("read_llama();", "src/io/a_test.cc"), "")
        self.assertEqual(offences("read_llama();", "src/models/a.cc"), "")


if __name__ == "__main__":
    unittest.main()
