"""deploy/kubernetes: each manifest against Kubernetes' own schemas and those of the gateway, and what they say of each other."""
import copy
import os
import re
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
import jsonschema  # noqa: E402
import kubernetes_validate  # noqa: E402
import yaml  # noqa: E402
from manifest_testing import (ADAPTER_VALUES, FOREIGN, KUBERNETES, OVERLAYS, PICKER_ENGINE, PICKER_FLAGS, PICKER_GAUGES, SOURCE,  # noqa: E402
                              deployment, kustomize, merged, pod, seconds_of, server)
from serve_testing import BINARY, run_tests  # noqa: E402

VERSIONS = ["1.30", "1.37"]  # the first one that lets a hook sleep, and the newest


def check_schema(manifest):
    if manifest["kind"] in FOREIGN:
        jsonschema.validate(manifest, FOREIGN[manifest["kind"]])
        return
    for version in VERSIONS:
        kubernetes_validate.validate(manifest, version, strict=True)


class Files(unittest.TestCase):
    """As they lie there, without kustomize."""

    def test_every_resource_follows_its_schema(self):
        count = 0
        for path in sorted(KUBERNETES.rglob("*.yaml")):
            for manifest in yaml.safe_load_all(path.read_text()):
                if path.name in ("kustomization.yaml", "prometheus-adapter.yaml"):
                    continue
                with self.subTest(path=path.name, kind=manifest["kind"]):
                    check_schema(manifest)
                    count += 1
        self.assertEqual(count, 13)

    def test_kustomizations_name_every_file(self):
        for kustomization in KUBERNETES.rglob("kustomization.yaml"):
            named = set(yaml.safe_load(kustomization.read_text()).get("resources", []))
            here = {path.name for path in kustomization.parent.glob("*.yaml")} - {"kustomization.yaml", "prometheus-adapter.yaml"}
            self.assertEqual({name for name in named if name.endswith(".yaml")}, here, kustomization)

    def test_the_adapters_rule_follows_its_schema_and_gives_the_autoscaler_its_metrics(self):
        values = yaml.safe_load((KUBERNETES / "components/autoscaling/prometheus-adapter.yaml").read_text())
        jsonschema.validate(values, ADAPTER_VALUES)
        rule = values["rules"]["custom"][0]
        given = set()
        series = re.search(r'__name__=~"([^"]*)"', rule["seriesQuery"]).group(1)
        for name in [*PICKER_GAUGES, "vllm:num_requests_waiting_by_reason"]:
            if re.search(series, name):
                given.add(re.sub(rule["name"]["matches"], rule["name"]["as"].replace("${1}", r"\1"), name))
        scaler = yaml.safe_load((KUBERNETES / "components/autoscaling/autoscaler.yaml").read_text())
        wanted = {metric["pods"]["metric"]["name"] for metric in scaler["spec"]["metrics"]}
        self.assertEqual(wanted, given)
        self.assertIn("vllm_num_requests_waiting", wanted)

    def test_the_schemas_refuse_what_is_wrong(self):
        pool = yaml.safe_load((KUBERNETES / "components/gateway/pool.yaml").read_text())
        older = copy.deepcopy(pool)  # as v1alpha2 had it
        older["spec"]["targetPortNumber"] = older["spec"].pop("targetPorts")[0]["number"]
        flat = copy.deepcopy(pool)
        flat["spec"]["selector"] = flat["spec"]["selector"]["matchLabels"]
        typo = yaml.safe_load((KUBERNETES / "base/deployment.yaml").read_text())
        typo["spec"]["template"]["spec"]["terminationGracePeriod"] = 1
        for wrong in (older, flat):
            with self.assertRaises(jsonschema.ValidationError):
                check_schema(wrong)
        with self.assertRaises(kubernetes_validate.ValidationError):
            check_schema(typo)


