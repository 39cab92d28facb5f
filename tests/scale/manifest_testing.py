"""What deploy/kubernetes makes, and schemas of the kinds that are not Kubernetes' own: the fields that we use, and no other."""
import functools
import pathlib
import shutil
import subprocess

import yaml

SOURCE = pathlib.Path(__file__).resolve().parents[2]
KUBERNETES = SOURCE / "deploy/kubernetes"
OVERLAYS = ["overlays/cpu", "overlays/cuda", "example"]


def kustomize():
    """The command that merges a kustomization, or nothing."""
    if shutil.which("kustomize"):
        return ["kustomize", "build"]
    return ["kubectl", "kustomize"] if shutil.which("kubectl") else None


@functools.cache
def merged(overlay):
    """The manifests of an overlay, by kind and name."""
    text = subprocess.run([*kustomize(), str(KUBERNETES / overlay)], capture_output=True, text=True, check=True).stdout
    return {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(text)}


def deployment(overlay):
    return merged(overlay)["Deployment", "nanovllm"]


def pod(overlay):
    return deployment(overlay)["spec"]["template"]["spec"]


def server(overlay):
    return pod(overlay)["containers"][0]


def seconds_of(flag, args):
    return int(next(arg.split("=")[1] for arg in args if arg.startswith(flag + "=")))


def fields(required, optional=(), **properties):
    """An object that has these fields and no other."""
    known = {**{name: {} for name in (*required, *optional)}, **properties}
    return {"type": "object", "required": list(required), "properties": known, "additionalProperties": False}


def listed(items, at_least, at_most):
    return {"type": "array", "items": items, "minItems": at_least, "maxItems": at_most}


def named(api_version, kind, spec):
    return fields(["apiVersion", "kind", "metadata", "spec"], apiVersion={"const": api_version}, kind={"const": kind}, spec=spec)


PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
NAME = {"type": "string", "minLength": 1, "maxLength": 253}
LABELS = fields(["matchLabels"], matchLabels={"type": "object", "minProperties": 1, "maxProperties": 64,
                                              "additionalProperties": {"type": "string", "maxLength": 63}})
GROUP = {"type": "string", "maxLength": 253, "pattern": r"^$|^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"}
KIND = {"type": "string", "pattern": "^[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?$", "maxLength": 63}

# config/crd/bases/inference.networking.k8s.io_inferencepools.yaml of gateway-api-inference-extension v1.6.0. That a Service
# needs a port is a rule there.
INFERENCE_POOL = named("inference.networking.k8s.io/v1", "InferencePool", fields(
    ["selector", "targetPorts"], selector=LABELS,
    targetPorts=listed(fields(["number"], number=PORT), 1, 8),
    appProtocol={"enum": ["http", "kubernetes.io/h2c"]},
    endpointPickerRef=fields(["name", "port"], name=NAME, port=fields(["number"], number=PORT), group=GROUP, kind=KIND,
                             failureMode={"enum": ["FailOpen", "FailClose"]})))

# config/crd/standard/gateway.networking.k8s.io_httproutes.yaml of gateway-api v1.6.1.
DURATION = {"type": "string", "pattern": "^([0-9]{1,5}(h|m|s|ms)){1,4}$"}
HTTP_ROUTE = named("gateway.networking.k8s.io/v1", "HTTPRoute", fields(
    ["parentRefs", "rules"], ["hostnames"],
    parentRefs=listed(fields(["name"], group=GROUP, kind=KIND, name=NAME, namespace=NAME, sectionName=NAME, port=PORT), 1, 32),
    rules=listed(fields(
        ["backendRefs"],
        matches=listed(fields([], ["headers"], path=fields(["type", "value"], type={"enum": ["Exact", "PathPrefix", "RegularExpression"]},
                                                          value={"type": "string", "maxLength": 1024})), 1, 64),
        backendRefs=listed(fields(["name"], group=GROUP, kind=KIND, name=NAME, port=PORT,
                                  weight={"type": "integer", "minimum": 0, "maximum": 1000000}), 1, 16),
        timeouts=fields([], request=DURATION, backendRequest=DURATION)), 1, 16)))

# example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml of prometheus-operator v0.93.0.
POD_MONITOR = named("monitoring.coreos.com/v1", "PodMonitor", fields(
    ["selector", "podMetricsEndpoints"], selector=LABELS,
    podMetricsEndpoints=listed(fields(["port"], ["authorization"], port={"type": "string"}, path={"type": "string"},
                                      interval={"type": "string", "pattern": "^([0-9]+h)?([0-9]+m)?([0-9]+s)?$"}), 1, 10)))

# pkg/config/config.go of prometheus-adapter v0.12.0; its chart has the rules below rules.custom.
ADAPTER_VALUES = fields(["rules"], rules=fields(["custom"], custom=listed(fields(
    ["seriesQuery", "resources", "name", "metricsQuery"], ["seriesFilters"],
    resources=fields(["overrides"], overrides={"type": "object", "additionalProperties": fields(["resource"], ["group"])}),
    name=fields(["matches", "as"])), 1, 10)))

FOREIGN = {"InferencePool": INFERENCE_POOL, "HTTPRoute": HTTP_ROUTE, "PodMonitor": POD_MONITOR}

# pkg/epp/server/options.go of llm-d-router v0.10.0.
PICKER_FLAGS = {"pool-group", "pool-name", "pool-namespace", "grpc-port", "grpc-health-port", "metrics-port",
                "metrics-endpoint-auth", "tracing", "config-file", "ha-enable-leader-election", "secure-serving"}
# What it reads of an engine called vllm: defaultEngineConfigs of pkg/epp/framework/plugins/datalayer/extractor/metrics/factories.go
# there. It takes one series of each, whatever its labels.
PICKER_GAUGES = ["vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc"]
PICKER_CACHE = "vllm:cache_config_info"  # with these labels
PICKER_CACHE_LABELS = ["block_size", "num_gpu_blocks"]
# The label of a pod that tells which engine it is, and its value for those names.
PICKER_ENGINE = ("llm-d.ai/engine-type", "vllm")
