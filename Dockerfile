# The judge as a service. Build and run it from the repository:
#
#     docker build -t kernel-coder .
#     docker compose -f deploy/compose.yaml up          # starts it with what a judge needs; see docs/serve.md
#
# For an NVIDIA GPU the host needs the driver and the NVIDIA container toolkit; CUDA candidates need a toolkit inside:
#     docker build -t kernel-coder --build-arg BASE=nvidia/cuda:13.0.1-devel-ubuntu24.04 .
ARG BASE=debian:trixie-slim
FROM ${BASE} AS base
ENV DEBIAN_FRONTEND=noninteractive PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1
# A C++ compiler stays in the image: cpp and cuda candidates are compiled, and Triton builds a launcher with it.
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3 python3-venv python3-dev g++ ca-certificates \
 && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/kernel-coder
ENV PATH=/opt/kernel-coder/bin:$PATH

FROM base AS built
ARG TORCH=torch==2.13.0
WORKDIR /src
COPY constraints.txt ./
RUN pip install "${TORCH}" -c constraints.txt \
 && pip install 'scikit-build-core>=1.1' 'pybind11>=3.1,<4' cmake ninja -c constraints.txt
COPY CMakeLists.txt pyproject.toml README.md LICENSE ./
COPY cmake cmake
COPY csrc csrc
COPY python python
RUN pip wheel --no-build-isolation --no-deps -w /wheels .

FROM base
COPY --from=built /opt/kernel-coder /opt/kernel-coder
COPY --from=built /wheels /wheels
COPY constraints.txt /tmp/constraints.txt
RUN pip install "$(echo /wheels/kernel_coder-*.whl)[train,serve]" -c /tmp/constraints.txt \
 && pip uninstall -y scikit-build-core pybind11 cmake ninja && rm -rf /wheels /tmp/constraints.txt
EXPOSE 8400
# Root starts the service: it gives each candidate a user of its own, without capabilities (docs/judge.md).
HEALTHCHECK --interval=30s --start-period=120s CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8400/health', timeout=5)"]
ENTRYPOINT ["kernel-coder", "serve", "--host", "0.0.0.0", "--port", "8400"]
CMD ["--device", "cpu", "--backend", "triton"]