@unittest.skipUnless(kustomize(), "neither kubectl nor kustomize is there to merge the overlays")
class Overlays(unittest.TestCase):
    def test_every_manifest_follows_its_schema(self):
        for overlay in OVERLAYS:
            for manifest in merged(overlay).values():
                check_schema(manifest)

    def test_selectors_and_ports_meet_the_pods(self):
        for overlay in OVERLAYS:
            labels = deployment(overlay)["spec"]["template"]["metadata"]["labels"]
            ports = {port["name"]: port["containerPort"] for port in server(overlay)["ports"]}
            self.assertEqual(ports["http"], seconds_of("--port", server(overlay)["args"]))
            for (kind, name), manifest in merged(overlay).items():
                if name != "nanovllm":
                    continue
                spec = manifest.get("spec", {})
                selector = spec.get("selector", {})
                for key, value in selector.get("matchLabels", {} if kind == "HTTPRoute" else selector).items():
                    self.assertEqual(labels.get(key), value, (kind, key))
                if kind == "Service":
                    self.assertEqual([port["targetPort"] for port in spec["ports"]], ["http"])
                if kind == "InferencePool":
                    self.assertEqual([port["number"] for port in spec["targetPorts"]], [ports["http"]])
                if kind == "PodMonitor":
                    self.assertIn(spec["podMetricsEndpoints"][0]["port"], ports)

    def test_a_replica_has_time_to_end_its_requests(self):
        for overlay in OVERLAYS:
            sleep = server(overlay)["lifecycle"]["preStop"]["sleep"]["seconds"]
            drain = seconds_of("--shutdown-timeout", server(overlay)["args"])
            self.assertGreater(pod(overlay)["terminationGracePeriodSeconds"], sleep + drain)

    def test_probes_ask_what_needs_no_key(self):
        for overlay in OVERLAYS:
            probes = {name: server(overlay)[name]["httpGet"] for name in ("readinessProbe", "livenessProbe")}
            self.assertEqual(probes, {"readinessProbe": {"path": "/health", "port": "http"}, "livenessProbe": {"path": "/ping", "port": "http"}})

    def test_pods_keep_to_the_restricted_standard(self):
        """Of Kubernetes' Pod Security Standards; and ours have a read-only root."""
        for overlay in OVERLAYS:
            for (kind, name), manifest in merged(overlay).items():
                if kind != "Deployment":
                    continue
                spec = manifest["spec"]["template"]["spec"]
                self.assertIs(spec["securityContext"]["runAsNonRoot"], True)
                self.assertEqual(spec["securityContext"]["seccompProfile"], {"type": "RuntimeDefault"})
                for container in [*spec.get("initContainers", []), *spec["containers"]]:
                    security = container["securityContext"]
                    self.assertEqual(security["capabilities"], {"drop": ["ALL"]})
                    self.assertIs(security["allowPrivilegeEscalation"], False)
                    if name == "nanovllm":
                        self.assertIs(security["readOnlyRootFilesystem"], True)

    def test_the_model_is_pulled_into_what_the_server_reads(self):
        for overlay in OVERLAYS:
            pull = pod(overlay)["initContainers"][0]
            self.assertEqual([pull["args"][0], pull["args"][-1]], ["pull", "$(MODEL)"])
            self.assertEqual(server(overlay)["args"][:2], ["serve", "$(MODEL)"])
            self.assertEqual(pull["volumeMounts"], [{"name": "models", "mountPath": "/models"}])
            self.assertEqual(server(overlay)["volumeMounts"], [{"name": "models", "mountPath": "/models", "readOnly": True}])
            maps = {container["envFrom"][0]["configMapRef"]["name"] for container in (pull, server(overlay))}
            self.assertEqual(len(maps), 1)
            self.assertIn("MODEL", merged(overlay)["ConfigMap", maps.pop()]["data"])
        volume = {"name": "models", "persistentVolumeClaim": {"claimName": "nanovllm-models"}}
        self.assertEqual(pod("example")["volumes"], [volume])
        self.assertEqual(merged("example")["PersistentVolumeClaim", "nanovllm-models"]["spec"]["accessModes"], ["ReadWriteMany"])
        self.assertEqual(pod("overlays/cpu")["volumes"], [{"name": "models", "emptyDir": {}}])

    def test_the_server_knows_every_flag(self):
        told = subprocess.run([BINARY, "serve", "--help"], capture_output=True, text=True, check=True).stdout
        for overlay in OVERLAYS:
            for arg in server(overlay)["args"][2:]:
                self.assertRegex(told, rf"(?m)^  {re.escape(arg.split('=')[0])}\b")

    def test_overlays_say_where_replicas_compute(self):
        self.assertNotIn("nvidia.com/gpu", server("overlays/cpu")["resources"]["limits"])
        cpu = server("overlays/cpu")["resources"]
        self.assertEqual(cpu["requests"], cpu["limits"])  # cores of its own
        self.assertEqual(server("overlays/cuda")["resources"]["limits"]["nvidia.com/gpu"], "1")
        self.assertIn("--device=cuda", server("overlays/cuda")["args"])
        self.assertEqual([server(overlay)["image"] for overlay in OVERLAYS],
                         ["nanovllm:cpu", "nanovllm:cuda", "registry.example/nanovllm:cuda"])

    def test_the_autoscaler_alone_says_how_many(self):
        self.assertNotIn("replicas", deployment("example")["spec"])
        target = merged("example")["HorizontalPodAutoscaler", "nanovllm"]["spec"]["scaleTargetRef"]
        self.assertEqual(target, {"apiVersion": "apps/v1", "kind": "Deployment", "name": "nanovllm"})
        self.assertEqual(deployment("overlays/cpu")["spec"]["replicas"], 2)

    def test_the_gateway_finds_pool_and_picker(self):
        example = merged("example")
        backend = example["HTTPRoute", "nanovllm"]["spec"]["rules"][0]["backendRefs"][0]
        pool = example[backend["kind"], backend["name"]]
        self.assertEqual(backend["group"], pool["apiVersion"].split("/")[0])
        reference = pool["spec"]["endpointPickerRef"]
        service = example["Service", reference["name"]]["spec"]
        picker = example["Deployment", "nanovllm-picker"]["spec"]
        container = picker["template"]["spec"]["containers"][0]
        flags = dict(arg.removeprefix("--").split("=") for arg in container["args"])
        self.assertLessEqual(set(flags), PICKER_FLAGS)
        self.assertEqual((flags["pool-group"], flags["pool-name"]), (backend["group"], backend["name"]))
        self.assertEqual(reference["port"]["number"], service["ports"][0]["port"])
        self.assertEqual(str(service["ports"][0]["port"]), flags["grpc-port"])
        self.assertEqual(container["livenessProbe"]["grpc"]["port"], int(flags["grpc-health-port"]))
        self.assertEqual(service["selector"], picker["selector"]["matchLabels"])
        key, value = PICKER_ENGINE
        self.assertEqual(deployment("example")["spec"]["template"]["metadata"]["labels"][key], value)
        grace = [each["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] for each in (deployment("example"), {"spec": picker})]
        self.assertLessEqual(grace[0], grace[1])  # streams go through it


class Dockerfiles(unittest.TestCase):
    def test_images_are_made_in_stages_run_as_the_pods_user_and_tell_their_health(self):
        wanted = yaml.safe_load((KUBERNETES / "base/deployment.yaml").read_text())["spec"]["template"]["spec"]["securityContext"]
        files = sorted((SOURCE / "deploy/docker").glob("*.Dockerfile"))
        self.assertEqual([path.name for path in files], ["cpu.Dockerfile", "cuda.Dockerfile"])
        for path in files:
            text = path.read_text()
            stages = re.findall(r"(?m)^FROM (\S+)", text)
            self.assertGreater(len(stages), 1)
            last = text[text.rindex("\nFROM "):]
            self.assertIn(f"\nUSER {wanted['runAsUser']}:{wanted['runAsGroup']}\n", last)
            self.assertRegex(last, r"(?m)^HEALTHCHECK .*CMD .*http://127\.0\.0\.1:8000/health$")
            self.assertIn('\nENTRYPOINT ["nanovllm"]\n', last)
            self.assertIn("\nENV HF_HOME=/models", last)
            for name in re.findall(r"(?m)^COPY (?!--from)(.*) \S+$", text):
                for each in name.split():
                    self.assertTrue((SOURCE / each).exists(), each)


if __name__ == "__main__":
    run_tests([] if kustomize() else ["kubectl or kustomize"])
