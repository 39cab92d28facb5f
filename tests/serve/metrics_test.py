"""What the distribution's Prometheus makes of /metrics, and whether vLLM's Grafana dashboard shows a loaded server."""
import json
import math
import re
import shutil
import socket
import subprocess
import sys
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request

from cli_testing import BINARY, MODEL, CliTest, run

NAME = "the-model"


def dashboard():
    """The queries of its panels, by what they show."""
    labels, rate = f'{{model_name="{NAME}"}}', "[10s]"
    for metric in ("e2e_request_latency_seconds", "inter_token_latency_seconds", "time_to_first_token_seconds"):
        for quantile in (0.99, 0.95, 0.9, 0.5):
            yield f"histogram_quantile({quantile}, sum by(le) (rate(vllm:{metric}_bucket{labels}{rate})))"
        yield f"rate(vllm:{metric}_sum{labels}{rate})\n/\nrate(vllm:{metric}_count{labels}{rate})"
    for metric in ("prompt_tokens_total", "generation_tokens_total", "request_queue_time_seconds_sum", "request_prefill_time_seconds_sum",
                   "request_decode_time_seconds_sum", "request_max_num_generation_tokens_sum"):
        yield f"rate(vllm:{metric}{labels}{rate})"
    for metric in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        yield f"vllm:{metric}{labels}"
    for metric in ("request_prompt_tokens_bucket", "request_generation_tokens_bucket"):
        yield f"sum by(le) (increase(vllm:{metric}{labels}{rate}))"
    yield f"sum by(finished_reason) (increase(vllm:request_success_total{labels}{rate}))"


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def get(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        return answer.read().decode()


class ServeMetrics(CliTest):
    def start(self, *command, port, path):
        process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(process.wait)
        self.addCleanup(process.terminate)
        for _ in range(600):
            self.assertIsNone(process.poll(), command)
            try:
                return get(port, path)
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.1)
        self.fail(f"{command[0]} does not answer")

    def test_dashboard_shows_a_loaded_server(self):
        port, prometheus = free_port(), free_port()
        self.start(BINARY, "serve", MODEL, "--port", port, "--served-model-name", NAME, port=port, path="/health")
        config = self.path("prometheus.yml", json.dumps({"scrape_configs": [{"job_name": "vllm", "scrape_interval": "500ms",
            "scrape_timeout": "500ms", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}]}))
        self.start("prometheus", f"--config.file={config}", f"--storage.tsdb.path={self.path('data')}",
                   f"--web.listen-address=127.0.0.1:{prometheus}", port=prometheus, path="/-/ready")
        load = run("bench", "serve", "--port", port, "--num-prompts", 120, "--request-rate", 20, "--random-input-len", 64,
                   "--random-output-len", 24)
        self.assertEqual(load.returncode, 0, load.stderr)
        time.sleep(1)
        for query in dashboard():
            answer = json.loads(get(prometheus, "/api/v1/query?" + urllib.parse.urlencode({"query": query})))
            values = [float(series["value"][1]) for series in answer["data"]["result"]]
            self.assertTrue(values and not all(map(math.isnan, values)), query)

        text = get(port, "/metrics")
        check = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
        # vLLM's own names are what it finds fault with.
        faults = [line for line in check.stderr.splitlines()
                  if not re.fullmatch(r"vllm:\w+ metric names should not contain ':'|"
                                      'vllm:iteration_tokens_total non-counter metrics should not have "_total" suffix', line)]
        self.assertEqual((faults, check.returncode), ([], 3))
        self.assertIn(f'vllm:num_requests_running{{engine="0",model_name="{NAME}"}} 0\n', text)  # nobody asks any more


if __name__ == "__main__":
    if not shutil.which("promtool") or not shutil.which("prometheus"):
        print("skipped: there is no prometheus; install the distribution's package of that name")
        sys.exit(77)
    unittest.main()
