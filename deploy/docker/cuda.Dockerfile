# The image of a server on NVIDIA GPUs, of packages of the distribution, whose CUDA is 12.4: for GPUs from Ampere to Hopper;
# a newer GPU compiles the code for the oldest one at its start. In a clone:
#   docker build -f deploy/docker/cuda.Dockerfile -t nanovllm:cuda .
#   docker run --gpus all --read-only -v models:/models -p 127.0.0.1:8000:8000 nanovllm:cuda serve Qwen/Qwen3-0.6B --host 0.0.0.0
ARG DEBIAN=trixie

FROM debian:${DEBIAN}-slim AS cuda
RUN sed -i 's/^Components: main$/Components: main contrib non-free/' /etc/apt/sources.list.d/debian.sources

FROM cuda AS build
RUN apt-get update -q \
  && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends nvidia-cuda-toolkit-gcc
WORKDIR /nanovllm
COPY scripts/install_packages.sh scripts/
RUN scripts/install_packages.sh build
COPY CMakeLists.txt CMakePresets.json ./
COPY cmake cmake
COPY include include
COPY src src
ARG CUDA_ARCHITECTURES="80;86-real;89-real;90a-real"
RUN cmake --preset cuda -DNANOVLLM_TESTS=OFF -DNANOVLLM_BENCH=OFF "-DCMAKE_CUDA_ARCHITECTURES=${CUDA_ARCHITECTURES}"
RUN cmake --build build-cuda -j "$(nproc)"
COPY deploy/docker/library_packages.sh deploy/docker/
RUN deploy/docker/library_packages.sh build-cuda/nanovllm >build-cuda/packages
RUN strip build-cuda/nanovllm

FROM cuda
COPY --from=build /nanovllm/build-cuda/packages /usr/local/share/nanovllm/
# curl is for the health check. The driver's libraries are the host's, which NVIDIA's container toolkit mounts.
RUN apt-get update -q \
  && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends \
    ca-certificates curl $(cat /usr/local/share/nanovllm/packages) \
  && rm -rf /var/lib/apt/lists/*
COPY LICENSE /usr/local/share/nanovllm/
COPY --from=build /nanovllm/build-cuda/nanovllm /usr/local/bin/
# The only folder that is written to, and that by pulls alone: the root may be read-only.
RUN mkdir /models && chown 65532:65532 /models
ENV HF_HOME=/models NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /models
USER 65532:65532
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=10m CMD curl -fsS -o /dev/null http://127.0.0.1:8000/health
ENTRYPOINT ["nanovllm"]
CMD ["--help"]
