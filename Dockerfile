# The image of watchrelay: the program in a virtual environment on a slim Python, as uid 65532, without pip and without a compiler, started by tini.
# `make image` builds it without Docker, bit for bit the same each time.
ARG PYTHON_IMAGE=python:3.13-slim

FROM ${PYTHON_IMAGE} AS build
ARG SOURCE_DATE_EPOCH=0
ENV SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH} PIP_CACHE_DIR=/var/cache/pip PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
# What runs, and what `watchrelay demo` needs: an image can be tried without a cluster, Kafka or Python.
COPY requirements/image.txt requirements/build.txt /src/requirements/
RUN --mount=type=cache,target=/var/cache/pip python3 -m venv /opt/build \
 && /opt/build/bin/pip install -q --no-deps --require-hashes -r /src/requirements/build.txt \
 && python3 -m venv --without-pip /opt/app \
 && /opt/build/bin/pip --python /opt/app/bin/python install -q --no-compile --only-binary :all: --no-deps --require-hashes -r /src/requirements/image.txt
RUN apt-get -qq update && apt-get -qq install -y --no-install-recommends tini=0.19.0-* && cp /usr/bin/tini /opt/app/bin/tini
COPY pyproject.toml README.md LICENSE /src/
COPY watchrelay /src/watchrelay
RUN /opt/build/bin/pip wheel -q --no-build-isolation --no-deps -w /w /src \
 && /opt/build/bin/pip --python /opt/app/bin/python install -q --no-compile --no-deps --no-index /w/*.whl \
 && python3 -m compileall -q --invalidation-mode unchecked-hash /opt/app/lib

FROM ${PYTHON_IMAGE}
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG CREATED=1970-01-01T00:00:00Z
LABEL org.opencontainers.image.title="watchrelay" \
      org.opencontainers.image.description="Relays every change of chosen Kubernetes resources, in order, to Kafka topics that prove themselves." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}"
COPY --from=build /opt/app /opt/app
ENV PATH=/opt/app/bin:/usr/local/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
EXPOSE 8080
# tini waits for what exec plugins and token commands leave running, as the parent of orphans also where it is not PID 1 (-s: shareProcessNamespace).
# Kubernetes probes /livez and /readyz, so there is no HEALTHCHECK.
ENTRYPOINT ["/opt/app/bin/tini", "-s", "--", "/opt/app/bin/watchrelay"]
CMD ["run"]
