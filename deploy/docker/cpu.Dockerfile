# The image of a server on CPUs, of packages of the distribution. In a clone:
#   docker build -f deploy/docker/cpu.Dockerfile -t nanovllm:cpu .
#   docker run --read-only -v models:/models -p 127.0.0.1:8000:8000 nanovllm:cpu serve Qwen/Qwen3-0.6B --host 0.0.0.0
ARG DEBIAN=trixie

FROM debian:${DEBIAN}-slim AS build
WORKDIR /nanovllm
COPY scripts/install_packages.sh scripts/
RUN scripts/install_packages.sh build
COPY CMakeLists.txt CMakePresets.json ./
COPY cmake cmake
COPY include include
COPY src src
RUN cmake --preset release -DNANOVLLM_TESTS=OFF -DNANOVLLM_BENCH=OFF
RUN cmake --build build -j "$(nproc)"
COPY deploy/docker/library_packages.sh deploy/docker/
RUN deploy/docker/library_packages.sh build/nanovllm >build/packages
RUN strip build/nanovllm

FROM debian:${DEBIAN}-slim
COPY --from=build /nanovllm/build/packages /usr/local/share/nanovllm/
# curl is for the health check.
RUN apt-get update -q \
  && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends \
    ca-certificates curl $(cat /usr/local/share/nanovllm/packages) \
  && rm -rf /var/lib/apt/lists/*
COPY LICENSE /usr/local/share/nanovllm/
COPY --from=build /nanovllm/build/nanovllm /usr/local/bin/
# The only folder that is written to, and that by pulls alone: the root may be read-only.
RUN mkdir /models && chown 65532:65532 /models
ENV HF_HOME=/models
WORKDIR /models
USER 65532:65532
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=10m CMD curl -fsS -o /dev/null http://127.0.0.1:8000/health
ENTRYPOINT ["nanovllm"]
CMD ["--help"]
