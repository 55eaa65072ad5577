# The hub with all providers of this repository. tools/image.py makes the content in one step; `make image`, which needs no
# container engine, runs the same step on another base.
#
# The digest below is a placeholder that no registry has: a build without --build-arg fails. docs/release.md says how to
# find the current one; the Python must be the one the tests run on.
ARG BASE=docker.io/library/python:3.11-slim-bookworm
ARG BASE_DIGEST=sha256:0000000000000000000000000000000000000000000000000000000000000000

FROM ${BASE}@${BASE_DIGEST} AS build
# The index that pip uses instead of PyPI. Its files must have the hashes of the lock.
ARG PIP_INDEX_URL
WORKDIR /src
COPY . .
RUN python tools/image.py /opt/hub

FROM ${BASE}@${BASE_DIGEST}
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="EndpointSlice Hub" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
COPY --from=build /opt/hub /opt/hub
# At run time, files are written only to mounts: the bytecode is already in the image.
ENV PATH=/opt/hub/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 65532:65532
ENTRYPOINT ["hub"]
CMD ["--help"]
