"""The metrics, as the distribution's prometheus scrapes them, and as the queries of vLLM's Grafana dashboard read them."""
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.parse
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from serve_testing import ServeTest, in_parallel, run_tests  # noqa: E402

MISSING = [name for name in ("prometheus", "promtool") if shutil.which(name) is None]
LATENCIES = ("e2e_request_latency", "inter_token_latency", "time_to_first_token")
TIMES = ("request_queue_time", "request_prefill_time", "request_decode_time", "request_inference_time", "request_time_per_output_token")
# Of the dashboard, with its interval and its model put in.
QUERIES = [
    *(f"histogram_quantile({q}, sum by(le) (rate(vllm:{name}_seconds_bucket{{model_name=\"demo\"}}[10s])))" for name in LATENCIES for q in (0.99, 0.95, 0.9, 0.5)),
    *(f"rate(vllm:{name}_seconds_sum{{model_name=\"demo\"}}[10s])\n/\nrate(vllm:{name}_seconds_count{{model_name=\"demo\"}}[10s])" for name in LATENCIES),
    *(f"rate(vllm:{name}_seconds_sum{{model_name=\"demo\"}}[10s])" for name in TIMES),
    'rate(vllm:prompt_tokens_total{model_name="demo"}[10s])', 'rate(vllm:generation_tokens_total{model_name="demo"}[10s])',
    'vllm:num_requests_running{model_name="demo"}', 'vllm:num_requests_waiting{model_name="demo"}', 'vllm:kv_cache_usage_perc{model_name="demo"}',
    'sum by(le) (increase(vllm:request_prompt_tokens_bucket{model_name="demo"}[10s]))',
    'sum by(le) (increase(vllm:request_generation_tokens_bucket{model_name="demo"}[10s]))',
    'sum by(finished_reason) (increase(vllm:request_success_total{model_name="demo"}[10s]))',
    'max_over_time(vllm:num_requests_running{model_name="demo"}[10s])', 'vllm:num_preemptions_total{model_name="demo"}',
    'rate(vllm:prefix_cache_hits_total{model_name="demo"}[10s]) / rate(vllm:prefix_cache_queries_total{model_name="demo"}[10s])',
    'sum by(le) (rate(vllm:iteration_tokens_total_bucket{model_name="demo"}[10s]))', 'vllm:cache_config_info',
]


@unittest.skipIf(MISSING, "no " + ", ".join(MISSING))
class Metrics(ServeTest):
    def load(self, server):
        in_parallel(8, lambda i: [server.post("/v1/completions", {"prompt": f"Once {i} " + "and then " * 20, "max_tokens": 60, "temperature": 0}) for _ in range(4)])

    def test_promtool_finds_nothing_to_say(self):
        server = self.serve("--served-model-name", "demo")
        self.load(server)
        answer = server.get("/metrics")
        self.assertTrue(answer.getheader("content-type").startswith("text/plain; version=0.0.4"), answer.getheader("content-type"))
        checked = subprocess.run(["promtool", "check", "metrics"], input=answer.text, capture_output=True, text=True)
        # vLLM's own names have colons, and some have units that promtool would spell out.
        complaints = [line for line in checked.stderr.splitlines() if "should not contain ':'" not in line and "vllm:" not in line]
        self.assertEqual(complaints, [], checked.stdout + checked.stderr)
        self.assertIn(checked.returncode, (0, 3), checked.stderr)  # 3: lint remarks only

    def test_the_dashboards_queries_give_values(self):
        server = self.serve("--served-model-name", "demo", "--api-key", "secret")
        with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
            free.close()
            with open(folder + "/prometheus.yml", "w", encoding="utf-8") as file:  # as docs/serving.md has it
                file.write("global: {scrape_interval: 1s, scrape_timeout: 1s}\nscrape_configs:\n  - job_name: nanovllm\n    authorization: {credentials: secret}\n"
                           f"    static_configs: [{{targets: ['127.0.0.1:{server.port}']}}]\n")
            prometheus = subprocess.Popen(["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}"],
                                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                headers = {"Authorization": "Bearer secret"}
                until = time.monotonic() + 60
                empty = QUERIES
                while empty and time.monotonic() < until:
                    in_parallel(4, lambda i: server.post("/v1/completions", {"prompt": f"Once {i}", "max_tokens": 40, "temperature": 0}, headers=headers))
                    empty = [query for query in QUERIES if not self.values(port, query)]
                self.assertEqual(empty, [])
            finally:
                prometheus.kill()
                prometheus.wait()

    def values(self, port, query):
        """What a query gives now, without what is not a number."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": query}), timeout=10) as answer:
                return [item for item in json.load(answer)["data"]["result"] if item["value"][1] != "NaN"]
        except OSError:
            return []


if __name__ == "__main__":
    run_tests(MISSING)
